"""Groups of thousands of members: what one step does is bounded, by what it touches and what it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.coordinators.testing import MemoryStore, in_virtual_time
from ottla.broker.groups.assigned.assignors import in_parts
from ottla.broker.groups.classic.events import GroupSnapshot, MemberSnapshot
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.consumer.heartbeats import ConsumerHeartbeat
from ottla.broker.groups.consumer.members import (
    ClassicProtocols,
    ConsumerMember,
    epoch_record,
    member_record,
)
from ottla.broker.groups.consumer.migration import MOST_MEMBERS, may_downgrade, refuse_upgrade
from ottla.broker.groups.consumer.target_assignments import ASSIGN
from ottla.broker.groups.consumer.testing import ConsumerDriver, SimulatedConsumer, state_of, topic_id
from ottla.broker.groups.kinds import GroupKind, GroupLimits, Loaded, TimePassed, WorkFailed
from ottla.broker.groups.share import members as share_members
from ottla.broker.groups.share.events import ShareHeartbeat, StateInitialized
from ottla.broker.groups.share.group import MANY_PARTITIONS, ShareGroup
from ottla.broker.groups.streams import records as streams_records
from ottla.broker.groups.streams.members import StreamsMember
from ottla.broker.groups.streams.records import GroupFacts
from ottla.broker.groups.streams.testing import StreamsDriver
from ottla.broker.groups.testing import leading
from ottla.broker.runtime.loop_budget import SLICE, at_once
from ottla.protocol.errors import ErrorCode, GroupIdNotFound

MEMBERS = 1_000
LATE_MS = 10_000_000.0
RECORDS_OF_A_MEMBER = 3


class NeverWalked(dict[str, Any]):
    """Members that are looked up one by one only."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a walk over all members")

    def values(self) -> Any:
        raise AssertionError("a walk over all members")

    items = values


# ---- members that fall silent together


def consumers() -> Any:
    group = ConsumerDriver().consumers
    for number in range(MEMBERS):
        group.replay(member_record("g", ConsumerMember(member_id=f"m{number}", topics=frozenset("a"))))
    group.replay(epoch_record("g", 5, 0))
    return group


def share_consumers() -> Any:
    group = ShareGroup("g", ConsumerDriver().surroundings)
    for number in range(MEMBERS):
        member = share_members.ShareMember(member_id=f"m{number}", topics=frozenset("a"))
        group.replay(share_members.member_record("g", member))
    group.replay(share_members.epoch_record("g", 5, 0))
    return group


def streams_members() -> Any:
    group = StreamsDriver().group
    for number in range(MEMBERS):
        group.replay(
            streams_records.member_record("g", StreamsMember(id=f"m{number}", rebalance_timeout_ms=1))
        )
    group.replay(streams_records.group_record("g", GroupFacts(epoch=5)))
    return group


@pytest.mark.parametrize("loaded", [consumers, share_consumers, streams_members])
def test_members_that_fall_silent_together_are_removed_in_steps_that_write_little(
    loaded: Callable[[], Any],
) -> None:
    group = loaded()
    group.step(Loaded(), 0.0, 1)
    assert group.member_count == MEMBERS
    steps = 0

    while group.member_count:
        assert group.wake_at_ms <= LATE_MS
        outcome = group.step(TimePassed(), LATE_MS, 1)
        assert len(outcome.records) <= RECORDS_OF_A_MEMBER * SLICE + 2
        for record in outcome.records:
            group.replay(record)
        steps += 1

    assert steps == -(-MEMBERS // SLICE)
    assert group.state.value == "Empty"


def test_of_members_that_read_thousands_of_topics_a_few_are_removed_in_a_step() -> None:
    group = ConsumerDriver().consumers
    for number in range(20):
        topics = frozenset(f"t{index}" for index in range(2_000) if index != number)
        group.replay(member_record("g", ConsumerMember(member_id=f"m{number}", topics=topics)))
    group.replay(epoch_record("g", 5, 0))
    group.step(Loaded(), 0.0, 1)
    left = []

    while group.member_count:
        assert group.wake_at_ms is not None
        assert group.wake_at_ms <= LATE_MS
        for record in group.step(TimePassed(), LATE_MS, 1).records:
            group.replay(record)
        left.append(group.member_count)

    assert left == list(range(18, -1, -2))
    assert not group.readers.topics()


# ---- groups that move between the protocols


def a_group_of_classic_members(count: int) -> Group:
    members = tuple(
        MemberSnapshot(
            member_id=f"m{number}", client_id="", client_host="", rebalance_timeout_ms=1,
            session_timeout_ms=1, subscription=b"", assignment=b"",
        )
        for number in range(count)
    )  # fmt: skip
    snapshot = GroupSnapshot(group_id="g", generation=1, protocol_type="consumer", members=members)
    return Group.restore(snapshot, GroupLimits())


def test_a_classic_group_of_more_members_than_one_batch_may_have_is_not_upgraded() -> None:
    refuse_upgrade(a_group_of_classic_members(MOST_MEMBERS), "upgrade", 1_000_000)

    with pytest.raises(GroupIdNotFound, match=r"it has 1001 members.* 1000"):
        refuse_upgrade(a_group_of_classic_members(MOST_MEMBERS + 1), "upgrade", 1_000_000)


def test_as_many_classic_members_stay_in_a_consumer_group_when_the_last_other_one_leaves() -> None:
    group = ConsumerDriver().consumers
    last = ConsumerMember(member_id="last")
    classic = ClassicProtocols(1, (("range", b""),))
    for number in range(MOST_MEMBERS):
        group.replay(member_record("g", ConsumerMember(member_id=f"m{number}", classic=classic)))
    group.replay(member_record("g", last))
    assert may_downgrade(group, [last])

    group.replay(member_record("g", ConsumerMember(member_id="more", classic=classic)))

    assert not may_downgrade(group, [last])
    outcome = group.step(ConsumerHeartbeat(member_id="last", epoch=-1), 0.0, 1)
    assert outcome.successor is None
    for record in outcome.records:
        group.replay(record)
    assert group.member_count == MOST_MEMBERS + 1


# ---- the state of a group


def test_the_state_of_a_group_is_known_without_a_walk_over_its_members() -> None:
    driver = ConsumerDriver()
    members = [SimulatedConsumer(driver, name, "a") for name in "123"]
    for member in members:
        member.join()
    states = []
    for number in range(12):
        group = driver.consumers
        group.members, kept = NeverWalked(group.members), group.members
        states.append(driver.state)
        group.members = kept
        is_stable = all(member.is_reconciled_to(group.assignment_epoch) for member in kept.values())
        assert (states[-1] == "Stable") is is_stable
        for member in members:
            member.beat()
        if number == 6:
            driver.heartbeat("1", members[0].epoch, rack_id="another")

    assert {"Reconciling", "Stable"} <= set(states)
    assert states[-1] == "Stable"


# ---- expressions


@pytest.mark.parametrize("expression", ["", "t.*"])
def test_an_assignment_is_made_in_steps_where_few_members_read_many_topics(expression: str) -> None:
    names = {f"t{number}": 1 for number in range(1_000)}
    driver = ConsumerDriver(names)
    for number in range(12):
        if expression:
            SimulatedConsumer(driver, f"m{number}", expression=f"{expression}|{number}").join()
        else:
            SimulatedConsumer(driver, f"m{number}", *names).join()
        driver.now_ms += 20_000
    driver.holds_work = True

    driver.heartbeat("last", 0, topics=frozenset({"t1"}), owned={})

    assert [work.name for work in driver.work] == [ASSIGN]


def test_members_that_read_a_topic_keep_its_name_once() -> None:
    group = ConsumerDriver().consumers
    for number in range(2):
        topics = frozenset({"".join(["a", " topic"])})
        group.replay(member_record("g", ConsumerMember(member_id=f"m{number}", topics=topics)))

    first, second = ([*member.topics] for member in group.members.values())

    assert first[0] is second[0]


def test_expressions_that_match_the_same_topics_keep_them_once_also_after_a_load() -> None:
    driver = ConsumerDriver({f"t{number}": 1 for number in range(50)})
    for number in range(20):
        SimulatedConsumer(driver, f"m{number}", expression=f".*|x{number}").join()
        driver.now_ms += 20_000
    driver.now_ms += 1_000_000

    for group in (driver.consumers, driver.replayed()):
        found = [known.topics for known in group.expressions.values()]
        assert len(found) >= 10
        assert len(found[0]) == 50
        assert all(topics is found[0] for topics in found)


def test_expressions_are_stored_in_parts_and_begin_one_group_epoch() -> None:
    driver = ConsumerDriver({f"t{number}": 1 for number in range(300)})
    members = [SimulatedConsumer(driver, f"m{number}", expression=f".*|x{number}") for number in range(30)]
    for member in members:
        member.join()
    driver.holds_work, driver.now_ms = True, 20_000
    members[0].beat()
    before = driver.consumers.epoch
    (work,) = driver.work
    parts = list(work.events(at_once(work.steps())))
    assert len(parts) >= 5

    for part in parts:
        assert driver.consumers.resolves
        outcome = driver.step(part)
        names = sum(len(getattr(record.value, "topics", ())) for record in outcome.records)
        assert names <= 8 * SLICE + 300
        assert len(driver.work) == 1, "a search for topics that has not ended begins no other"
        members[1].beat()

    assert not driver.consumers.resolves
    assert driver.consumers.epoch == before + 1
    assert len(driver.consumers.expressions) == 30
    assert state_of(driver.replayed()) == state_of(driver.consumers)


# ---- share groups


class CountedTopics:
    """The topics of a group, and how often it has asked for one of them."""

    def __init__(self, topics: Any) -> None:
        self._topics = topics
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        return getattr(self._topics, name)


class ShareDriver(ConsumerDriver):
    """A share group of the same topics."""

    def __init__(self, topics: dict[str, int]) -> None:
        super().__init__(topics, group_share_assignment_interval_ms="0", group_share_max_size="1000")
        self.group = ShareGroup("g", self.surroundings)

    @property
    def shares(self) -> ShareGroup:
        assert isinstance(self.group, ShareGroup)
        return self.group

    def beat(self, member_id: str, epoch: int, *topics: str) -> int:
        names = frozenset(topics) or None
        outcome = self.step(ShareHeartbeat(member_id=member_id, epoch=epoch, topics=names))
        answer = outcome.replies[0].result
        if answer.to_initialize:
            self.step(StateInitialized(answer.to_initialize))
        found: int = answer.epoch
        return found


def test_a_heartbeat_that_changes_nothing_walks_over_neither_members_nor_topics() -> None:
    topics = [f"t{number}" for number in range(500)]
    driver = ShareDriver(dict.fromkeys(topics, 2))
    epochs = {name: driver.beat(name, 0, *topics) for name in ("m1", "m2", "m3")}
    for _ in range(6):
        epochs = {name: driver.beat(name, epoch) for name, epoch in epochs.items()}
    group: Any = driver.shares
    group.topics = counted = CountedTopics(group.topics)
    group.members, group.targets = NeverWalked(group.members), NeverWalked(group.targets)

    for name, epoch in epochs.items():
        outcome = driver.step(ShareHeartbeat(member_id=name, epoch=epoch))
        assert outcome.records == []

    assert counted.asked == 0


def test_a_large_assignment_of_shares_is_made_in_steps_while_heartbeats_go_on() -> None:
    driver = ShareDriver({"a": MANY_PARTITIONS + 200})
    driver.holds_work = True
    epochs = {name: driver.beat(name, 0, "a") for name in ("m1", "m2", "m3")}
    epochs = {name: driver.beat(name, epoch) for name, epoch in epochs.items()}
    (work,) = driver.work
    steps = work.steps()
    for _ in range(10):
        next(steps)
    epochs = {name: driver.beat(name, epoch) for name, epoch in epochs.items()}
    assert len(driver.work) == 1, "one assignment is made at a time"
    assert not any(driver.shares.targets.values())
    driver.beat("m3", -1)

    count = 10
    while True:
        try:
            next(steps)
        except StopIteration as end:
            changed = end.value
            break
        count += 1
    for part in work.events(changed):
        driver.step(part)
    driver.holds_work = False
    driver.work.clear()
    del epochs["m3"]
    for _ in range(6):
        epochs = {name: driver.beat(name, epoch) for name, epoch in epochs.items()}

    assert count >= MANY_PARTITIONS / SLICE
    parts = [driver.shares.members[name].assigned[topic_id(1)] for name in epochs]
    assert sorted(number for numbers in parts for number in numbers) == list(range(MANY_PARTITIONS + 200))


def test_an_assignment_whose_work_failed_is_made_again() -> None:
    driver = ShareDriver({"a": MANY_PARTITIONS + 200})
    driver.holds_work = True
    epoch = driver.beat("m1", driver.beat("m1", 0, "a"))
    (work,) = driver.work
    driver.work.clear()

    driver.step(WorkFailed(work.name))
    driver.beat("m1", epoch)

    assert [again.name for again in driver.work] == [work.name]


# ---- parts


def test_an_assignment_is_written_in_parts_by_its_members_and_by_its_partitions() -> None:
    targets = {f"m{number}": {UUID(int=1): frozenset({number})} for number in range(MEMBERS)}
    targets |= {f"l{number}": {UUID(int=2): frozenset(range(20_000))} for number in range(3)}

    parts = list(in_parts(targets, 7))

    assert [target for part in parts for target in part.targets] == list(targets.items())
    assert [part.epoch for part in parts] == [None] * (len(parts) - 1) + [7]
    assert max(len(part.targets) for part in parts) <= SLICE
    assert all(sum(name.startswith("l") for name, _ in part.targets) <= 1 for part in parts)


# ---- hosting


@in_virtual_time
async def test_a_group_that_has_another_one_in_its_place_is_not_looked_for_by_its_name() -> None:
    async with leading(MemoryStore()) as groups:
        hosted = groups._hosted
        partition = hosted.partition_for("g")
        assert not isinstance(partition, ErrorCode)
        gone = hosted.find_or_create(partition, "g", GroupKind.CONSUMER)
        assert gone is not None
        hosted.drop_if_unused(gone)
        present = hosted.find_or_create(partition, "g", GroupKind.CONSUMER)
        assert present is not gone

        hosted.drop_if_unused(gone)

        assert partition.state.groups["g"] is present
