"""Java's properties format, as far as configuration files use it."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY_END = re.compile(r"(?<!\\)(?:\s*[=:]\s*|\s+)")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")


def parse_properties(text: str) -> dict[str, str]:
    """Read `key=value` lines; `#` and `!` begin comments, a backslash at the end continues a line."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        parts = _KEY_END.split(line, maxsplit=1)
        properties[_unescape(parts[0])] = _unescape(parts[1]).strip() if len(parts) > 1 else ""
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    for raw in text.splitlines():
        line = raw.lstrip()
        if not pending and (not line or line[0] in "#!"):
            continue
        if _continues(line):
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    if pending:
        yield pending


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    what = match[1]
    return chr(int(what[1:], 16)) if len(what) == 5 else _ESCAPES.get(what, what)
