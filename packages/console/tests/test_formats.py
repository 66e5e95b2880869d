"""Numbers, sizes, ages and times as pages show them."""

from __future__ import annotations

import pytest

from ottla.console.web import formats


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (None, "–"),
        (0, "0"),
        (999, "999"),
        (1_000, "1\u202f000"),
        (2**53 + 1, "9 007 199 254 740 993".replace(" ", "\u202f")),
    ],
)
def test_counts_are_exact_beyond_the_numbers_of_a_browser(number: int | None, shown: str) -> None:
    assert formats.count(number) == shown


@pytest.mark.parametrize(
    ("bytes_", "shown"),
    [(None, "–"), (-1, "–"), (0, "0\u00a0B"), (999, "999\u00a0B"), (1_000, "0.98\u00a0KiB"),
     (1_610_612_736, "1.50\u00a0GiB"),
     (123 << 20, "123\u00a0MiB"), (2**70, "1024\u00a0EiB")],
)  # fmt: skip
def test_sizes_have_three_digits(bytes_: int | None, shown: str) -> None:
    assert formats.size(bytes_) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "–"), (float("nan"), "–"), (0.0, "now"), (0.25, "0.2\u00a0s"), (59.9, "59\u00a0s"),
     (61, "1\u00a0min 1\u00a0s"),
     (90_000, "1\u00a0d 1\u00a0h"), (-5, "now")],
)  # fmt: skip
def test_ages_have_two_units(seconds: float | None, shown: str) -> None:
    assert formats.age(seconds) == shown


def test_a_moment_names_its_zone_and_keeps_its_milliseconds() -> None:
    assert formats.moment(1_767_225_600_007) == "2026-01-01 00:00:00.007\u00a0UTC"
    assert formats.moment(None) == formats.moment(-1) == "–"
    assert formats.moment(2**62) == f"{2**62} ms"


def test_control_characters_and_turned_directions_are_shown_as_escapes() -> None:
    assert formats.printable("a\x1b[2Jb\u202ec\u0000") == "a\\x1b[2Jb\\u202ec\\x00"
    assert formats.printable("Zürich 東京 🚂") == "Zürich 東京 🚂"


def test_a_rate_has_two_digits_and_is_whole_from_ten_on() -> None:
    assert [formats.rate(per_s) for per_s in (None, 0.0, 0.034, 9.96, 12_345.6)] == [
        "–", "0", "0.034", "10", "12\u202f346",
    ]  # fmt: skip
