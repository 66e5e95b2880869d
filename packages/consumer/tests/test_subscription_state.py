"""Which partitions a consumer without a group assigns, as metadata show them."""

from __future__ import annotations

import pytest

from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import WrongMode
from ottla.consumer.fetch.lookups import EARLIEST
from ottla.consumer.runtime import ConsumerRuntime
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


def state_of(group_id: str | None = None) -> tuple[SubscriptionState, ConsumerRuntime]:
    runtime = ConsumerRuntime(ConsumerConfig(group_id=group_id))
    return runtime.subscriptions, runtime


async def test_partitions_found_later_are_read_from_their_beginning() -> None:
    state, runtime = state_of()
    state.subscribe(subscription("t"), None)

    state.topics_seen(metadata(1))
    assert runtime.fetch.positions.assigned == {A}
    assert runtime.fetch.positions[A].lookup_time is None, "the reset policy decides on the first ones"
    state.topics_seen(metadata(2))

    assert runtime.fetch.positions.assigned == {A, B}
    assert runtime.fetch.positions[B].lookup_time == EARLIEST


async def test_a_topic_with_a_passing_error_keeps_its_partitions() -> None:
    state, runtime = state_of()
    state.subscribe(subscription("t"), None)
    state.topics_seen(metadata(2))

    state.topics_seen(metadata(0, ErrorCode.LEADER_NOT_AVAILABLE))

    assert runtime.fetch.positions.assigned == {A, B}


async def test_the_metadata_of_all_topics_are_needed_for_a_pattern_only() -> None:
    state, _ = state_of()
    assert state.topics_wanted() == frozenset()
    state.subscribe(subscription("t"), None)
    assert state.topics_wanted() == frozenset({"t"})
    state.subscribe(subscription(pattern=TopicFilter("t.*")), None)
    assert state.topics_wanted() is None


async def test_partitions_assigned_by_hand_exclude_a_subscription_until_unsubscribed() -> None:
    state, runtime = state_of()
    with pytest.raises(WrongMode):
        state.check_chosen()
    state.assign([A])
    state.check_chosen()
    with pytest.raises(WrongMode):
        state.check_subscribable()

    state.unsubscribe()

    state.check_subscribable()
    assert runtime.fetch.positions.assigned == frozenset()


async def test_with_a_group_metadata_assign_nothing() -> None:
    state, runtime = state_of("billing")
    state.subscribe(subscription("t"), None)
    state.topics_seen(metadata(2))

    assert runtime.fetch.positions.assigned == frozenset()
    with pytest.raises(WrongMode):
        state.assign([A])
