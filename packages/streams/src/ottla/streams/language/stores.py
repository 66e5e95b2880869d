"""Open stores of partitions: made, loaded from their topic, and closed."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.protocol.topics import TopicPartition
from ottla.streams.language.nodes import StoreKind
from ottla.streams.state.entry import Contents
from ottla.streams.state.memory import MemoryStore
from ottla.streams.state.sqlite import SqliteStore
from ottla.streams.state.store import KeyedStore
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
