"""Patterns of declarations, which whole names have to match, for what looks for them anywhere. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_FLAGS = re.compile(r"\(\?([aimsux]+)\)")


def whole(pattern: str, but: Iterable[str] = ()) -> str:
    """Return an expression that is found in a name where all of it matches, and none of `but` does so."""
    refused = "|".join(map(_part, but))
    return f"^{f'(?!(?:{refused})$)' if refused else ''}{_part(pattern)}$"


def _part(pattern: str) -> str:
    """Return a pattern as a part of a longer one: flags that it begins with, such as (?i), are its own."""
    flags = _FLAGS.match(pattern)
    return f"(?:{pattern})" if flags is None else f"(?{flags[1]}:{_part(pattern[flags.end() :])})"
