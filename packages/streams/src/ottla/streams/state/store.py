"""The interface of keyed stores: the entries of one partition of a changelog or table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from ottla.streams.errors import StreamsError
from ottla.streams.state.entry import Entry


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
