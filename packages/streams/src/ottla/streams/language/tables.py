"""Tables while they are read: each partition once, however many streams are joined with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.protocol.topics import TopicPartition
from ottla.streams.language.nodes import TableNode
from ottla.streams.language.stores import StoreFactory
from ottla.streams.state.store import ELSEWHERE, KeyedStore


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
                    opened.store = await self._stores.open(table.store, partition, is_table=True)

    async def close(self, table: TableNode, partitions: Iterable[int]) -> None:
        """Close partitions of a table that nobody else uses."""
        for number in partitions:
            partition = TopicPartition(table.topic, number)
            opened = self._open[partition]
            opened.users -= 1
            async with opened.changing:
                if opened.users == 0 and opened.store is not None:
                    await self._stores.close(partition, opened.store)
                    opened.store = None

    def row(
        self, table: TableNode, partitions: Sequence[int], key: bytes
    ) -> bytes | Awaitable[bytes | None] | None:
        """Return the newest value of a key, wherever it is in some partitions, or await it."""
        for number in partitions:
            store = self._open[TopicPartition(table.topic, number)].store
            entry = None if store is None else store.at_hand(key)
            if entry is ELSEWHERE:
                return self._read(table, partitions, key)
            if entry is not None:
                return entry.value
        return None

    async def _read(self, table: TableNode, partitions: Sequence[int], key: bytes) -> bytes | None:
        for number in partitions:
            opened = self._open[TopicPartition(table.topic, number)]
            if opened.store is not None and (entry := await opened.store.get(key)) is not None:
                return entry.value
        return None


class PartitionLookup:
    """Looks rows up in the partition of a run, or in all partitions of a global table."""

    def __init__(self, tables: Tables, partition: int, counts: Mapping[str, int]) -> None:
        self._tables = tables
        self._own = (partition,)
        self._counts = counts

    def row(self, table: TableNode, key: bytes) -> bytes | Awaitable[bytes | None] | None:
        """Return the newest value of a key, None without one, or what is awaited for it."""
        partitions = range(self._counts[table.topic]) if table.is_global else self._own
        return self._tables.row(table, partitions, key)
