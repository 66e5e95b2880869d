"""One partition of a store in use: its entries, and which keys are being changed."""

from __future__ import annotations

import asyncio
import struct
from typing import Final

from ottla.streams.state.entry import NEVER, Entry
from ottla.streams.state.store import KeyedStore

CLOSED_UNTIL_KEY: Final = b"\x00ottla.closed-until"
"""The key of the changelog record that says up to which time idle keys' windows were closed."""

SOURCE_KEY: Final = b"\x00ottla.source"
"""The key of the changelog record that says of which topic, by its id, the stamps are offsets."""

_TIME: Final = struct.Struct(">q")


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
