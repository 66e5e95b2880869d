"""The heartbeat intervals that members are told: short while their group is in motion, within the bound of
the broker, and the configured one when it is stable."""

from __future__ import annotations

import pytest

from ottla.broker.groups.consumer.testing import SESSION_MS, ConsumerDriver, SimulatedConsumer, settle
from ottla.broker.groups.early_heartbeats import EarlyHeartbeats, GroupMotion
from ottla.broker.groups.streams.testing import SimulatedMember, StreamsDriver, stateless

CONFIGURED_MS, SHORT_MS = 5_000, 500
STABLE_AFTER_MS = 2 * CONFIGURED_MS


# ---- the bound of a broker


def test_early_heartbeats_come_one_behind_the_other() -> None:
    early = EarlyHeartbeats(SHORT_MS)

    told = [early.interval_ms(CONFIGURED_MS, 0) for _ in range(5)]

    assert told == [500, 501, 501, 502, 502]


@pytest.mark.parametrize(("members", "longest_ms"), [(1, 500), (100, 550), (1_000, 1_000), (10_000, 5_000)])
def test_the_interval_grows_with_the_members_that_are_told_one_at_once(members: int, longest_ms: int) -> None:
    early = EarlyHeartbeats(SHORT_MS)

    told = [early.interval_ms(CONFIGURED_MS, 0) for _ in range(members)]

    assert max(told) == longest_ms


def test_ten_thousand_members_send_two_thousand_heartbeats_a_second_at_most() -> None:
    early = EarlyHeartbeats(SHORT_MS)
    due = [0.0] * 10_000
    sent_in: dict[int, int] = {}

    for second in range(30):
        for number, at_ms in enumerate(due):
            while due[number] < (second + 1) * 1_000:
                at_ms = due[number]
                sent_in[int(at_ms // 1_000)] = sent_in.get(int(at_ms // 1_000), 0) + 1
                due[number] = at_ms + early.interval_ms(CONFIGURED_MS, at_ms)

    later = [count for at, count in sent_in.items() if 5 <= at < 30]
    # They come as early ones, and as those of the configured interval: 2,000 a second each.
    assert max(later) <= 4_100, "as many as with twice the configured rate"


def test_no_early_heartbeat_is_later_than_the_configured_one() -> None:
    early = EarlyHeartbeats(SHORT_MS)

    assert early.interval_ms(SHORT_MS, 0) == SHORT_MS
    assert early.interval_ms(100, 0) == 100
    assert [early.interval_ms(501, 0) for _ in range(9)][-1] == 501


def test_room_comes_back_with_time() -> None:
    early = EarlyHeartbeats(SHORT_MS)
    for _ in range(20_000):
        early.interval_ms(CONFIGURED_MS, 0)

    assert early.interval_ms(CONFIGURED_MS, 0) == CONFIGURED_MS
    assert early.interval_ms(CONFIGURED_MS, 2_000) == 3_000
    assert early.interval_ms(CONFIGURED_MS, 9_000) == SHORT_MS


def test_zero_switches_early_heartbeats_off() -> None:
    motion = GroupMotion(EarlyHeartbeats(0))

    assert motion.interval_ms(CONFIGURED_MS, 0, stored_epoch=1, epoch=2, waits=True) == CONFIGURED_MS


# ---- the motion of a group


def told(motion: GroupMotion, now_ms: float, epoch: int, *, waits: bool = False) -> int:
    return motion.interval_ms(CONFIGURED_MS, now_ms, stored_epoch=epoch, epoch=epoch, waits=waits)


def test_a_group_is_in_motion_for_two_configured_intervals_after_its_epoch_changed() -> None:
    motion = GroupMotion(EarlyHeartbeats(SHORT_MS))

    assert told(motion, 0, 4) == CONFIGURED_MS, "as the group was loaded it was at rest"
    assert told(motion, 1_000, 5) == SHORT_MS
    assert told(motion, 1_000 + STABLE_AFTER_MS - 1, 5) == SHORT_MS
    assert told(motion, 1_000 + STABLE_AFTER_MS, 5) == CONFIGURED_MS


def test_a_member_that_waits_has_the_short_interval_for_as_long_as_it_waits() -> None:
    motion = GroupMotion(EarlyHeartbeats(SHORT_MS))

    assert told(motion, 0, 4, waits=True) == SHORT_MS
    assert told(motion, 60_000, 4, waits=True) == SHORT_MS
    assert told(motion, 61_000, 4) == CONFIGURED_MS


def test_consumers_are_told_the_short_interval_in_a_rebalance_and_their_own_after_it() -> None:
    driver = ConsumerDriver()
    driver.own_settings = {"consumer.heartbeat.interval.ms": "7000"}
    first, second = SimulatedConsumer(driver, "1", "a"), SimulatedConsumer(driver, "2", "a")

    assert first.join().heartbeat_interval_ms == SHORT_MS
    driver.now_ms += 14_000
    assert first.beat().heartbeat_interval_ms == 7_000
    assert second.join().heartbeat_interval_ms == SHORT_MS
    driver.now_ms += 14_000
    assert second.beat().heartbeat_interval_ms == SHORT_MS, "the first one has not given up yet"
    settle(first, second)
    assert first.beat().heartbeat_interval_ms == second.beat().heartbeat_interval_ms == 7_000


def test_a_consumer_that_does_not_give_up_is_not_asked_for_early_heartbeats_for_long() -> None:
    driver = ConsumerDriver()
    first, second = SimulatedConsumer(driver, "1", "a"), SimulatedConsumer(driver, "2", "a")
    first.join()
    second.join()
    driver.now_ms += 100
    assert driver.heartbeat("1", first.epoch).heartbeat_interval_ms == SHORT_MS

    driver.now_ms += STABLE_AFTER_MS

    assert driver.heartbeat("1", first.epoch).heartbeat_interval_ms == CONFIGURED_MS


def test_the_session_of_a_consumer_in_motion_is_as_long_as_ever() -> None:
    driver = ConsumerDriver()
    assert SimulatedConsumer(driver, "1", "a").join().heartbeat_interval_ms == SHORT_MS

    driver.wait(SESSION_MS - 1)
    assert driver.group.member_count == 1
    driver.wait(1)

    assert driver.group.member_count == 0


def test_a_group_that_was_loaded_is_at_rest() -> None:
    driver = ConsumerDriver()
    member = SimulatedConsumer(driver, "1", "a")
    member.join()
    settle(member)

    driver.group = driver.replayed()

    assert member.beat().heartbeat_interval_ms == CONFIGURED_MS


def test_members_of_streams_groups_are_told_the_short_interval_in_a_rebalance() -> None:
    driver = StreamsDriver()
    first, second = SimulatedMember(driver, "1", stateless()), SimulatedMember(driver, "2", stateless())

    assert first.join().heartbeat_interval_ms == SHORT_MS
    driver.now_ms += STABLE_AFTER_MS
    assert first.beat().heartbeat_interval_ms == CONFIGURED_MS
    assert second.join().heartbeat_interval_ms == SHORT_MS
    driver.now_ms += STABLE_AFTER_MS
    assert second.beat().heartbeat_interval_ms == SHORT_MS, "the first one has not given up yet"
    first.beat()
    first.beat()
    second.beat()
    assert first.beat().heartbeat_interval_ms == second.beat().heartbeat_interval_ms == CONFIGURED_MS
