"""A keyed store in memory: fast, and restored from the whole changelog."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

from ottla.streams.state.store import NEVER, Contents, Entry


class MemoryStore:
    """The entries of a partition in a dict."""

    def __init__(self, contents: Contents = Contents.STATE) -> None:
        self.on_damage: Callable[[], None] = self.go_on
        self._contents = contents
        self._entries: dict[bytes, Entry] = {}
        self._due: list[tuple[int, bytes]] = []
        self._tombstones: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        """Number of entries, tombstones among them."""
        return len(self._entries)

    @property
    def checkpoint(self) -> int | None:
        """None: nothing outlives the process."""
        return None

    @property
    def next_due_ms(self) -> int | None:
        """The earliest time at which an entry may be due."""
        return self._due[0][0] if self._due else None

    has_room = True
    """Memory always takes entries."""

    def at_hand(self, key: bytes) -> Entry | None:
        """Return the entry of a key."""
        return self._entries.get(key)

    async def get(self, key: bytes) -> Entry | None:
        """Return the entry of a key."""
        return self._entries.get(key)

    def put(self, key: bytes, entry: Entry) -> None:
        """Replace an entry."""
        if entry.value is None and self._contents is Contents.TABLE:
            self._entries.pop(key, None)
            return
        before = self._entries.get(key)
        self._entries[key] = entry
        if entry.value is None:
            self._tombstones.append((entry.stamp, key))
        if entry.due_ms != NEVER and (before is None or before.due_ms != entry.due_ms):
            heapq.heappush(self._due, (entry.due_ms, key))

    async def apply(self, records: Iterable[tuple[bytes, Entry]], next_offset: int) -> None:
        """Take over records of the changelog."""
        for key, entry in records:
            before = self._entries.get(key)
            if before is None or before.age <= entry.age or self._contents is not Contents.STATE:
                self.put(key, entry)

    async def due(self, until_ms: int, limit: int) -> list[bytes]:
        """Return keys that are due; they are returned again until their entries change."""
        found: dict[bytes, int] = {}
        while self._due and self._due[0][0] <= until_ms and len(found) < limit:
            due_ms, key = heapq.heappop(self._due)
            entry = self._entries.get(key)
            if entry is not None and entry.due_ms == due_ms:
                found[key] = due_ms
        for key, due_ms in found.items():
            heapq.heappush(self._due, (due_ms, key))
        return list(found)

    async def forget(self, below: int) -> None:
        """Drop tombstones below an offset."""
        waiting: deque[tuple[int, bytes]] = deque()
        while self._tombstones:
            stamp, key = self._tombstones.popleft()
            if stamp >= below:
                waiting.append((stamp, key))
            elif (entry := self._entries.get(key)) and entry.value is None and entry.stamp < below:
                del self._entries[key]
        self._tombstones = waiting

    async def tombstones(self) -> dict[bytes, Entry]:
        """Return the entries without a value."""
        kept = {key: self._entries.get(key) for _, key in self._tombstones}
        return {key: entry for key, entry in kept.items() if entry is not None and entry.value is None}

    async def entries(self, keys: Collection[bytes]) -> dict[bytes, Entry]:
        """Return the entries of keys."""
        return {key: self._entries[key] for key in keys if key in self._entries}

    async def remove(self, entries: Mapping[bytes, Entry]) -> None:
        """Remove entries that have not changed since."""
        for key, entry in entries.items():
            if self._entries.get(key) == entry:
                del self._entries[key]
        kept = await self.tombstones()
        self._tombstones = deque((entry.stamp, key) for key, entry in kept.items())

    async def room(self) -> None:
        """Memory is always ready."""

    async def rebuild(self) -> None:
        """Drop everything."""
        await self.clear()

    def go_on(self) -> None:
        """Nothing waits for memory."""

    def give_up(self) -> None:
        """Nothing waits for memory."""

    async def close(self) -> None:
        """Drop everything."""
        await self.clear()

    async def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self._due.clear()
        self._tombstones.clear()
