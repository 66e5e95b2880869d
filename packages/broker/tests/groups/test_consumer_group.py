"""Groups of the consumer protocol: epochs, assignments, fencing, static members, expressions, replay.

The module has over 500 lines because one group has all these cases.
"""

from __future__ import annotations

import pytest

from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.members import MemberState
from ottla.broker.groups.consumer.testing import (
    REBALANCE_MS,
    SESSION_MS,
    ConsumerDriver,
    SimulatedConsumer,
    settle,
    state_of,
    topic_id,
)
from ottla.broker.groups.kinds import ExpiryRule, KindRecord, Loaded, NotWritten, TimePassed
from ottla.broker.groups.records import decode_record, encode_record
from ottla.protocol.errors import (
    ErrorCode,
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    InvalidRegularExpression,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from ottla.protocol.topics import TopicPartition

A, B = topic_id(1), topic_id(2)


def test_the_first_member_gets_every_partition() -> None:
    driver = ConsumerDriver()
    member = SimulatedConsumer(driver, "m", "a")

    answer = member.join()

    assert (answer.member_id, answer.epoch, answer.heartbeat_interval_ms) == ("m", 2, 500)
    assert member.partitions == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert driver.state == "Stable"


def test_a_member_takes_partitions_when_another_has_given_them_up() -> None:
    driver = ConsumerDriver()
    first, second = SimulatedConsumer(driver, "1", "a"), SimulatedConsumer(driver, "2", "a")
    first.join()
    second.join()
    assert second.partitions == []
    assert driver.state == "Reconciling"

    answer = first.beat()
    assert answer.epoch == 2, "it keeps its epoch until it has given up"
    assert [len(indexes) for indexes in first.assigned.values()] == [2]
    second.beat()
    assert second.partitions == []
    first.beat()
    second.beat()

    assert first.epoch == second.epoch == 3
    assert sorted(first.partitions + second.partitions) == [(1, index) for index in range(4)]
    assert driver.state == "Stable"


def test_an_answer_has_the_assignment_only_if_it_is_new_asked_for_or_unconfirmed() -> None:
    driver = ConsumerDriver()
    SimulatedConsumer(driver, "m", "a").join()
    all_of_a = {A: frozenset(range(4))}

    assert driver.heartbeat("m", 2).assignment == all_of_a, "the answer to the first heartbeat may be lost"
    assert driver.heartbeat("m", 2, owned=all_of_a).assignment is None
    assert driver.heartbeat("m", 2).assignment is None
    full = driver.heartbeat("m", 2, rebalance_timeout_ms=1, topics=frozenset("a"), owned=all_of_a)
    assert full.assignment == all_of_a
    assert driver.heartbeat("m", 2).assignment is None


def test_partitions_are_repeated_to_a_member_that_has_missed_them() -> None:
    driver = ConsumerDriver()
    first, second = SimulatedConsumer(driver, "1", "a"), SimulatedConsumer(driver, "2", "a")
    first.join()
    second.join()
    driver.heartbeat("2", second.epoch, owned={})
    first.beat()
    first.beat()
    missed = driver.heartbeat("2", second.epoch)
    assert missed.epoch == second.epoch, "the epoch does not show it that partitions came"

    repeated = driver.heartbeat("2", second.epoch)
    assert (repeated.epoch, repeated.assignment) == (missed.epoch, missed.assignment)
    assert repeated.assignment is not None
    confirmed = driver.heartbeat("2", second.epoch, owned=repeated.assignment)
    assert confirmed.assignment is None


def test_partitions_are_repeated_to_a_member_that_reports_what_it_had_in_the_last_epoch() -> None:
    driver = ConsumerDriver()
    member = SimulatedConsumer(driver, "m", "a")
    member.join()
    before, owned = member.epoch, dict(member.owned)
    driver.heartbeat("m", before, owned=owned)
    driver.publish({"a": 6})
    missed = driver.heartbeat("m", before, owned=owned)
    assert missed.epoch == before + 1

    repeated = driver.heartbeat("m", before, owned=owned)

    assert (repeated.epoch, repeated.assignment) == (missed.epoch, missed.assignment)
    assert repeated.assignment == {A: frozenset(range(6))}


def test_a_member_that_never_gives_up_its_partitions_is_removed_after_its_rebalance_timeout() -> None:
    driver = ConsumerDriver()
    first, second = SimulatedConsumer(driver, "1", "a"), SimulatedConsumer(driver, "2", "a")
    first.join()
    second.join()
    kept = dict(first.owned)
    first.beat()
    for _ in range(REBALANCE_MS // 10_000):
        driver.wait(10_000)
        if "1" in driver.consumers.members:
            driver.heartbeat("1", first.epoch, owned=kept)
        second.beat()

    settle(second)

    assert second.partitions == [(1, index) for index in range(4)]
    with pytest.raises(UnknownMemberId):
        first.beat()


def test_a_silent_member_is_removed_after_its_session() -> None:
    driver = ConsumerDriver()
    SimulatedConsumer(driver, "m", "a").join()
    driver.wait(SESSION_MS - 1)
    assert driver.group.member_count == 1

    driver.wait(1)

    assert driver.state == "Empty"
    assert driver.consumers.epoch == driver.consumers.assignment_epoch == 3


def test_a_heartbeat_begins_the_session_again() -> None:
    driver = ConsumerDriver()
    SimulatedConsumer(driver, "m", "a").join()
    for _ in range(10):
        driver.wait(SESSION_MS - 1)
        driver.heartbeat("m", 2)

    assert driver.group.member_count == 1


def test_a_deadline_whose_records_were_refused_is_due_again() -> None:
    driver = ConsumerDriver()
    SimulatedConsumer(driver, "m", "a").join()
    driver.now_ms += SESSION_MS
    driver.group.step(TimePassed(), driver.now_ms, 0)  # its records are lost
    driver.group.step(NotWritten(), driver.now_ms, 0)
    assert driver.group.member_count == 1

    driver.wait(500)

    assert driver.group.member_count == 0


# ---- fencing


@pytest.mark.parametrize("epoch", [1, 3, 2**31 - 1])
def test_a_member_of_another_epoch_is_fenced(epoch: int) -> None:
    driver = ConsumerDriver()
    SimulatedConsumer(driver, "m", "a").join()

    with pytest.raises(FencedMemberEpoch):
        driver.heartbeat("m", epoch)


def test_a_member_may_repeat_its_last_epoch_with_what_it_has_been_assigned() -> None:
    driver = ConsumerDriver()
    first, second = SimulatedConsumer(driver, "1", "a"), SimulatedConsumer(driver, "2", "a")
    first.join()
    second.join()
    settle(first, second)
    assert second.epoch == 3
    driver.publish({"a": 6})
    before, owned = second.epoch, dict(second.owned)
    first.beat()
    driver.heartbeat("2", before, owned=owned)  # the answer is lost
    assert driver.consumers.members["2"].epoch == 4

    assert driver.heartbeat("2", before, owned=owned).epoch == 4
    with pytest.raises(FencedMemberEpoch):
        driver.heartbeat("2", before, owned={A: frozenset(range(6))})
    with pytest.raises(FencedMemberEpoch):
        driver.heartbeat("2", before)


def test_a_member_that_joins_again_gets_what_it_shall_have() -> None:
    driver = ConsumerDriver()
    member = SimulatedConsumer(driver, "m", "a")
    member.join()

    answer = member.join()

    assert answer.epoch == 2
    assert len(member.partitions) == 4


def test_an_unknown_member_is_told_so() -> None:
    driver = ConsumerDriver()
    SimulatedConsumer(driver, "m", "a").join()
    for epoch in (2, -1):
        with pytest.raises(UnknownMemberId):
            driver.heartbeat("unknown", epoch)


def test_a_group_has_a_most_of_members() -> None:
    driver = ConsumerDriver(group_consumer_max_size="1")
    member = SimulatedConsumer(driver, "m", "a")
    member.join()

    with pytest.raises(GroupMaxSizeReached):
        SimulatedConsumer(driver, "other", "a").join()
    member.join()


# ---- leaving and static members


def test_partitions_of_a_member_that_leaves_go_to_the_others() -> None:
    driver = ConsumerDriver()
    members = [SimulatedConsumer(driver, name, "a") for name in "12"]
    for member in members:
        member.join()
    settle(*members)

    members[0].leave()
    settle(members[1])

    assert members[1].partitions == [(1, index) for index in range(4)]


def test_a_static_member_that_comes_back_keeps_its_partitions() -> None:
    driver = ConsumerDriver()
    first = SimulatedConsumer(driver, "1", "a", instance_id="i")
    second = SimulatedConsumer(driver, "2", "a")
    first.join()
    second.join()
    settle(first, second)
    had, epoch = first.partitions, driver.consumers.epoch

    first.leave(-2)
    second.beat()
    again = SimulatedConsumer(driver, "3", "a", instance_id="i")
    again.join()

    assert again.partitions == had
    assert driver.consumers.epoch == epoch
    assert set(driver.consumers.members) == {"2", "3"}


def test_an_instance_id_belongs_to_one_member_at_a_time() -> None:
    driver = ConsumerDriver()
    SimulatedConsumer(driver, "1", "a", instance_id="i").join()

    with pytest.raises(UnreleasedInstanceId):
        SimulatedConsumer(driver, "2", "a", instance_id="i").join()
    with pytest.raises(FencedInstanceId):
        driver.heartbeat("2", 2, instance_id="i")
    with pytest.raises(UnknownMemberId):
        driver.heartbeat("1", 2, instance_id="other")
    with pytest.raises(FencedInstanceId):
        driver.heartbeat("2", -1, instance_id="i")


def test_a_static_member_that_stays_away_is_removed_after_its_session() -> None:
    driver = ConsumerDriver()
    member = SimulatedConsumer(driver, "1", "a", instance_id="i")
    member.join()
    member.leave(-2)

    driver.wait(SESSION_MS)

    assert driver.group.member_count == 0
    assert driver.consumers.static_members == {}


# ---- topics


def test_new_partitions_raise_the_group_epoch() -> None:
    driver = ConsumerDriver()
    member = SimulatedConsumer(driver, "m", "a")
    member.join()

    driver.publish({"a": 6})
    settle(member)

    assert len(member.partitions) == 6
    assert driver.consumers.epoch == 3


def test_a_topic_that_appears_later_is_assigned_and_one_that_is_deleted_taken() -> None:
    driver = ConsumerDriver({"a": 1})
    member = SimulatedConsumer(driver, "m", "a", "later")
    member.join()
    assert member.partitions == [(1, 0)]

    driver.publish({"later": 2})
    settle(member)
    assert member.partitions == [(1, 0), (2, 0), (2, 1)]
    driver.delete("later")
    settle(member)

    assert member.partitions == [(1, 0)]


def test_a_published_topic_that_has_not_changed_raises_no_epoch() -> None:
    driver = ConsumerDriver()
    member = SimulatedConsumer(driver, "m", "a")
    member.join()

    driver.publish({"a": 4, "other": 1})
    settle(member)

    assert driver.consumers.epoch == 2


def test_a_member_gives_up_topics_that_it_does_not_read_any_more() -> None:
    driver = ConsumerDriver({"a": 2, "b": 2})
    first = SimulatedConsumer(driver, "1", "a", "b")
    first.join()

    first.topics = frozenset({"b"})
    settle(first)

    assert first.partitions == [(2, 0), (2, 1)]
    assert not driver.group.is_subscribed_to("a")
    assert driver.group.expiry_rule() == ExpiryRule(None, frozenset({"b"}))


def test_members_choose_the_assignor_of_the_group() -> None:
    driver = ConsumerDriver({"a": 3, "b": 3})
    members = [SimulatedConsumer(driver, name, "a", "b") for name in "12"]
    for member in members:
        member.join()
    settle(*members)

    for member in members:
        driver.heartbeat(member.member_id, member.epoch, assignor="range")
    settle(*members)

    assert [member.partitions for member in members] == [
        [(1, 0), (1, 1), (2, 0), (2, 1)],
        [(1, 2), (2, 2)],
    ]


def test_assignments_follow_each_other_after_their_interval() -> None:
    driver = ConsumerDriver(group_consumer_assignment_interval_ms="1000")
    first, second = SimulatedConsumer(driver, "1", "a"), SimulatedConsumer(driver, "2", "a")
    first.join()
    second.join()
    assert driver.state == "Assigning"
    driver.now_ms += 999
    first.beat()
    assert len(first.partitions) == 4

    driver.now_ms += 1
    settle(first, second)

    assert len(first.partitions) == len(second.partitions) == 2


def test_a_group_may_have_settings_of_its_own() -> None:
    driver = ConsumerDriver(group_rebalance_heartbeat_interval_ms="0")
    driver.own_settings = {"consumer.heartbeat.interval.ms": "7000", "consumer.session.timeout.ms": "50000"}

    assert SimulatedConsumer(driver, "m", "a").join().heartbeat_interval_ms == 7_000
    driver.wait(SESSION_MS)
    assert driver.group.member_count == 1
    driver.wait(5_000)
    assert driver.group.member_count == 0


# ---- expressions


def test_an_expression_reads_the_topics_that_it_matches_now_and_later() -> None:
    driver = ConsumerDriver({"a1": 1, "a2": 1, "b": 1, "xa3": 1})
    member = SimulatedConsumer(driver, "m", expression="a[0-9]")
    member.join()
    settle(member)
    assert member.partitions == [(1, 0), (2, 0)]

    driver.publish({"a4": 1})
    driver.wait(10_001)
    settle(member)
    settle(member)

    assert member.partitions == [(1, 0), (2, 0), (5, 0)]


def test_an_expression_sees_only_what_the_member_may_describe() -> None:
    driver = ConsumerDriver({"open": 1, "secret": 1})
    member = SimulatedConsumer(driver, "m", expression=".*", may_describe=lambda name: name == "open")
    member.join()
    settle(member)

    assert member.partitions == [(1, 0)]


def test_names_and_an_expression_are_read_together_and_left_apart() -> None:
    driver = ConsumerDriver({"a": 1, "b": 1})
    member = SimulatedConsumer(driver, "m", "b", expression="a")
    member.join()
    settle(member)
    assert member.partitions == [(1, 0), (2, 0)]

    member.expression = ""
    settle(member)

    assert member.partitions == [(2, 0)]
    assert driver.consumers.expressions == {}


def test_an_expression_of_several_members_is_resolved_once() -> None:
    driver = ConsumerDriver({"a": 2})
    members = [SimulatedConsumer(driver, name, expression="a|c") for name in "12"]
    for member in members:
        member.join()
    settle(*members)

    assert [len(member.partitions) for member in members] == [1, 1]
    members[0].leave()
    settle(members[1])
    assert driver.consumers.expressions.keys() == {"a|c"}
    members[1].leave()
    assert driver.consumers.expressions == {}
    assert not driver.group.is_subscribed_to("a")


@pytest.mark.parametrize("expression", ["(", "(a{1000}){1000}", "a\\", "(?=b)", "a" * 100_000])
def test_an_expression_that_re2_does_not_read_is_refused(expression: str) -> None:
    driver = ConsumerDriver()

    with pytest.raises(InvalidRegularExpression, match="SubscribedTopicRegex"):
        SimulatedConsumer(driver, "m", expression=expression).join()

    assert driver.log == []


# ---- offsets


def test_a_commit_is_of_the_present_epoch_or_of_partitions_that_are_had_since() -> None:
    driver = ConsumerDriver()
    member = SimulatedConsumer(driver, "m", "a")
    member.join()
    driver.publish({"a": 5})
    settle(member)
    check = driver.group.check_commit
    old, new = TopicPartition("a", 0), TopicPartition("a", 4)

    assert check("m", 3, None, 0, version=9, partitions=[new]) is ErrorCode.NONE
    assert check("m", 2, None, 0, version=9, partitions=[old]) is ErrorCode.NONE
    assert check("m", 2, None, 0, version=9, partitions=[new]) is ErrorCode.STALE_MEMBER_EPOCH
    assert check("m", 2, None, 0, version=9, partitions=[TopicPartition("b", 0)]) is (
        ErrorCode.STALE_MEMBER_EPOCH
    )
    assert check("m", 4, None, 0, version=9, partitions=[old]) is ErrorCode.STALE_MEMBER_EPOCH
    assert check("m", 3, None, 0, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert check("m", 3, None, 0, version=8, transactional=True) is ErrorCode.NONE
    assert check("x", 3, None, 0, version=9) is ErrorCode.UNKNOWN_MEMBER_ID
    assert check("", -1, None, 0, version=9) is ErrorCode.UNKNOWN_MEMBER_ID
    assert check("", -1, None, 0, transactional=True) is ErrorCode.NONE
    assert driver.group.check_fetch("m", 3) is ErrorCode.NONE
    assert driver.group.check_fetch("m", 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert driver.group.check_fetch("x", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.group.check_fetch(None, -1) is ErrorCode.NONE

    member.leave()
    assert check("", -1, None, 0) is ErrorCode.NONE


# ---- records


def test_the_records_are_read_as_they_were_written() -> None:
    driver = ConsumerDriver({"a": 2, "b": 1})
    members = [
        SimulatedConsumer(driver, "1", "a", expression="b", instance_id="i"),
        SimulatedConsumer(driver, "2", "a"),
    ]
    for member in members:
        member.join()
    settle(*members)

    encoded = [encode_record(record) for record in driver.log]

    assert [decode_record(record.key, record.value) for record in encoded] == driver.log
    assert state_of(driver.replayed()) == state_of(driver.consumers)


def test_a_loaded_group_goes_on_where_it_was() -> None:
    driver = ConsumerDriver()
    first, second = SimulatedConsumer(driver, "1", "a"), SimulatedConsumer(driver, "2", "a")
    first.join()
    second.join()
    first.beat()
    assert driver.consumers.members["1"].state is MemberState.UNREVOKED_PARTITIONS

    driver.group = driver.replayed()
    driver.step(Loaded())
    settle(first, second)
    assert len(first.partitions) == len(second.partitions) == 2
    driver.wait(SESSION_MS)

    assert driver.group.member_count == 0


def test_a_new_coordinator_repeats_assignments_until_they_are_confirmed() -> None:
    driver = ConsumerDriver()
    member = SimulatedConsumer(driver, "m", "a")
    member.join()
    member.beat()
    assert driver.heartbeat("m", member.epoch).assignment is None

    driver.group = driver.replayed()
    driver.step(Loaded())

    assert driver.heartbeat("m", member.epoch).assignment == member.owned
    assert driver.heartbeat("m", member.epoch, owned=member.owned).assignment is None
    assert driver.heartbeat("m", member.epoch).assignment is None


def test_tombstones_delete_the_group() -> None:
    driver = ConsumerDriver({"a": 2, "b": 1})
    SimulatedConsumer(driver, "1", "a", expression="b", instance_id="i").join()
    driver.log += driver.group.tombstones()

    replayed = driver.replayed()

    assert replayed.is_unused
    assert state_of(replayed) == state_of(ConsumerGroup("g", driver.surroundings)) | {"assignment": (-1, 0)}


def test_records_in_the_order_that_compaction_leaves_make_the_same_group() -> None:
    driver = ConsumerDriver()
    members = [SimulatedConsumer(driver, name, "a") for name in "123"]
    for member in members:
        member.join()
        settle(*[present for present in members if present.epoch])
    last: dict[bytes, KindRecord] = {}
    for record in driver.log:
        key = encode_record(record).key
        last.pop(key, None)
        last[key] = record
    driver.log = list(last.values())

    assert state_of(driver.replayed()) == state_of(driver.consumers)


@pytest.mark.parametrize("members", [300])
def test_the_assignment_of_a_large_group_is_made_in_steps(members: int) -> None:
    driver = ConsumerDriver({"a": 2 * members})
    consumers = [SimulatedConsumer(driver, f"m{number}", "a") for number in range(members)]
    for consumer in consumers:
        consumer.join()
    settle(*consumers)
    driver.holds_work = True
    driver.publish({"a": 3 * members})
    consumers[0].beat()
    assert driver.state == "Assigning"
    assert len(driver.work) == 1
    consumers[1].beat()
    assert len(driver.work) == 1, "one assignment is made at a time"
    consumers[2].leave()

    driver.holds_work = False
    settle(*consumers[:2], *consumers[3:])

    counts = [len(consumer.partitions) for number, consumer in enumerate(consumers) if number != 2]
    assert sum(counts) == 3 * members
    assert max(counts) - min(counts) <= 1
    assert state_of(driver.replayed()) == state_of(driver.consumers)
