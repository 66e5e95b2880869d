import pytest

from ottla.broker.groups.classic.events import GroupState
from ottla.broker.groups.kinds import GroupLimits
from ottla.broker.groups.testing import NO_DELAY, REBALANCE_MS, SESSION_MS, GroupDriver, range_protocol
from ottla.protocol.errors import ErrorCode


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, 0, -1])
def test_a_session_timeout_out_of_bounds_is_refused(session_ms: int) -> None:
    driver = GroupDriver(GroupLimits())

    token = driver.join(session_ms=session_ms)

    assert driver.joined(token).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert driver.group.state is GroupState.EMPTY


def test_the_first_member_leads_generation_one() -> None:
    driver = GroupDriver()

    token = driver.join()
    driver.wait(0)

    answer = driver.joined(token)
    assert answer.error is ErrorCode.NONE
    assert (answer.generation, answer.protocol_name, answer.protocol_type) == (1, "range", "consumer")
    assert answer.leader_id == answer.member_id
    assert [(one.member_id, one.metadata) for one in answer.members] == [(answer.member_id, b"range")]
    assert driver.group.state is GroupState.COMPLETING_REBALANCE


def test_only_the_leader_is_told_the_members() -> None:
    driver = GroupDriver()
    first, second = driver.join(), driver.join()

    driver.wait(0)

    assert len(driver.joined(first).members) == 2
    assert driver.joined(second).members == ()
    assert driver.joined(second).leader_id == driver.joined(first).member_id


def test_a_new_member_must_join_again_with_the_id_it_is_given() -> None:
    driver = GroupDriver()

    first = driver.join(require_id=True)

    answer = driver.joined(first)
    assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id
    assert driver.group.state is GroupState.EMPTY
    second = driver.join(answer.member_id, require_id=True)
    driver.wait(0)
    assert driver.joined(second).error is ErrorCode.NONE
    assert driver.joined(second).member_id == answer.member_id


def test_a_given_id_is_forgotten_after_the_session_timeout() -> None:
    driver = GroupDriver()
    member_id = driver.joined(driver.join(require_id=True)).member_id

    driver.wait(SESSION_MS)

    assert driver.joined(driver.join(member_id)).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert not driver.group.pending_members


def test_a_rebalance_waits_for_pending_member_ids() -> None:
    driver = GroupDriver()
    (leader,) = driver.stable(1)
    pending = driver.joined(driver.join(require_id=True)).member_id
    rejoin = driver.join(leader)
    assert rejoin not in driver.answers

    token = driver.join(pending)

    assert driver.joined(rejoin).generation == driver.joined(token).generation == 2


def test_an_unknown_member_id_is_refused() -> None:
    driver = GroupDriver()
    driver.stable(1)

    assert driver.joined(driver.join("somebody")).error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", range_protocol()), ("consumer", (("sticky", b""),)), ("consumer", ())],
)
def test_a_member_without_a_common_protocol_is_refused(
    protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    driver = GroupDriver()
    driver.stable(1)

    token = driver.join(protocol_type=protocol_type, protocols=protocols)

    assert driver.joined(token).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.group.state is GroupState.STABLE


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", range_protocol()), ("consumer", ())])
def test_an_empty_group_refuses_a_member_without_protocols(
    protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    driver = GroupDriver()

    token = driver.join(protocol_type=protocol_type, protocols=protocols)

    assert driver.joined(token).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_most_preferred_protocol_that_all_members_support_is_elected() -> None:
    driver = GroupDriver()
    driver.join(protocols=(("only-mine", b""), ("range", b""), ("sticky", b"")))
    driver.join(protocols=(("sticky", b""), ("range", b"")))
    token = driver.join(protocols=(("sticky", b""), ("range", b"")))

    driver.wait(0)

    assert driver.joined(token).protocol_name == "sticky"


def test_the_first_rebalance_of_an_empty_group_waits_for_more_members() -> None:
    driver = GroupDriver(GroupLimits(initial_rebalance_delay_ms=3_000))
    first = driver.join()
    driver.wait(2_000)
    second = driver.join()
    driver.wait(1_000)
    assert not driver.answers

    driver.wait(3_000)

    assert driver.joined(first).generation == driver.joined(second).generation == 1


def test_more_members_cannot_delay_the_first_rebalance_beyond_the_rebalance_timeout() -> None:
    driver = GroupDriver(GroupLimits(initial_rebalance_delay_ms=3_000))
    first = driver.join(rebalance_ms=8_000)
    for _ in range(7):
        driver.wait(1_000)
        driver.join(rebalance_ms=8_000)

    driver.wait(1_000)

    assert driver.joined(first).error is ErrorCode.NONE


def test_a_member_joining_a_stable_group_starts_a_rebalance() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)

    newcomer = driver.join()

    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert driver.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    tokens = [driver.join(first), driver.join(second)]
    assert {driver.joined(token).generation for token in [newcomer, *tokens]} == {2}


def test_members_that_do_not_rejoin_in_time_are_removed() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
    newcomer = driver.join()
    rejoin = driver.join(first)
    for _ in range(12):
        assert driver.heartbeat(second) is ErrorCode.REBALANCE_IN_PROGRESS
        driver.wait(REBALANCE_MS / 12)

    assert driver.joined(rejoin).error is ErrorCode.NONE
    assert driver.joined(newcomer).generation == 2
    assert second not in driver.group.members
    assert driver.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_rejoin_is_replaced() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable(2)
    token = driver.join(follower, protocols=range_protocol(b"changed"))

    driver.wait(REBALANCE_MS)

    assert driver.joined(token).leader_id == follower
    assert leader not in driver.group.members


def test_a_leader_that_joins_again_starts_a_rebalance() -> None:
    driver = GroupDriver()
    (leader,) = driver.stable(1)

    token = driver.join(leader)

    assert driver.joined(token).generation == 2


def test_a_follower_that_joins_again_unchanged_is_told_the_present_generation() -> None:
    driver = GroupDriver()
    leader, follower = driver.stable(2)

    answer = driver.joined(driver.join(follower))

    assert (answer.generation, answer.leader_id, answer.members) == (1, leader, ())
    assert driver.group.state is GroupState.STABLE


def test_a_follower_with_new_metadata_starts_a_rebalance() -> None:
    driver = GroupDriver()
    _, follower = driver.stable(2)

    driver.join(follower, protocols=range_protocol(b"changed"))

    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_a_join_repeated_while_the_assignment_is_awaited_is_answered_again() -> None:
    driver = GroupDriver()
    first, second = driver.join(), driver.join()
    driver.wait(0)
    leader, follower = driver.joined(first).member_id, driver.joined(second).member_id

    again = driver.joined(driver.join(leader)), driver.joined(driver.join(follower))

    assert [len(answer.members) for answer in again] == [2, 0]
    assert {answer.generation for answer in again} == {1}


def test_a_join_repeated_during_a_rebalance_takes_the_place_of_the_first() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
    lost = driver.join(first)

    again = driver.join(first)

    assert driver.joined(lost).error is ErrorCode.REBALANCE_IN_PROGRESS
    driver.join(second)
    assert driver.joined(again).generation == 2


def test_a_full_group_refuses_another_member() -> None:
    driver = GroupDriver(GroupLimits(min_session_timeout_ms=100, initial_rebalance_delay_ms=0, max_size=2))
    members = driver.stable(2)

    assert driver.joined(driver.join()).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.group.state is GroupState.STABLE
    assert [driver.heartbeat(one) for one in members] == [ErrorCode.NONE] * 2


def test_members_have_room_for_so_much_metadata_together() -> None:
    limits = GroupLimits(min_session_timeout_ms=100, initial_rebalance_delay_ms=0, max_metadata_bytes=10)
    driver = GroupDriver(limits)
    (first,) = driver.stable(1, protocols=(("range", b"123456"),))

    assert driver.joined(driver.join(protocols=(("range", b"12345"),))).error is (
        ErrorCode.GROUP_MAX_SIZE_REACHED
    )
    assert driver.heartbeat(first) is ErrorCode.NONE
    driver.join(first, protocols=(("range", b"0123456789"),))  # its own is replaced, not added to
    assert driver.group.members.metadata_bytes == 10


def test_a_rebalance_of_a_full_group_keeps_the_first_members_to_join() -> None:
    driver = GroupDriver(GroupLimits(min_session_timeout_ms=100, initial_rebalance_delay_ms=0, max_size=2))

    tokens = [driver.join() for _ in range(3)]
    driver.wait(0)

    errors = [driver.joined(token).error for token in tokens]
    assert errors == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED]


def test_a_new_member_may_wait_longer_than_its_session_timeout_with_a_bound() -> None:
    driver = GroupDriver(NO_DELAY)
    (first,) = driver.stable(1, rebalance_ms=3_600_000)
    newcomer = driver.join(rebalance_ms=3_600_000)
    for _ in range(59):
        driver.heartbeat(first)
        driver.wait(5_000)
    assert newcomer not in driver.answers

    driver.heartbeat(first)
    driver.wait(5_000)

    assert driver.joined(newcomer).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert len(driver.group.members) == 1
