import logging
from itertools import pairwise

import pytest

from ottla.broker.runtime.limited_warnings import LimitedWarnings

log = logging.getLogger("limited")


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def warnings(time: Time) -> LimitedWarnings:
    return LimitedWarnings(log, lambda: time.now_s * 1000, every_ms=10_000, most_subjects=3)


def test_a_subject_is_named_once_per_interval_and_what_was_left_out_is_counted(
    time: Time, warnings: LimitedWarnings, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(25_000):
        time.now_s = 1000 + step / 1000
        warnings.warn("10.0.0.1", "closing %s: %d", "10.0.0.1", step)

    assert caplog.messages == [
        "closing 10.0.0.1: 0",
        "closing 10.0.0.1: 10000 (9999 more like this were not logged)",
        "closing 10.0.0.1: 20000 (9999 more like this were not logged)",
    ]


def test_one_noisy_subject_does_not_hide_others(
    warnings: LimitedWarnings, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1000):
        warnings.warn("noisy", "from noisy")
    warnings.warn("quiet", "from quiet")

    assert caplog.messages == ["from noisy", "from quiet (999 more like this were not logged)"]


def test_many_subjects_cost_few_lines(
    time: Time, warnings: LimitedWarnings, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(100_000):
        time.now_s = 1000 + number * 30 / 100_000
        warnings.warn(f"address {number}", "from address %d", number)

    assert len(caplog.messages) == 9


def test_a_rare_warning_is_always_logged(
    time: Time, warnings: LimitedWarnings, caplog: pytest.LogCaptureFixture
) -> None:
    times_s = [0, 10, 20.5, 31, 3600]
    for before_s, now_s in pairwise([-20, *times_s]):
        time.now_s += now_s - before_s
        warnings.warn("a", "at %s", now_s)

    assert caplog.messages == [f"at {one}" for one in times_s]
