"""Keyed stores: their entries, the interface to one partition of them, and a partition in use.

An entry keeps a stamp: the offset of the last source record that was applied to it. A record at or below the
stamp was applied before, in another life of the process, and is not applied again.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from ottla.streams.errors import StreamsError

STATE_HEADER: Final = "ottla-state"
"""The header of changelog records with stamp, revision and due time."""
NEVER: Final = -1
"""The stamp of what no record was applied to, and the due time of what never becomes due."""

_LAYOUT: Final = struct.Struct(">qqq")

CLOSED_UNTIL_KEY: Final = b"\x00ottla.closed-until"
"""The key of the changelog record that says up to which time idle keys' windows were closed."""

SOURCE_KEY: Final = b"\x00ottla.source"
"""The key of the changelog record that says of which topic, by its id, the stamps are offsets."""

_TIME: Final = struct.Struct(">q")


class StoreClosed(StreamsError):
    """The store was closed: its partition is no longer assigned."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"the state file {path} is closed: its partition is no longer assigned")
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path,)


class StoreDamaged(StreamsError):
    """The state file is damaged, and is rebuilt from its topic: what was read for it is read again."""

    def __init__(self, path: Path, cause: BaseException | None) -> None:
        because = "" if cause is None else f" ({cause})"
        super().__init__(f"the state file {path} is damaged{because} and is rebuilt from its topic")
        self.path = path
        self.cause = cause

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path, self.cause)


class Elsewhere(Enum):
    """Says that an entry is not in memory."""

    ELSEWHERE = "elsewhere"


ELSEWHERE: Final = Elsewhere.ELSEWHERE
"""Whether there is an entry is known after a read."""


class KeyedStore(Protocol):
    """The entries of one partition. At most one caller reads or writes a key at a time."""

    on_damage: Callable[[], None]
    """Is called when a file turns out to be damaged. `rebuild` and another reading of the topic mend it."""

    @property
    def checkpoint(self) -> int | None:
        """The changelog offset up to which the store has everything; None: nothing is kept."""
        ...

    @property
    def next_due_ms(self) -> int | None:
        """No entry becomes due before this event time; None: none ever does."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether the store takes entries now; `room` waits for that."""
        ...

    def at_hand(self, key: bytes) -> Entry | Elsewhere | None:
        """Return the entry of a key if it is in memory, ELSEWHERE if `get` would read it."""
        ...

    async def get(self, key: bytes) -> Entry | None:
        """Return the entry of a key, also if it is a tombstone."""
        ...

    def put(self, key: bytes, entry: Entry) -> None:
        """Replace an entry whose changelog record was sent."""
        ...

    async def apply(self, records: Iterable[tuple[bytes, Entry]], next_offset: int) -> None:
        """Take over changelog records, in order. Entries older than those in the store are left out."""
        ...

    async def due(self, until_ms: int, limit: int) -> list[bytes]:
        """Return up to `limit` keys that are due at an event time, the earliest first."""
        ...

    async def forget(self, below: int) -> None:
        """Drop tombstones with stamps below a committed offset: their records never come again."""
        ...

    async def tombstones(self) -> dict[bytes, Entry]:
        """Return the entries without a value."""
        ...

    async def entries(self, keys: Collection[bytes]) -> dict[bytes, Entry]:
        """Return the entries of keys; those without one are left out."""
        ...

    async def remove(self, entries: Mapping[bytes, Entry]) -> None:
        """Remove entries that have not changed since they were returned."""
        ...

    async def room(self) -> None:
        """Return once the store can take entries: at once, unless writes wait for the disk."""
        ...

    async def rebuild(self) -> None:
        """Begin with no entries and no checkpoint, in another file. Reads wait for `go_on`."""
        ...

    def go_on(self) -> None:
        """Resume reads: everything is applied again."""
        ...

    async def clear(self) -> None:
        """Drop all entries, and the checkpoint."""
        ...

    def give_up(self) -> None:
        """Make calls that wait raise StoreClosed; `close` comes next."""
        ...

    async def close(self) -> None:
        """Close files. What was put and is not applied yet is in the changelog."""
        ...


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


class StorePartition:
    """A store, with exclusive keys: records of a key come one after the other, but idle keys may be swept."""

    def __init__(self, store: KeyedStore, changelog: str, source_id: bytes = b"", *, level: int = 0) -> None:
        self.store = store
        self.level = level
        """How many aggregates its own comes after, in the longest chain of them."""
        self.changelog = changelog
        """The topic that its entries are written to."""
        self.closed_until_ms = NEVER
        """The event time up to which windows of idle keys were closed."""
        self.source_id = source_id
        """The id of the topic whose offsets are the stamps."""
        self.written_source_id: bytes | None = None
        """The id that the changelog has."""
        self._busy: dict[bytes, asyncio.Event | None] = {}
        """The keys that are being changed, with an event for those that are waited for."""

    async def acquire(self, key: bytes) -> None:
        """Return once the key is the caller's to change; `release` ends that."""
        while not self.acquire_if_free(key):
            released = self._busy[key]
            if released is None:
                released = self._busy[key] = asyncio.Event()
            await released.wait()

    def acquire_if_free(self, key: bytes) -> bool:
        """Return whether the key is free; if so, it is the caller's to change from now on."""
        if key in self._busy:
            return False
        self._busy[key] = None
        return True

    def release(self, key: bytes) -> None:
        """Unlock the key for other runs."""
        released = self._busy.pop(key)
        if released is not None:
            released.set()

    async def restored(self) -> None:
        """Take over what the changelog says beside entries of keys."""
        entry = await self.store.get(CLOSED_UNTIL_KEY)
        if entry is not None and entry.value is not None and len(entry.value) == _TIME.size:
            (self.closed_until_ms,) = _TIME.unpack(entry.value)
        source = await self.store.get(SOURCE_KEY)
        self.written_source_id = None if source is None else source.value

    @property
    def is_of_another_topic(self) -> bool:
        """Whether the topic was created again since: its offsets say nothing about the stamps."""
        return self.written_source_id not in (None, self.source_id)


def closed_until_entry(time_ms: int) -> Entry:
    """Return the entry that says up to which time idle keys' windows were closed."""
    return Entry(_TIME.pack(time_ms), stamp=time_ms)
