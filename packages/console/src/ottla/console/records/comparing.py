"""Two records beside each other: which lines of their keys, values and headers differ. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Final

from ottla.console.records.reading import ShownRecord
from ottla.console.records.values import shown_value
from ottla.console.web.formats import moment, printable

MOST_LINES: Final = 1_000
"""Lines of a value that are compared: the time for it may grow with their square."""
_PART_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Compared:
    """A part of two records: its lines in pairs, None where one side has none, and whether all are there."""

    name: str
    lines: tuple[tuple[str | None, str | None], ...]
    is_whole: bool = True

    @property
    def differs(self) -> bool:
        """Whether a line differs."""
        return any(left != right for left, right in self.lines)


def compared(left: ShownRecord, right: ShownRecord) -> list[Compared]:
    """Return the parts of two records with their lines in pairs."""
    return [
        _part("Time", moment(left.timestamp_ms), moment(right.timestamp_ms)),
        _part("Kind", left.fate, right.fate),
        _part("Key", _text(left.key), _text(right.key)),
        _part("Value", _text(left.value), _text(right.value)),
        _part("Headers", _headers(left), _headers(right)),
    ]


def paired(left: list[str], right: list[str]) -> list[tuple[str | None, str | None]]:
    """Return lines in pairs: equal ones opposite each other, the others beside gaps."""
    pairs: list[tuple[str | None, str | None]] = []
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    for _, from_left, to_left, from_right, to_right in matcher.get_opcodes():
        pairs += zip_longest(left[from_left:to_left], right[from_right:to_right])
    return pairs


def _part(name: str, left: str, right: str) -> Compared:
    all_left, all_right = left.splitlines(), right.splitlines()
    is_whole = max(len(all_left), len(all_right)) <= MOST_LINES
    return Compared(name, tuple(paired(all_left[:MOST_LINES], all_right[:MOST_LINES])), is_whole)


def _text(data: bytes | None) -> str:
    found = shown_value(data, "auto", _PART_BYTES)
    return f"{found.text}\n… {found.left_bytes} more bytes" if found.left_bytes else found.text


def _headers(record: ShownRecord) -> str:
    return "\n".join(f"{printable(name)}: {_text(value)}" for name, value in record.headers)
