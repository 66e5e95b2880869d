"""Actions that repeat at an interval."""

from __future__ import annotations

from ottla.pipeline.jobs.progress_report import Interval


def test_the_first_action_is_due_at_once() -> None:
    assert Interval(30.0).is_due(0.0)


def test_an_action_is_due_again_when_the_interval_has_passed() -> None:
    interval = Interval(2.0)

    interval.restart(1_000.0)

    assert not interval.is_due(2_999.0)
    assert interval.is_due(3_000.0)


def test_an_interval_may_begin_before_the_first_action() -> None:
    interval = Interval(2.0, last_ms=1_000.0)

    assert not interval.is_due(2_999.0)
    assert interval.is_due(3_000.0)
