"""Open stores and tables of assigned partitions: made, loaded from their topic, shared, and closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ottla.protocol.topics import TopicPartition
from ottla.streams.handlers.context import key_hash
from ottla.streams.language.declarations import StoreKind, TableNode
from ottla.streams.state.memory import MemoryStore
from ottla.streams.state.sqlite import SqliteStore
from ottla.streams.state.store import ELSEWHERE, Contents, Entry, KeyedStore, newest_row
from ottla.streams.state.topic_reader import TopicReader

ROWS_WITH_TIMES: Final = " with times"
"""Distinguishes files of global tables from those of earlier versions, whose rows have no timestamps."""


@dataclass(frozen=True)
class StoreFactory:
    """Makes stores and loads them. `state_dir` is for files of SQLite stores; `executor` has one thread."""

    reader: TopicReader
    executor: Executor
    state_dir: Path
    topic_ids: dict[str, str]
    """The ids of topics and their logs: a topic that was deleted and created again has another id."""

    async def open(self, kind: StoreKind, partition: TopicPartition, contents: Contents) -> KeyedStore:
        """Return a store that has what its partition had at the call. Tables and files follow it further."""
        store = await self._made(kind, partition, contents)
        follow = contents is not Contents.STATE or kind == "sqlite"
        try:
            await self.reader.load(partition, store, contents, follow=follow)
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self, partition: TopicPartition, store: KeyedStore) -> None:
        """Stop following and close the files."""
        await self.reader.drop(partition, store)
        await store.close()

    async def _made(self, kind: StoreKind, partition: TopicPartition, contents: Contents) -> KeyedStore:
        if kind == "memory":
            return MemoryStore(contents)
        path = self.state_dir / partition.topic / f"{partition.partition}.sqlite"
        identity = self.topic_ids.get(partition.topic, "")
        if contents is Contents.GLOBAL_TABLE:
            identity += ROWS_WITH_TIMES
        store = SqliteStore(path, identity, self.executor, contents)
        await store.open()
        return store


@dataclass(eq=False)
class _OpenTable:
    users: int = 0
    store: KeyedStore | None = None
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Tables:
    """The partitions of tables that this member reads."""

    def __init__(self, stores: StoreFactory) -> None:
        self._stores = stores
        self._open: dict[TopicPartition, _OpenTable] = {}

    async def open(self, table: TableNode, partitions: Iterable[int]) -> None:
        """Return when partitions of a table are loaded; `close` ends that, as often as it was opened."""
        for number in partitions:
            partition = TopicPartition(table.topic, number)
            opened = self._open.setdefault(partition, _OpenTable())
            opened.users += 1
            async with opened.changing:
                if opened.store is None:
                    contents = Contents.GLOBAL_TABLE if table.is_global else Contents.TABLE
                    opened.store = await self._stores.open(table.store, partition, contents)

    async def close(self, table: TableNode, partitions: Iterable[int]) -> None:
        """Close partitions of a table that have no other user."""
        for number in partitions:
            partition = TopicPartition(table.topic, number)
            opened = self._open.get(partition)
            if opened is None:
                continue  # an earlier one failed to open
            opened.users -= 1
            async with opened.changing:
                if opened.users == 0 and opened.store is not None:
                    await self._stores.close(partition, opened.store)
                    opened.store = None

    def row(
        self, table: TableNode, partitions: Sequence[int], key: bytes
    ) -> bytes | Awaitable[bytes | None] | None:
        """Return the newest value of a key in some partitions, or await it."""
        found: Entry | None = None
        for number in partitions:
            store = self._open[TopicPartition(table.topic, number)].store
            entry = None if store is None else store.at_hand(key)
            if entry is ELSEWHERE:
                return self._read(table, partitions, key)
            if found is None:
                found = entry
            elif entry is not None:
                found = newest_row((found, entry))
        return None if found is None else found.value

    async def _read(self, table: TableNode, partitions: Sequence[int], key: bytes) -> bytes | None:
        stores = self._stores_of(table, partitions)
        found = newest_row([await store.get(key) for store in stores])
        return None if found is None else found.value

    def place_of(self, table: TableNode, partitions: Sequence[int], key: bytes) -> str:
        """Name the partition of the newest row of a key, and its offset if that is known."""
        rows: list[tuple[int, Entry]] = []
        for number in partitions:
            store = self._open[TopicPartition(table.topic, number)].store
            entry = None if store is None else store.at_hand(key)
            if entry is not None and entry is not ELSEWHERE:
                rows.append((number, entry))
        newest = newest_row(entry for _, entry in rows)
        for number, entry in rows:
            if entry is newest:
                return f"partition {number}" + ("" if table.is_global else f", offset {entry.stamp}")
        return "not in memory any more"

    async def drop_tombstones(self, table: TableNode, partitions: Sequence[int]) -> None:
        """Remove the older rows of keys that a partition of a global table has a tombstone of, and that."""
        stores = self._stores_of(table, partitions)
        for store in stores:
            dead = await store.tombstones()
            if not dead:
                continue
            for other in stores:
                if other is not store:
                    rows = await other.entries(dead)
                    older = {key: row for key, row in rows.items() if newest_row((row, dead[key])) is not row}
                    await other.remove(older)
            await store.remove(dead)

    def _stores_of(self, table: TableNode, partitions: Sequence[int]) -> list[KeyedStore]:
        opened = (self._open[TopicPartition(table.topic, number)].store for number in partitions)
        return [store for store in opened if store is not None]


class PartitionLookup:
    """Looks rows up in the partition of a run, or in all partitions of a global table."""

    def __init__(self, tables: Tables, partition: int, counts: Mapping[str, int]) -> None:
        self._tables = tables
        self._own = (partition,)
        self._counts = counts

    def row(self, table: TableNode, key: bytes) -> bytes | Awaitable[bytes | None] | None:
        """Return the newest value of a key, None without one, or an awaitable of it."""
        return self._tables.row(table, self._partitions_of(table), key)

    def name_row(self, table: TableNode, key: bytes) -> str:
        """Name the row of a key that was just looked up, with its table and partition."""
        place = self._tables.place_of(table, self._partitions_of(table), key)
        return f"the row of table {table.topic!r} ({place}, key {key_hash(key)})"

    def _partitions_of(self, table: TableNode) -> Sequence[int]:
        return range(self._counts[table.topic]) if table.is_global else self._own
