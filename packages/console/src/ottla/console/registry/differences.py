"""Schemas as lines, and the differences of two of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final, Literal

from ottla.console.records.values import set_out
from ottla.console.web.formats import printable

MOST_LINES: Final = 2_000
"""Longer schemas are not compared: the time grows with the square of their lines."""
_AROUND: Final = 3


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a comparison: of both, added, removed, or `left out` for lines that both have."""

    kind: Literal["same", "added", "removed", "left out"]
    text: str

    @property
    def sign(self) -> str:
        """The sign before the line."""
        return {"same": " ", "added": "+", "removed": "-", "left out": "…"}[self.kind]


def schema_text(kind: str, text: str) -> str:
    """Return a schema in lines; the JSON of Avro and of JSON Schema is set out."""
    if kind == "PROTOBUF" or not text.lstrip().startswith(("{", "[")):
        return printable(text)
    return printable(set_out(text))


def schema_differences(before: tuple[str, str], after: tuple[str, str]) -> list[Line] | None:
    """Return the differences of two schemas, each its kind and its text. It takes time: use a thread."""
    return differences(schema_text(*before), schema_text(*after))


def differences(before: str, after: str) -> list[Line] | None:
    """Return the lines of two texts with what was added and removed; None where they are too long."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > MOST_LINES:
        return None
    return list(_lines(old, new))


def _lines(old: list[str], new: list[str]) -> Iterator[Line]:
    blocks = SequenceMatcher(None, old, new).get_opcodes()
    for index, (kind, old_from, old_to, new_from, new_to) in enumerate(blocks):
        if kind == "equal":
            yield from _same(old[old_from:old_to], index == 0, index == len(blocks) - 1)
            continue
        yield from (Line("removed", text) for text in old[old_from:old_to])
        yield from (Line("added", text) for text in new[new_from:new_to])


def _same(lines: list[str], is_first: bool, is_last: bool) -> Iterator[Line]:
    """Yield the lines next to a difference, and how many there are besides."""
    begin, end = 0 if is_first else _AROUND, 0 if is_last else _AROUND
    if len(lines) <= begin + end + 1:
        yield from (Line("same", text) for text in lines)
        return
    yield from (Line("same", text) for text in lines[:begin])
    yield Line("left out", f"{len(lines) - begin - end} lines that both have")
    yield from (Line("same", text) for text in lines[len(lines) - end :])
