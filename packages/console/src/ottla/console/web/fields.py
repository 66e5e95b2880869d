"""Numbers, times and settings that users type. Pure; what makes no sense raises Unclear with the way out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

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


def time_ms(text: str) -> int:
    """Return a time: ISO 8601, in UTC where it names no other zone, or milliseconds since 1970.

    Raises Unclear.
    """
    if is_whole(text := text.strip()):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Unclear(
            f"{text!r} is no time, such as 2026-11-26T08:00 in UTC, or with +01:00 behind it"
        ) from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000)


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
