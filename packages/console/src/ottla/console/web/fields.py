"""Numbers, times and settings that users type. Pure; what makes no sense raises Unclear with the way out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_MOST_DIGITS: Final = 18


class Unclear(ValueError):
    """A form asks for something that makes no sense; the message says what to change."""


def whole(text: str, noun: str, *, least: int = 0) -> int:
    """Return a whole number that is not below `least`. Raises Unclear."""
    if not is_whole(text := text.strip()) or int(text) < least:
        raise Unclear(f"{noun} must be a whole number from {least} on, not {text!r}")
    return int(text)


def signed(text: str, noun: str) -> int:
    """Return a whole number that may be negative. Raises Unclear."""
    if not is_whole((text := text.strip()).removeprefix("-")):
        raise Unclear(f"{noun} must be a whole number, not {text!r}")
    return int(text)


def is_whole(text: str) -> bool:
    """Whether a text is a whole number that fits into 64 bits."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def time_ms(text: str, zone: tzinfo = UTC) -> int:
    """Return a time: ISO 8601, in `zone` where it names no other, or milliseconds since 1970.

    Raises Unclear, also for a time that a change of the clocks makes twice or leaves out.
    """
    if is_whole(text := text.strip()):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Unclear(
            f"{text!r} is no time, such as 2026-11-26T08:00, or with +01:00 behind it for a zone of its own"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=zone)
        if found.utcoffset() != found.replace(fold=1).utcoffset():
            offsets = " and ".join(_offset(found.replace(fold=fold)) for fold in (0, 1))
            raise Unclear(f"the clocks change at {text}, with {offsets}: write one of these behind the time")
    return int(found.timestamp() * 1_000)


def _offset(at: datetime) -> str:
    minutes = int((at.utcoffset() or timedelta()).total_seconds()) // 60
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def time_zone(text: str) -> tzinfo:
    """Return a zone by its name, such as Europe/Berlin. Raises Unclear."""
    name = text.strip() or "UTC"
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Unclear(f"{name!r} is no time zone, such as UTC or Europe/Berlin") from None


def named(form: Mapping[str, str], name: str, noun: str) -> str:
    """Return a name of a form. Raises Unclear."""
    if not (text := form.get(name, "").strip()):
        raise Unclear(f"{noun} is missing")
    return text


def settings(text: str) -> dict[str, str]:
    """Return the keys and values of lines KEY=VALUE. Raises Unclear."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        key, equals, value = line.partition("=")
        if not (equals and key.strip()):
            raise Unclear(f"{line!r} must be KEY=VALUE")
        found[key.strip()] = value.strip()
    return found
