"""In whose name a consumer commits."""

from __future__ import annotations

import pytest

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import CommitFailed
from ottla.consumer.lifecycle import ConsumerLifecycle
from ottla.consumer.subscription import subscription
from ottla.protocol.topics import TopicPartition

A = TopicPartition("t", 0)


async def test_a_subscriber_that_is_not_in_the_group_cannot_commit() -> None:
    lifecycle = ConsumerLifecycle(ConsumerConfig(group_id="billing"))
    lifecycle.subscriptions.subscribe(subscription("t"), None)

    with pytest.raises(CommitFailed):
        await lifecycle.need_group().commits.commit({A: OffsetAndMetadata(1)})


async def test_partitions_assigned_by_hand_are_committed_without_a_generation() -> None:
    lifecycle = ConsumerLifecycle(ConsumerConfig(group_id="billing", group_instance_id="one"))
    lifecycle.subscriptions.assign([A])

    metadata = lifecycle.need_group().metadata()

    assert (metadata.group_id, metadata.generation_id, metadata.member_id) == ("billing", -1, "")


async def test_a_consumer_that_is_not_open_does_not_join() -> None:
    lifecycle = ConsumerLifecycle(ConsumerConfig(group_id="billing"))
    group = lifecycle.need_group()

    group.join()

    assert not group._running


async def test_a_consumer_without_a_group_says_what_to_set() -> None:
    with pytest.raises(ValueError, match="set group_id"):
        ConsumerLifecycle(ConsumerConfig()).need_group()
