from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ottla.client.times import duration_s, time_ms

NOON_MS = int(datetime(2026, 1, 31, 12).timestamp() * 1_000)
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [
        ("now", 0), ("1h", HOUR_MS), ("-1h", HOUR_MS), ("1h30m", HOUR_MS * 3 // 2), ("90s", 90_000),
        ("-2d", 48 * HOUR_MS), ("500ms", 500), ("1.5h", HOUR_MS * 3 // 2), ("today", 12 * HOUR_MS),
        ("yesterday", 36 * HOUR_MS), ("2026-01-31T12:00", 0), ("2026-01-31 11:00", HOUR_MS),
        ("2026-01-31", 12 * HOUR_MS), (str(NOON_MS), 0),
    ],
)  # fmt: skip
def test_times_are_read_as_people_type_them(text: str, ago_ms: int) -> None:
    assert NOON_MS - time_ms(text, now_ms=NOON_MS) == ago_ms


def test_a_time_with_a_zone_is_in_that_zone() -> None:
    assert time_ms("2026-01-31T08:00Z") == time_ms("2026-01-31T09:00+01:00")
    assert time_ms(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000


@pytest.mark.parametrize("text", ["soon", "", "1x", "5", "1h soon", "--1h"])
def test_other_texts_are_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time like 2026-01-31T08:00Z, -1h, 30m, 2d, today"):
        time_ms(text)


def test_durations_have_a_unit() -> None:
    assert [duration_s(text) for text in ("10s", "1h30m", "2d", "250ms")] == [10, 5_400, 172_800, 0.25]
    with pytest.raises(ValueError, match="is not a duration like 500ms, 90s, 1h30m or 2d"):
        duration_s("10")
