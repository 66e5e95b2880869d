"""Parse properties files as Kafka's tools do."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PAIR = re.compile(r"(?P<key>(?:\\.|[^=:\\\s])+)\s*(?:[=:]\s*)?(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def parse(text: str) -> dict[str, str]:
    """Return the pairs of a properties file; comments start with # or !, a final backslash joins lines."""
    pairs = (_PAIR.fullmatch(line) for line in _logical_lines(text))
    return {_unescape(pair["key"]): _unescape(pair["value"]).rstrip() for pair in pairs if pair is not None}


def _logical_lines(text: str) -> Iterator[str]:
    begun = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not begun and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun += line[:-1]
            continue
        yield begun + line
        begun = ""
    if begun:
        yield begun


def _unescape(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        escaped = found[1]
        return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _SHORT.get(escaped, escaped)

    return _ESCAPE.sub(character, text)
