"""Numbers, sizes, ages and times as people read them. Pure; times name their zone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
UNKNOWN: Final = "–"


def count(number: int | None) -> str:
    """Return a whole number with thin spaces between its thousands, exact; a dash for None."""
    return UNKNOWN if number is None else f"{number:,}".replace(",", "\u202f")


def at_most(number: int) -> str:
    """Return a number that another one does not exceed."""
    return f"≤ {count(number)}" if number else count(number)


def size(bytes_: int | None) -> str:
    """Return a size with three digits: 1.50 GiB; a dash for None and -1, by which brokers mean unknown."""
    if bytes_ is None or bytes_ < 0:
        return UNKNOWN
    value, unit = float(bytes_), 0
    while value >= 1_000 and unit < len(_UNITS) - 1:
        value, unit = value / 1_024, unit + 1
    digits = 0 if unit == 0 or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}\u00a0{_UNITS[unit]}"


def whole(number: float | None) -> str:
    """Return a number without its fraction, as `count` does; a dash for None."""
    return count(None if number is None else round(number))


def age(seconds: float | None) -> str:
    """Return a time span with its two largest units: 3 d 4 h; a dash for None."""
    if seconds is None or math.isnan(seconds):
        return UNKNOWN
    left = int(max(seconds, 0))
    if left < 1:
        return "now" if seconds < 0.1 else f"{seconds:.1f}\u00a0s"
    parts = []
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if left >= length:
            parts.append(f"{left // length}\u00a0{unit}")
            left %= length
    return " ".join(parts[:2])


def moment(timestamp_ms: int | None) -> str:
    """Return a timestamp in UTC to the millisecond, with its zone; as a number where no date has it."""
    if timestamp_ms is None or timestamp_ms < 0:
        return UNKNOWN
    try:
        at = datetime.fromtimestamp(timestamp_ms // 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return f"{at:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1_000:03}\u00a0UTC"


def rate(per_s: float | None) -> str:
    """Return a rate per second with two digits, or whole from ten on; a dash for None."""
    if per_s is None:
        return UNKNOWN
    return count(round(per_s)) if per_s >= 10 else f"{per_s:.2g}"


def share(part: float, whole: float) -> str:
    """Return a share in percent; a dash where the whole is not known."""
    return UNKNOWN if whole <= 0 else f"{100 * part / whole:.0f}\u00a0%"


def printable(text: str) -> str:
    """Return text with its control characters, and those that turn the direction of writing, as escapes."""
    return "".join(
        letter if letter.isprintable() or letter in " \n\t" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def entity(parts: Mapping[str, str | None]) -> str:
    """Return the entity of a quota in words: `user anna, client-id <default>`."""
    named = sorted(parts.items(), reverse=True)
    return ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in named)
