"""Times and durations as people type them: `2026-01-31T08:00Z`, `-1h`, `yesterday`, `90s`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from ottla.client.environment import now_ms as clock_ms

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|[smhdw])\s*")
_EPOCH_MS: Final = re.compile(r"\d{13}")
_DAYS: Final = {"today": 0, "yesterday": 1}

EXAMPLES: Final = "2026-01-31T08:00Z, -1h, 30m, 2d, today, yesterday or now"


def duration_s(text: str) -> float:
    """Read a duration like `90s`, `1h30m` or `2d`, and return its seconds. Raises ValueError."""
    parts = list(_PART.finditer(text.strip()))
    if not parts or "".join(part[0] for part in parts) != text.strip():
        raise ValueError(f"{text!r} is not a duration like 500ms, 90s, 1h30m or 2d")
    return sum(float(part[1]) * _UNITS_S[part[2]] for part in parts)


def utc_text(timestamp_ms: int) -> str:
    """Return a timestamp to the second in UTC, as `2026-01-31T08:00:00Z`, which `time_ms` reads."""
    return datetime.fromtimestamp(timestamp_ms // 1_000, UTC).isoformat().replace("+00:00", "Z")


def time_ms(given: str | datetime, *, now_ms: int | None = None) -> int:
    """Return a time as a timestamp in ms; local time unless it says otherwise. Raises ValueError.

    A duration, with or without a minus, is so long ago; `today` and `yesterday` are the midnights at which
    they begin; 13 digits are a timestamp already.
    """
    if isinstance(given, datetime):
        return int(given.timestamp() * 1_000)
    text = given.strip()
    now = clock_ms() if now_ms is None else now_ms
    if text == "now":
        return now
    if text in _DAYS:
        midnight = datetime.fromtimestamp(now / 1_000).replace(hour=0, minute=0, second=0, microsecond=0)
        return int((midnight - timedelta(days=_DAYS[text])).timestamp() * 1_000)
    if _EPOCH_MS.fullmatch(text):
        return int(text)
    if _PART.match(text.removeprefix("-")):
        try:
            return now - round(duration_s(text.removeprefix("-")) * 1_000)
        except ValueError:
            pass  # a time of day has digits and letters, too
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1_000)
    except ValueError:
        raise ValueError(f"{given!r} is not a time like {EXAMPLES}") from None
