"""Share groups: members, epochs, assignments, initialized partitions, and the assignor `simple`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from operator import attrgetter
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.config import broker_config_from
from ottla.broker.groups.early_heartbeats import EarlyHeartbeats
from ottla.broker.groups.kinds import (
    GroupLimits,
    GroupSurroundings,
    KindRecord,
    Loaded,
    NotWritten,
    TimePassed,
)
from ottla.broker.groups.share.assignor import assign
from ottla.broker.groups.share.events import (
    OffsetsChange,
    OffsetsDeleted,
    ShareAnswer,
    ShareHeartbeat,
    StateInitialized,
)
from ottla.broker.groups.share.group import ShareGroup
from ottla.broker.groups.testing import FakeTopics
from ottla.broker.runtime.loop_budget import at_once
from ottla.protocol.errors import (
    FencedMemberEpoch,
    GroupMaxSizeReached,
    NonEmptyGroup,
    UnknownMemberId,
)
from ottla.protocol.stored_groups import decode_record, key_bytes

A, B = UUID(int=1), UUID(int=2)
IDS = {"a": A, "b": B}


class Driver:
    """A group with a clock, whose records are replayed and kept."""

    def __init__(self, topics: Mapping[str, int] | None = None, **settings: str) -> None:
        self.topics = FakeTopics()
        self.publish({"a": 4} if topics is None else topics)
        named = {"group.share.assignment.interval.ms": "0"}
        named |= {key.replace("_", "."): value for key, value in settings.items()}
        self.own_settings: dict[str, str] = {}
        config = broker_config_from({"log.dirs": "/nowhere", **named})
        early = EarlyHeartbeats(config.group_rebalance_heartbeat_interval_ms)
        self.surroundings = GroupSurroundings(
            config=config,
            limits=GroupLimits(),
            group_settings=lambda _: self.own_settings,
            metadata=self.topics.metadata,
            random=random.Random(1),
            early=lambda: early,
        )
        self.group = ShareGroup("g", self.surroundings)
        self.now_ms = 0.0
        self.log: list[Any] = []

    def publish(self, topics: Mapping[str, int]) -> None:
        self.topics.publish_partitions({name: (IDS[name], count) for name, count in topics.items()})
        if hasattr(self, "group"):
            self.group.topics_changed(frozenset(topics))

    def step(self, event: object) -> Any:
        outcome = self.group.step(event, self.now_ms, int(self.now_ms) + 1)
        self.log += outcome.records
        for record in outcome.records:
            self.group.replay(record)
        return outcome.replies[0].result if outcome.replies else None

    def beat(self, member: str, epoch: int, *topics: str) -> ShareAnswer:
        names = frozenset(topics) if topics else None
        answer: ShareAnswer = self.step(ShareHeartbeat(member_id=member, epoch=epoch, topics=names))
        if answer.to_initialize:
            self.step(StateInitialized(answer.to_initialize))
        return answer

    def join(self, member: str, *topics: str) -> ShareAnswer:
        """Join, and heartbeat until the member has what it shall have."""
        answer = self.beat(member, 0, *(topics or ("a",)))
        for _ in range(5):
            answer = self.beat(member, answer.epoch)
        return self.beat(member, answer.epoch, *(topics or ("a",)))

    def assigned(self, member: str) -> dict[UUID, frozenset[int]]:
        return dict(self.group.members[member].assigned)

    def replayed(self) -> ShareGroup:
        """The group that another coordinator makes of the log."""
        other = ShareGroup("g", self.surroundings)
        for record in self.log:
            assert isinstance(record, KindRecord)
            value = None if record.value is None else record.value.to_bytes(0)
            other.replay(KindRecord("g", *decode_record(key_bytes(record.key), value)))
        return other


def test_a_member_gets_partitions_once_their_state_has_begun() -> None:
    driver = Driver()

    first = driver.step(ShareHeartbeat(member_id="m", epoch=0, topics=frozenset({"a"})))
    assert (first.epoch, first.assignment, first.state_epoch) == (2, {}, 2)
    assert first.to_initialize == {A: frozenset(range(4))}
    waiting = driver.step(ShareHeartbeat(member_id="m", epoch=2))
    assert (waiting.epoch, waiting.assignment, waiting.to_initialize) == (2, None, {})

    driver.step(StateInitialized(first.to_initialize))
    after = driver.step(ShareHeartbeat(member_id="m", epoch=2))
    assert (after.epoch, after.assignment) == (3, {A: frozenset(range(4))})
    assert driver.step(ShareHeartbeat(member_id="m", epoch=3)).assignment is None


def test_a_changed_topic_is_noticed_although_the_records_of_the_first_heartbeat_were_refused() -> None:
    driver = Driver({"a": 4, "b": 2})
    epoch = driver.join("m", "a", "b").epoch
    driver.topics.metadata.forget("b")
    driver.group.topics_changed(frozenset({"b"}))
    beat = ShareHeartbeat(member_id="m", epoch=epoch)
    assert driver.group.step(beat, driver.now_ms, 1).records
    driver.group.step(NotWritten(), driver.now_ms, 1)

    assert driver.beat("m", epoch).epoch == epoch + 1
    assert driver.assigned("m") == {A: frozenset(range(4))}


def test_a_beginning_that_failed_is_asked_for_again() -> None:
    driver = Driver()
    first = driver.step(ShareHeartbeat(member_id="m", epoch=0, topics=frozenset({"a"})))

    driver.step(StateInitialized(first.to_initialize, has_failed=True))

    assert driver.step(ShareHeartbeat(member_id="m", epoch=2)).to_initialize == first.to_initialize


def test_a_beginning_without_an_outcome_is_asked_for_again_after_a_time() -> None:
    driver = Driver()
    first = driver.step(ShareHeartbeat(member_id="m", epoch=0, topics=frozenset({"a"})))
    driver.now_ms = 30_000

    assert driver.step(ShareHeartbeat(member_id="m", epoch=2)).to_initialize == first.to_initialize


def test_a_beginning_that_failed_is_asked_for_again_after_the_member_read_others() -> None:
    driver = Driver({"a": 4, "b": 2})
    driver.join("m", "a")
    wanted = {B: frozenset(range(2))}
    for topic, asked in (("b", wanted), ("a", {}), ("b", wanted)):
        epoch = driver.group.members["m"].epoch
        answer = driver.step(ShareHeartbeat(member_id="m", epoch=epoch, topics=frozenset({topic})))
        assert answer.to_initialize == asked
        driver.step(StateInitialized(asked, has_failed=True))
        again = driver.step(ShareHeartbeat(member_id="m", epoch=answer.epoch))
        assert again.to_initialize == asked
        driver.step(StateInitialized(asked, has_failed=True))


def test_members_share_partitions_where_there_are_more_of_them() -> None:
    driver = Driver({"a": 2})
    for member in ("m1", "m2", "m3"):
        driver.join(member)
    for member in ("m1", "m2", "m3"):
        driver.beat(member, driver.group.members[member].epoch)

    parts = [driver.assigned(member)[A] for member in ("m1", "m2", "m3")]
    assert frozenset().union(*parts) == {0, 1}
    assert all(parts)


def test_a_member_that_is_silent_leaves_and_its_partitions_go_to_the_others() -> None:
    driver = Driver()
    driver.join("m1")
    driver.join("m2")
    driver.now_ms = 44_000
    driver.beat("m2", driver.group.members["m2"].epoch)
    driver.now_ms = 45_001
    driver.step(TimePassed())

    assert list(driver.group.members) == ["m2"]
    driver.beat("m2", driver.group.members["m2"].epoch)
    assert driver.assigned("m2") == {A: frozenset(range(4))}


def test_a_member_that_leaves_is_gone() -> None:
    driver = Driver()
    driver.join("m")

    assert driver.beat("m", -1).epoch == -1
    assert driver.group.is_empty
    with pytest.raises(UnknownMemberId):
        driver.beat("m", 1)
    with pytest.raises(UnknownMemberId):
        driver.beat("m", -1)


@pytest.mark.parametrize("epoch", [7, 2**31 - 1, -7])
def test_epochs_of_the_past_and_of_the_future_are_fenced(epoch: int) -> None:
    driver = Driver()
    driver.join("m")

    with pytest.raises(FencedMemberEpoch):
        driver.beat("m", epoch)


def test_a_lost_answer_does_not_fence_its_member() -> None:
    driver = Driver()
    driver.join("m")
    member = driver.group.members["m"]

    assert driver.beat("m", member.previous_epoch).epoch == member.epoch


def test_a_full_group_takes_no_other_member() -> None:
    driver = Driver(group_share_max_size="1")
    driver.join("m1")

    with pytest.raises(GroupMaxSizeReached):
        driver.beat("m2", 0, "a")


def test_a_topic_that_grows_gets_its_new_partitions_assigned() -> None:
    driver = Driver()
    driver.join("m")
    driver.publish({"a": 6})
    for _ in range(4):
        driver.beat("m", driver.group.members["m"].epoch)

    assert driver.assigned("m") == {A: frozenset(range(6))}


def test_a_deleted_topic_is_assigned_no_more() -> None:
    driver = Driver({"a": 2, "b": 2})
    driver.join("m", "a", "b")
    assert driver.assigned("m") == {A: frozenset({0, 1}), B: frozenset({0, 1})}
    driver.topics.metadata.forget("b")
    driver.group.topics_changed(frozenset({"b"}))
    for _ in range(3):
        driver.beat("m", driver.group.members["m"].epoch)

    assert driver.assigned("m") == {A: frozenset({0, 1})}


def test_offsets_change_without_members_and_in_a_later_epoch_than_theirs() -> None:
    driver = Driver()
    driver.join("m")
    used = driver.group.epoch
    with pytest.raises(NonEmptyGroup):
        driver.step(OffsetsChange({A: frozenset({0})}))
    driver.beat("m", -1)

    assert driver.step(OffsetsChange({A: frozenset({7})})) == driver.group.epoch > used
    assert driver.group.partitions.initializing[A] == {7}
    driver.step(StateInitialized({A: frozenset({7})}))
    assert driver.group.partitions.initialized[A] == {0, 1, 2, 3, 7}
    driver.step(OffsetsDeleted(frozenset({A})))
    assert driver.group.partitions.initialized == {}


def test_the_group_is_what_its_records_make_of_it() -> None:
    driver = Driver({"a": 3, "b": 2})
    driver.join("m1", "a")
    driver.join("m2", "a", "b")
    driver.beat("m1", -1)
    driver.beat("m2", driver.group.members["m2"].epoch)

    other = driver.replayed()
    for name in (
        "epoch",
        "assignment_epoch",
        "metadata_hash",
        "members",
        "targets",
        "partitions.initialized",
        "partitions.initializing",
    ):
        of = attrgetter(name)
        assert of(other) == of(driver.group), name
    for record in driver.group.tombstones():
        other.replay(record)
    assert other.is_unused or other.members == {}


def test_loaded_members_have_a_whole_session() -> None:
    driver = Driver()
    driver.join("m")
    other = driver.replayed()

    other.step(Loaded(), 100_000, 0)

    assert other.wake_at_ms == 145_000


def test_a_group_may_have_settings_of_its_own() -> None:
    driver = Driver(group_rebalance_heartbeat_interval_ms="0")
    driver.own_settings = {"share.session.timeout.ms": "50000", "share.heartbeat.interval.ms": "7000"}

    assert driver.beat("m", 0, "a").heartbeat_interval_ms == 7000
    assert driver.group.wake_at_ms == 50_000


def test_members_are_told_a_short_heartbeat_interval_while_the_group_is_in_motion() -> None:
    driver = Driver()
    joined = driver.step(ShareHeartbeat(member_id="m", epoch=0, topics=frozenset({"a"})))
    assert joined.heartbeat_interval_ms == 500
    driver.step(StateInitialized(joined.to_initialize))
    driver.now_ms += 10_000

    got = driver.beat("m", joined.epoch)
    assert (got.epoch, got.heartbeat_interval_ms) == (3, 500), "another may join as well"
    driver.now_ms += 9_999
    assert driver.beat("m", 3).heartbeat_interval_ms == 500
    driver.now_ms += 1

    assert driver.beat("m", 3).heartbeat_interval_ms == 5_000


# ---- the assignor


@pytest.mark.parametrize("seed", range(300))
def test_assignments_are_complete_and_balanced_and_keep_what_they_can(seed: int) -> None:
    chance = random.Random(seed)
    topics = {UUID(int=number): range(chance.randint(1, 9)) for number in range(1, chance.randint(2, 5))}
    members = [f"m{number}" for number in range(chance.randint(1, 12))]
    same = chance.random() < 0.5
    subscriptions = {
        member: frozenset(topics)
        if same
        else frozenset(chance.sample(list(topics), chance.randint(1, len(topics))))
        for member in members
    }
    first = at_once(assign(subscriptions, topics, {}))
    read = {topic for wanted in subscriptions.values() for topic in wanted}
    found = {
        (topic, number) for mine in first.values() for topic, numbers in mine.items() for number in numbers
    }

    assert found == {(topic, number) for topic in read for number in topics[topic]}, f"seed {seed}"
    assert all(mine.keys() <= subscriptions[member] for member, mine in first.items()), f"seed {seed}"
    if same:
        sizes = [sum(map(len, mine.values())) for mine in first.values()]
        assert max(sizes) - min(sizes) <= 1, f"seed {seed}: {sizes}"
    assert at_once(assign(subscriptions, topics, first)) == first, f"seed {seed}: not sticky"
