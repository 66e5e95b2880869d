"""Patterns that match whole names, rewritten for searches anywhere in a name. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_BACK = re.compile(r"(?<!\\)(?:\\\\)*(?:\\[1-9]|\(\?P=|\(\?\()")
_FLAG = re.compile(r"\(\?([aimsux]+)\)")
_FLAGS = re.compile(r"(?:\(\?[aimsux]+\))*")


def whole_name_pattern(pattern: str, but: Iterable[str] = ()) -> str:
    """Return an expression that matches whole names that `pattern` matches and no pattern in `but` does.

    Groups of `pattern` keep their numbers, and those of `but` change, so `but` must not contain
    backreferences.
    """
    wanted, refused = f"{_part(pattern)}$", "|".join(map(_part, but))
    return f"^(?={wanted})(?!(?:{refused})$)" if refused else f"^{wanted}"


def has_backreference(pattern: str) -> bool:
    """Whether a pattern has a backreference."""
    return _BACK.search(pattern) is not None


def _part(pattern: str) -> str:
    """Return a pattern for use inside a longer one: leading flags such as (?i) stay limited to it."""
    begins = _FLAGS.match(pattern)
    assert begins is not None, "the group may be empty"
    flags = "".join(_FLAG.findall(begins[0]))
    # With the flag x, a comment may extend to the end of the line, so the closing bracket is on the next one.
    end = "\n)" if "x" in flags else ")"
    return f"(?{flags}:{pattern[begins.end() :]}{end}"
