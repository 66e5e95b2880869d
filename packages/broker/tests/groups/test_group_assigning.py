import pytest

from ottla.broker.groups.classic.events import GroupState, Reason
from ottla.broker.groups.testing import REBALANCE_MS, SESSION_MS, GroupDriver, range_protocol
from ottla.protocol.errors import ErrorCode


def joined_pair(driver: GroupDriver) -> tuple[str, str]:
    """Two members in CompletingRebalance, the leader first."""
    tokens = [driver.join(), driver.join()]
    driver.wait(0)
    first, second = (driver.joined(token).member_id for token in tokens)
    return first, second


def test_every_member_gets_the_assignment_of_the_leader() -> None:
    driver = GroupDriver()
    leader, follower = joined_pair(driver)
    waiting = driver.sync(follower)
    assert waiting not in driver.answers

    leading = driver.sync(leader, assignments={leader: b"mine", follower: b"yours"})

    assert driver.synced(leading).assignment == b"mine"
    answer = driver.synced(waiting)
    assert (answer.error, answer.assignment) == (ErrorCode.NONE, b"yours")
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert driver.group.state is GroupState.STABLE


def test_no_member_gets_an_assignment_that_is_not_in_the_log() -> None:
    driver = GroupDriver()
    leader, follower = joined_pair(driver)
    driver.hold_writes = True
    tokens = [driver.sync(follower), driver.sync(leader, assignments={leader: b"x"})]
    assert not driver.answers.keys() & set(tokens)

    driver.written()

    assert {driver.synced(token).error for token in tokens} == {ErrorCode.NONE}
    assert driver.persisted[-1].reason is Reason.ASSIGNED
    assert {one.member_id: one.assignment for one in driver.persisted[-1].snapshot.members} == {
        leader: b"x",
        follower: b"",
    }


def test_a_member_the_leader_forgot_gets_an_empty_assignment() -> None:
    driver = GroupDriver()
    leader, follower = joined_pair(driver)
    driver.sync(leader, assignments={leader: b"x"})

    assert driver.synced(driver.sync(follower)).assignment == b""


def test_an_assignment_that_cannot_be_written_starts_a_rebalance() -> None:
    driver = GroupDriver()
    leader, follower = joined_pair(driver)
    driver.hold_writes = True
    tokens = [driver.sync(follower), driver.sync(leader, assignments={leader: b"x"})]

    driver.written(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    assert {driver.synced(token).error for token in tokens} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_a_repeated_sync_of_the_leader_does_not_assign_twice() -> None:
    driver = GroupDriver()
    leader, follower = joined_pair(driver)
    driver.hold_writes = True
    lost = driver.sync(leader, assignments={leader: b"first"})

    again = driver.sync(leader, assignments={leader: b"second"})
    driver.written()

    assert driver.synced(lost).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.synced(again).assignment == b"first"
    assert not driver.writes
    assert driver.synced(driver.sync(follower)).error is ErrorCode.NONE


def test_a_sync_in_a_stable_group_is_answered_at_once() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable(2)

    assert driver.synced(driver.sync(follower)).assignment == follower.encode()
    assert driver.synced(driver.sync(leader, assignments={})).assignment == leader.encode()


def test_a_rebalance_makes_members_that_wait_for_an_assignment_join_again() -> None:
    driver = GroupDriver()
    _, follower = joined_pair(driver)
    waiting = driver.sync(follower)

    driver.join()

    assert driver.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.synced(driver.sync(follower)).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_an_assignment_that_is_written_after_a_new_rebalance_began_is_ignored() -> None:
    driver = GroupDriver()
    leader, _ = joined_pair(driver)
    driver.hold_writes = True
    waiting = driver.sync(leader, assignments={leader: b"x"})
    driver.join()
    assert driver.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS

    driver.written()

    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert driver.group.members[leader].assignment == b""


@pytest.mark.parametrize(
    ("member", "generation", "protocol_type", "protocol_name", "error"),
    [
        ("nobody", 1, None, None, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, 0, None, None, ErrorCode.ILLEGAL_GENERATION),
        (None, 2, None, None, ErrorCode.ILLEGAL_GENERATION),
        (None, 1, "connect", "range", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (None, 1, "consumer", "sticky", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (None, 1, "consumer", "range", ErrorCode.NONE),
    ],
)
def test_a_sync_is_checked(
    member: str | None,
    generation: int,
    protocol_type: str | None,
    protocol_name: str | None,
    error: ErrorCode,
) -> None:
    driver = GroupDriver()
    leader, _ = joined_pair(driver)

    token = driver.sync(
        member or leader, generation, protocol_type=protocol_type, protocol_name=protocol_name
    )

    assert driver.synced(token).error is error


def test_members_that_never_ask_for_their_assignment_are_removed() -> None:
    driver = GroupDriver()
    leader, follower = joined_pair(driver)
    driver.sync(leader, assignments={})
    driver.now_ms += REBALANCE_MS - 1
    driver.heartbeat(leader)
    driver.heartbeat(follower)

    driver.wait(1)

    assert follower not in driver.group.members
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_followers_are_answered_when_the_leader_dies_before_it_assigned() -> None:
    driver = GroupDriver()
    leader, follower = joined_pair(driver)
    waiting = driver.sync(follower)

    driver.wait(SESSION_MS)

    assert leader not in driver.group.members
    assert driver.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_waits_for_its_assignment_need_not_send_heartbeats() -> None:
    driver = GroupDriver()
    leader, follower = joined_pair(driver)
    waiting = driver.sync(follower)
    for _ in range(5):
        driver.wait(SESSION_MS / 2)
        driver.heartbeat(leader)

    driver.sync(leader, assignments={})

    assert driver.synced(waiting).error is ErrorCode.NONE


def test_generations_only_rise() -> None:
    driver = GroupDriver()
    (leader,) = driver.stable(1)
    for generation in range(2, 6):
        assert driver.joined(driver.join(leader)).generation == generation
        driver.sync(leader, assignments={})
    driver.leave(leader)
    assert driver.group.generation == 6
    assert driver.group.state is GroupState.EMPTY
    assert driver.joined(driver.join(leader)).error is ErrorCode.UNKNOWN_MEMBER_ID
    token = driver.join(protocols=range_protocol())
    driver.wait(0)
    assert driver.joined(token).generation == 7
