"""The records of a run: which key, and what to do with its row. The same seed makes the same records. Pure.

Each record of a key has a number: its place among the records of the key in the topic. It also has the number
of a change: an earlier change that is sent again has a number of its own, and the message id of the first.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import NamedTuple

_VALUE = struct.Struct("<III")
_LIFE = 6
"""The changes of a row's life: an insert, updates, and a delete; then it begins again."""
RESENT_SHARE = 0.05
POISONED_SHARE = 0.002
FLAKY_SHARE = 0.01


class Change(NamedTuple):
    """One record."""

    key: int
    number: int
    change: int

    @property
    def verb(self) -> str:
        """The statement for the row of its key."""
        place = self.change % _LIFE
        return "insert" if not place else "delete" if place == _LIFE - 1 else "update"

    @property
    def message_id(self) -> bytes:
        """The same for all copies of a change."""
        return b"%d-%d" % (self.key, self.change)

    @property
    def value(self) -> bytes:
        """The value of the record."""
        return _VALUE.pack(*self)

    def _chance(self, salt: int) -> float:
        return ((self.key * 7_919 + self.number * 104_729 + salt * 1_299_709) * 2_654_435_761 % 2**32) / 2**32

    @property
    def is_poisoned(self) -> bool:
        """Whether every attempt fails."""
        return self._chance(1) < POISONED_SHARE

    @property
    def is_flaky(self) -> bool:
        """Whether the first attempt of each process fails."""
        return self._chance(2) < FLAKY_SHARE


def change_of(value: bytes | None) -> Change:
    """Read a record's value."""
    assert value is not None
    return Change(*_VALUE.unpack(value))


def changes(records: int, keys: int, seed: int) -> Iterator[Change]:
    """Yield the records of a run, in the order in which they are sent."""
    chance = random.Random(f"{seed} changes")
    numbers, newest = [0] * keys, [0] * keys
    for _ in range(records):
        key = chance.randrange(keys)
        change = newest[key]
        if change and chance.random() < RESENT_SHARE:
            change = max(0, change - chance.randrange(1, 5))
        else:
            newest[key] += 1
        yield Change(key, numbers[key], change)
        numbers[key] += 1


def final_rows(all_changes: Iterator[Change]) -> dict[int, tuple[int, int]]:
    """Return the rows that must be in the table: the first change of the row's life, and its last."""
    rows: dict[int, tuple[int, int]] = {}
    applied: dict[int, int] = {}
    for each in all_changes:
        if each.change < applied.get(each.key, 0):
            continue  # sent again
        applied[each.key] = each.change + 1
        if each.verb == "delete":
            del rows[each.key]
        else:
            rows[each.key] = (each.change - each.change % _LIFE, each.change)
    return rows
