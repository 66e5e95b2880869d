"""Which partitions a consumer without a group assigns, as metadata show them."""

from __future__ import annotations

import pytest

from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import WrongMode
from ottla.consumer.fetch.offset_lookups import EARLIEST
from ottla.consumer.lifecycle import ConsumerLifecycle
from ottla.consumer.subscription import TopicFilter, subscription
from ottla.consumer.subscription_state import SubscriptionState
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.topics import TopicPartition

A, B = (TopicPartition("t", n) for n in range(2))


def metadata(partitions: int, error_code: int = ErrorCode.NONE) -> MetadataResponse:
    found = [MetadataResponsePartition(partition_index=n) for n in range(partitions)]
    topics = [MetadataResponseTopic(name="t", error_code=error_code, partitions=found)]
    return MetadataResponse(topics=topics)


def state_of(group_id: str | None = None) -> tuple[SubscriptionState, ConsumerLifecycle]:
    lifecycle = ConsumerLifecycle(ConsumerConfig(group_id=group_id))
    return lifecycle.subscriptions, lifecycle


async def test_partitions_found_later_are_read_from_their_beginning() -> None:
    state, lifecycle = state_of()
    state.subscribe(subscription("t"), None)

    state.topics_seen(metadata(1))
    assert lifecycle.fetch.positions.assigned == {A}
    assert lifecycle.fetch.positions[A].lookup_time is None, "the reset policy decides on the first ones"
    state.topics_seen(metadata(2))

    assert lifecycle.fetch.positions.assigned == {A, B}
    assert lifecycle.fetch.positions[B].lookup_time == EARLIEST


async def test_a_topic_with_a_passing_error_keeps_its_partitions() -> None:
    state, lifecycle = state_of()
    state.subscribe(subscription("t"), None)
    state.topics_seen(metadata(2))

    state.topics_seen(metadata(0, ErrorCode.LEADER_NOT_AVAILABLE))

    assert lifecycle.fetch.positions.assigned == {A, B}


async def test_the_metadata_of_all_topics_are_needed_for_a_pattern_only() -> None:
    state, _ = state_of()
    assert state.topics_wanted() == frozenset()
    state.subscribe(subscription("t"), None)
    assert state.topics_wanted() == frozenset({"t"})
    state.subscribe(subscription(pattern=TopicFilter("t.*")), None)
    assert state.topics_wanted() is None


async def test_partitions_assigned_by_hand_exclude_a_subscription_until_unsubscribed() -> None:
    state, lifecycle = state_of()
    with pytest.raises(WrongMode):
        state.check_chosen()
    state.assign([A])
    state.check_chosen()
    with pytest.raises(WrongMode):
        state.check_subscribable()

    state.unsubscribe()

    state.check_subscribable()
    assert lifecycle.fetch.positions.assigned == frozenset()


async def test_with_a_group_metadata_assign_nothing() -> None:
    state, lifecycle = state_of("billing")
    state.subscribe(subscription("t"), None)
    state.topics_seen(metadata(2))

    assert lifecycle.fetch.positions.assigned == frozenset()
    with pytest.raises(WrongMode):
        state.assign([A])
