import pytest

from ottla.broker.groups.classic.events import (
    GroupState,
    MemberIdentity,
    Reason,
)
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.kinds import GroupLimits, Loaded, Removed, Unloaded
from ottla.broker.groups.testing import NO_DELAY, REBALANCE_MS, SESSION_MS, GroupDriver
from ottla.protocol.errors import ErrorCode


def test_heartbeats_keep_a_member_alive() -> None:
    driver = GroupDriver()
    (member,) = driver.stable(1)

    for _ in range(10):
        driver.wait(SESSION_MS - 1)
        assert driver.heartbeat(member) is ErrorCode.NONE


def test_a_member_without_heartbeats_is_removed_and_the_others_rebalance() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
    driver.wait(SESSION_MS / 2)
    driver.heartbeat(first)

    driver.wait(SESSION_MS / 2)

    assert driver.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("member", "generation", "error"),
    [
        ("nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, 0, ErrorCode.ILLEGAL_GENERATION),
        (None, 1, ErrorCode.NONE),
    ],
)
def test_a_heartbeat_is_checked(member: str | None, generation: int, error: ErrorCode) -> None:
    driver = GroupDriver()
    (alive,) = driver.stable(1)

    assert driver.heartbeat(member or alive, generation) is error


def test_the_last_member_to_leave_empties_the_group_in_the_log() -> None:
    driver = GroupDriver()
    members = driver.stable(2)

    assert driver.leave(*members) == [ErrorCode.NONE] * 2

    assert driver.group.state is GroupState.EMPTY
    assert driver.persisted[-1].reason is Reason.EMPTIED
    assert driver.persisted[-1].snapshot.members == ()
    assert driver.persisted[-1].snapshot.protocol_type == "consumer"


def test_leaving_tells_each_member_its_own_error() -> None:
    driver = GroupDriver()
    first, _ = driver.stable(2)

    assert driver.leave(first, "nobody") == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_pending_member_id_may_leave_before_it_joins() -> None:
    driver = GroupDriver()
    (leader,) = driver.stable(1)
    pending = driver.joined(driver.join(require_id=True)).member_id
    rejoin = driver.join(leader)

    assert driver.leave(pending) == [ErrorCode.NONE]

    assert driver.joined(rejoin).generation == 2


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    driver = GroupDriver()
    first, _second = driver.stable(2)
    waiting = driver.join(first)

    driver.leave(first)

    assert driver.joined(waiting).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_keeps_its_assignment_over_a_restart() -> None:
    driver = GroupDriver()
    old, other = (driver.join(instance_id=name) for name in ("one", "two"))
    driver.wait(0)
    old_id, other_id = driver.joined(old).member_id, driver.joined(other).member_id
    driver.sync(old_id, assignments={old_id: b"first", other_id: b"second"})
    driver.sync(other_id)

    driver.hold_writes = True
    token = driver.join(instance_id="two")
    assert token not in driver.answers
    driver.written()

    answer = driver.joined(token)
    assert (answer.error, answer.generation, answer.leader_id) == (ErrorCode.NONE, 1, old_id)
    assert answer.member_id not in (other_id, "")
    assert driver.persisted[-1].reason is Reason.STATIC_MEMBER_REPLACED
    assert driver.group.state is GroupState.STABLE
    synced = driver.synced(driver.sync(answer.member_id, instance_id="two"))
    assert synced.assignment == b"second"


def test_the_member_that_a_static_one_replaced_is_fenced() -> None:
    driver = GroupDriver()
    (old,) = driver.stable(1, instance_id="one")
    new = driver.joined(driver.join(instance_id="one")).member_id

    assert driver.heartbeat(old, instance_id="one") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.joined(driver.join(old, instance_id="one")).error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.synced(driver.sync(old, instance_id="one")).error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.leave(MemberIdentity(old, "one")) == [ErrorCode.FENCED_INSTANCE_ID]
    assert driver.group.check_commit(old, 1, "one", driver.now_ms) is ErrorCode.FENCED_INSTANCE_ID
    assert driver.heartbeat(new, instance_id="one") is ErrorCode.NONE


def test_a_static_leader_that_restarts_stays_leader_but_does_not_assign() -> None:
    driver = GroupDriver()
    (old,) = driver.stable(1, instance_id="one")

    answer = driver.joined(driver.join(instance_id="one"))

    assert (answer.leader_id, answer.members) == (old, ())
    assert driver.group.leader_id == answer.member_id


def test_a_static_leader_that_restarts_and_may_skip_the_assignment_is_told_who_it_is() -> None:
    driver = GroupDriver()
    (old,) = driver.stable(1, instance_id="one")

    answer = driver.joined(driver.join(instance_id="one", may_skip_assignment=True))

    assert answer.member_id != old
    assert answer.leader_id == answer.member_id
    assert answer.skip_assignment
    assert [one.member_id for one in answer.members] == [answer.member_id]


def test_a_static_member_that_may_skip_the_assignment_and_does_not_lead_is_not_told_to() -> None:
    driver = GroupDriver()
    tokens = [driver.join(instance_id=name) for name in ("one", "two")]
    driver.wait(0)
    leader, member = (driver.joined(token) for token in tokens)
    assert leader.leader_id == leader.member_id
    driver.sync(leader.member_id, assignments={leader.member_id: b"1", member.member_id: b"2"})

    answer = driver.joined(driver.join(instance_id="two", may_skip_assignment=True))

    assert (answer.leader_id, answer.skip_assignment, answer.members) == (leader.member_id, False, ())


def test_a_static_member_whose_new_id_cannot_be_written_keeps_the_old_one() -> None:
    driver = GroupDriver()
    (old,) = driver.stable(1, instance_id="one")
    driver.hold_writes = True
    token = driver.join(instance_id="one", session_ms=20_000)

    driver.written(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    assert driver.joined(token).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.heartbeat(old, instance_id="one") is ErrorCode.NONE
    assert driver.group.members[old].session_timeout_ms == SESSION_MS
    assert driver.group.leader_id == old


def test_a_static_member_that_joins_again_during_a_rebalance_fences_its_old_request() -> None:
    driver = GroupDriver()
    (other,) = driver.stable(1)
    waiting = driver.join(instance_id="one")

    token = driver.join(instance_id="one")

    assert driver.joined(waiting).error is ErrorCode.FENCED_INSTANCE_ID
    driver.join(other)
    assert driver.joined(token).generation == 2


def test_a_static_member_that_joins_again_before_the_assignment_starts_a_rebalance() -> None:
    driver = GroupDriver()
    first, second = driver.join(instance_id="one"), driver.join(instance_id="two")
    driver.wait(0)
    waiting = driver.sync(driver.joined(second).member_id, instance_id="two")

    driver.join(instance_id="two")

    assert driver.synced(waiting).error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert driver.joined(first).error is ErrorCode.NONE


def test_static_members_are_not_removed_by_a_rebalance_they_missed() -> None:
    driver = GroupDriver()
    static = driver.join(instance_id="one", session_ms=600_000)
    dynamic = driver.join()
    driver.wait(0)
    static_id, dynamic_id = driver.joined(static).member_id, driver.joined(dynamic).member_id
    driver.sync(static_id, assignments={})
    driver.sync(dynamic_id)
    driver.join(dynamic_id, protocols=(("range", b"changed"),))

    driver.wait(REBALANCE_MS)

    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    assert static_id in driver.group.members
    assert driver.group.leader_id == dynamic_id


def test_a_group_of_absent_static_members_waits_until_their_sessions_end() -> None:
    driver = GroupDriver()
    first, second = (driver.join(instance_id=name, session_ms=300_000) for name in ("one", "two"))
    driver.wait(0)
    ids = [driver.joined(first).member_id, driver.joined(second).member_id]
    driver.sync(ids[0], assignments={})
    driver.sync(ids[1])
    driver.leave(MemberIdentity(ids[0], "one"))

    driver.wait(REBALANCE_MS * 2)
    assert driver.group.state.value == "PreparingRebalance"
    assert ids[1] in driver.group.members

    driver.wait(300_000)
    assert driver.group.state is GroupState.EMPTY


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    driver = GroupDriver()
    driver.stable(1, instance_id="one")

    errors = driver.leave(MemberIdentity("", "one"), MemberIdentity("", "two"))

    assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.group.state is GroupState.EMPTY


@pytest.mark.parametrize(
    ("generation", "member", "error"),
    [
        (1, "member", ErrorCode.NONE),
        (0, "member", ErrorCode.ILLEGAL_GENERATION),
        (1, "nobody", ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, "", ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, "member", ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_only_members_of_this_generation_commit_to_a_group_with_members(
    generation: int, member: str, error: ErrorCode
) -> None:
    driver = GroupDriver()
    (alive,) = driver.stable(1)

    member_id = alive if member == "member" else member

    assert driver.group.check_commit(member_id, generation, None, driver.now_ms) is error


def test_requests_without_a_generation_may_commit_to_an_empty_group() -> None:
    group = Group("group", NO_DELAY)

    assert group.check_commit("", -1, None, 0) is ErrorCode.NONE
    assert group.check_commit("", 3, None, 0) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_counts_as_a_heartbeat() -> None:
    driver = GroupDriver()
    (member,) = driver.stable(1)

    for _ in range(5):
        driver.wait(SESSION_MS - 1)
        assert driver.group.check_commit(member, 1, None, driver.now_ms) is ErrorCode.NONE


def test_members_still_commit_while_a_rebalance_is_prepared_but_not_while_it_completes() -> None:
    driver = GroupDriver()
    (member,) = driver.stable(1)
    driver.join()
    assert driver.group.check_commit(member, 1, None, driver.now_ms) is ErrorCode.NONE
    driver.join(member)

    assert driver.group.check_commit(member, 2, None, driver.now_ms) is ErrorCode.REBALANCE_IN_PROGRESS


def test_waiting_members_are_answered_when_the_group_moves_to_another_broker() -> None:
    driver = GroupDriver()
    first, _ = driver.stable(2)
    waiting = driver.join(first)

    driver.step(Unloaded())

    assert driver.joined(waiting).error is ErrorCode.NOT_COORDINATOR
    assert driver.group.state is GroupState.DEAD
    assert driver.group.wake_at_ms is None
    assert driver.heartbeat(first) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.joined(driver.join()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.leave(first) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert driver.group.check_commit("", -1, None, 0) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_removed_group_is_dead() -> None:
    driver = GroupDriver()
    driver.step(Removed())
    assert driver.group.state is GroupState.DEAD


def test_a_loaded_group_continues_without_a_rebalance() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable(2)

    again = GroupDriver(group=Group.restore(driver.persisted[-1].snapshot, NO_DELAY))
    again.step(Loaded())

    assert again.group.state is GroupState.STABLE
    assert again.heartbeat(follower, 1) is ErrorCode.NONE
    assert again.synced(again.sync(leader, 1)).assignment == leader.encode()
    again.wait(SESSION_MS)
    assert again.group.state is not GroupState.STABLE


def test_a_group_that_is_too_large_for_a_lowered_limit_rebalances_when_it_is_loaded() -> None:
    driver = GroupDriver()
    driver.stable(3)
    limits = GroupLimits(min_session_timeout_ms=100, initial_rebalance_delay_ms=0, max_size=2)

    again = GroupDriver(group=Group.restore(driver.persisted[-1].snapshot, limits))
    again.step(Loaded())

    assert again.group.state is GroupState.PREPARING_REBALANCE


def test_a_static_member_whose_id_is_written_during_a_rebalance_is_answered_when_it_ends() -> None:
    driver = GroupDriver()
    (old,) = driver.stable(1, instance_id="one")
    driver.hold_writes = True
    token = driver.join(instance_id="one")
    newcomer = driver.join()
    assert driver.joined(token).generation == driver.joined(newcomer).generation == 2

    driver.written()

    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    assert driver.heartbeat(old, instance_id="one") is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_whose_id_is_written_too_late_waits_for_the_rebalance() -> None:
    driver = GroupDriver()
    members = driver.stable(2)
    static = driver.join(instance_id="one")
    for one in members:
        driver.join(one)
    leader = driver.group.leader_id
    assert leader is not None
    driver.sync(leader, assignments={})
    for member in driver.group.members:
        driver.sync(member.member_id)
    assert driver.joined(static).generation == 2
    driver.hold_writes = True
    token = driver.join(instance_id="one")
    driver.join(leader, protocols=(("range", b"changed"),))

    driver.written()

    assert token not in driver.answers, "the rebalance that began meanwhile answers it"


def test_a_member_that_falls_silent_after_its_assignment_is_removed() -> None:
    driver = GroupDriver()
    tokens = [driver.join(), driver.join()]
    driver.wait(0)
    leader, follower = (driver.joined(token).member_id for token in tokens)
    driver.sync(follower)
    for _ in range(4):
        driver.wait(SESSION_MS / 2)
        driver.heartbeat(leader)
    driver.sync(leader, assignments={})

    for _ in range(3):
        driver.wait(SESSION_MS / 2)
        driver.heartbeat(leader)

    assert follower not in driver.group.members


def test_a_pending_member_id_is_forgotten_when_the_group_is_full() -> None:
    driver = GroupDriver(GroupLimits(min_session_timeout_ms=100, initial_rebalance_delay_ms=0, max_size=2))
    (first,) = driver.stable(1)
    pending = driver.joined(driver.join(require_id=True)).member_id
    second = driver.join()
    rejoin = driver.join(first)

    refused = driver.join(pending)

    assert driver.joined(refused).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.joined(rejoin).generation == driver.joined(second).generation == 2


def test_members_that_await_the_assignment_of_a_leader_that_dies_join_again() -> None:
    """All sessions began when the joins were answered, and end together: theirs begin anew by that."""
    driver = GroupDriver()
    tokens = [driver.join() for _ in range(3)]
    driver.wait(0)
    _, *others = [driver.joined(each).member_id for each in tokens]
    waiting = [driver.sync(each) for each in others]

    driver.wait(SESSION_MS)

    assert [driver.synced(each).error for each in waiting] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    again = [driver.join(each) for each in others]
    assert [driver.joined(each).error for each in again] == [ErrorCode.NONE] * 2
