"""Patterns of declarations, which whole names have to match, for what looks for them anywhere. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_BACK = re.compile(r"(?<!\\)(?:\\\\)*(?:\\[1-9]|\(\?P=|\(\?\()")
_FLAG = re.compile(r"\(\?([aimsux]+)\)")
_FLAGS = re.compile(r"(?:\(\?[aimsux]+\))*")


def whole(pattern: str, but: Iterable[str] = ()) -> str:
    """Return an expression that is found in a name where all of it matches, and none of `but` does so.

    Groups of `pattern` keep their numbers, and those of `but` get others: it must not refer back to any.
    """
    wanted, refused = f"{_part(pattern)}$", "|".join(map(_part, but))
    return f"^(?={wanted})(?!(?:{refused})$)" if refused else f"^{wanted}"


def refers_back(pattern: str) -> bool:
    """Whether a pattern refers to what one of its groups matched."""
    return _BACK.search(pattern) is not None


def _part(pattern: str) -> str:
    """Return a pattern as a part of a longer one: flags that it begins with, such as (?i), are its own."""
    begins = _FLAGS.match(pattern)
    assert begins is not None, "it may be empty"
    flags = "".join(_FLAG.findall(begins[0]))
    # With x a comment may go on to the end of the line, and what closes the bracket must not be in it.
    end = "\n)" if "x" in flags else ")"
    return f"(?{flags}:{pattern[begins.end() :]}{end}"
