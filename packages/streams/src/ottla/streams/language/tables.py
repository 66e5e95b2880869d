"""Tables while they are read: each partition once, however many streams are joined with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from ottla.protocol.topics import TopicPartition
from ottla.streams.language.nodes import TableNode
from ottla.streams.language.stores import StoreFactory
from ottla.streams.state.store import KeyedStore


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

    async def row(self, table: TableNode, partitions: Iterable[int], key: bytes) -> bytes | None:
        """Return the newest value of a key, wherever it is in some partitions; None without one."""
        for number in partitions:
            opened = self._open[TopicPartition(table.topic, number)]
            if opened.store is not None and (entry := await opened.store.get(key)) is not None:
                return entry.value
        return None
