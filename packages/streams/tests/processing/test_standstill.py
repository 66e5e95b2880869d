"""Partitions that stand still are found, and those that only wait are not."""

from __future__ import annotations

from ottla.protocol.topics import TopicPartition
from ottla.streams.operating.health import LOG_AFTER_MS, Standstill, Standstills

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_a_partition_whose_lowest_record_is_left_alone_stands_still_since_it_was_first_seen() -> None:
    standstills = Standstills()

    standstills.look(1_000, {P0: (6, 13)}, ())
    standstills.look(9_000, {P0: (6, 14)}, ())

    assert standstills.longest == Standstill(P0, 6, 14, 1_000)


def test_a_partition_that_goes_on_does_not_stand_still() -> None:
    standstills = Standstills()

    standstills.look(0, {P0: (6, 13)}, ())
    standstills.look(90_000, {P0: (7, 13)}, ())

    assert standstills.longest == Standstill(P0, 7, 13, 90_000)


def test_a_record_that_runs_or_waits_for_a_retry_is_no_standstill() -> None:
    standstills = Standstills()

    standstills.look(0, {P0: (6, 13)}, {(P0, 6)})
    assert standstills.longest is None
    standstills.look(0, {P0: (6, 13)}, {(P0, 7), (P1, 6)})
    assert standstills.longest is not None


def test_the_time_begins_anew_when_the_record_was_cared_for_meanwhile() -> None:
    standstills = Standstills()

    standstills.look(0, {P0: (6, 1)}, ())
    standstills.look(1_000, {P0: (6, 1)}, {(P0, 6)})
    standstills.look(2_000, {P0: (6, 1)}, ())

    assert standstills.longest == Standstill(P0, 6, 1, 2_000)


def test_each_standstill_is_logged_once() -> None:
    standstills = Standstills()

    assert not standstills.look(0, {P0: (6, 1), P1: (0, 1)}, ())
    due = standstills.look(LOG_AFTER_MS, {P0: (6, 1), P1: (1, 1)}, ())
    assert due == [Standstill(P0, 6, 1, 0)]
    assert not standstills.look(LOG_AFTER_MS + 1, {P0: (6, 1)}, ())
    assert not standstills.look(LOG_AFTER_MS + 2, {}, ())
    assert not standstills.look(LOG_AFTER_MS + 3, {P0: (6, 1)}, ())
    assert standstills.look(2 * LOG_AFTER_MS + 3, {P0: (6, 1)}, ())
