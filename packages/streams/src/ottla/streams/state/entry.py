"""Entries of keyed state, and their form as records of a changelog. Pure.

An entry keeps a stamp: the offset of the last source record that was applied to it. A record at or below the
stamp was applied before, in another life of the process, and is not applied again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

STATE_HEADER: Final = "ottla-state"
"""The header of changelog records with stamp, revision and due time."""
NEVER: Final = -1
"""The stamp of what no record was applied to, and the due time of what never becomes due."""

_LAYOUT: Final = struct.Struct(">qqq")


class Contents(Enum):
    """The records that a store is kept from, and what becomes of their tombstones."""

    STATE = "state"
    """A changelog. Entries with a later stamp win, and tombstones keep their stamp until it is committed."""
    TABLE = "table"
    """One partition of a table. The record read last wins, and a tombstone removes its key."""
    GLOBAL_TABLE = "global table"
    """One of all partitions of a table. Tombstones stay: other partitions may have older rows of the key."""


class Entry(NamedTuple):
    """The state of one key. Without a value it is a tombstone, which keeps the stamp for a while."""

    value: bytes | None
    stamp: int = NEVER
    """The offset of the last source record applied to it."""
    revision: int = 0
    """Rises when the entry changes without a record, at the same stamp."""
    due_ms: int = NEVER
    """The event time from which on it is to be looked at without a record of its key."""

    @property
    def age(self) -> tuple[int, int]:
        """The order of two entries of a key: the later one has the larger."""
        return self.stamp, self.revision


def row_of(value: bytes | None, timestamp_ms: int, read: int) -> Entry:
    """Return the entry of a row of a global table; `read` rises with each row that is read."""
    return Entry(value, stamp=read, revision=timestamp_ms)


def newest_row(rows: Iterable[Entry | None]) -> Entry | None:
    """Return the newest of the rows that partitions have of one key: by timestamp, then as they were read.

    Offsets say nothing here. A key is in more than one partition since its topic has grown.
    """
    found = (row for row in rows if row is not None)
    return max(found, key=lambda row: (row.revision, row.stamp), default=None)


def to_headers(entry: Entry) -> list[tuple[str, bytes]]:
    """Return the headers of an entry's changelog record."""
    return [(STATE_HEADER, _LAYOUT.pack(entry.stamp, entry.revision, entry.due_ms))]


def from_record(value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> Entry:
    """Return the entry of a changelog record; one without our header, or with a damaged one, has no stamp."""
    for name, data in headers:
        if name == STATE_HEADER and data is not None and len(data) == _LAYOUT.size:
            return Entry(value, *_LAYOUT.unpack(data))
    return Entry(value)
