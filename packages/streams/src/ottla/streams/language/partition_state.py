"""The state of a sub-topology for one assigned partition: its stores, its tables, and its time."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import StreamsError, TopologyError
from ottla.streams.language.declarations import TableNode
from ottla.streams.language.runs import Lookup
from ottla.streams.language.stores import StoreFactory, Tables
from ottla.streams.language.topics import changelog_topic
from ottla.streams.language.topology import SubTopology
from ottla.streams.language.windows import NO_TIME
from ottla.streams.state.store import Contents, StorePartition

_CHUNK = 1_024


class PartitionTime:
    """The highest timestamp below the committed offset: all records that are older were handled. Pure.

    Handled records are kept in chunks in the order in which they ended, because a commit may pass 100,000:
    most chunks are passed as a whole.
    """

    def __init__(self) -> None:
        self.time_ms = NO_TIME
        self.committed = 0
        self._last = _Handled([], [])
        self._chunks = [self._last]

    def handled(self, offset: int, timestamp_ms: int) -> None:
        """Note a record that was handled."""
        if len(self._last.offsets) >= _CHUNK:
            self._last = _Handled([], [])
            self._chunks.append(self._last)
        self._last.offsets.append(offset)
        self._last.times_ms.append(timestamp_ms)

    def commit(self, offset: int) -> None:
        """Note that all records below an offset are finished."""
        self.committed = max(self.committed, offset)
        for chunk in self._chunks:
            self.time_ms = max(self.time_ms, chunk.take_below(offset))
        self._chunks = [chunk for chunk in self._chunks if chunk.offsets or chunk is self._last]


class _Handled(NamedTuple):
    """Some records that were handled."""

    offsets: list[int]
    times_ms: list[int]

    def take_below(self, offset: int) -> int:
        """Remove the records below an offset; return the highest timestamp among them."""
        offsets, times_ms = self
        if not offsets or min(offsets) >= offset:
            return NO_TIME
        if max(offsets) < offset:
            highest = max(times_ms)
            offsets.clear()
            times_ms.clear()
            return highest
        kept = [handled for handled in zip(offsets, times_ms, strict=True) if handled[0] >= offset]
        highest = max(time for at, time in zip(offsets, times_ms, strict=True) if at < offset)
        offsets[:] = [at for at, _ in kept]
        times_ms[:] = [time for _, time in kept]
        return highest


class PartitionState:
    """The stores and tables of one partition; `open` restores them, and records wait for `restored`."""

    def __init__(
        self,
        partition: TopicPartition,
        part: SubTopology,
        app_id: str,
        stores: StoreFactory,
        tables: Tables,
        lookup: Lookup,
    ) -> None:
        self.part = part
        self.lookup = lookup
        """Finds rows of tables for its records."""
        self.opening: asyncio.Task[None] | None = None
        """The task that restores it."""
        self.time = PartitionTime()
        self.stores: dict[str, StorePartition] = {}
        self._is_forgetting = False
        self.is_restored = False
        """Whether records can be handled."""
        self.restored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Is done when records can be handled, or has what restoring failed with."""
        self._partition = partition
        self._app_id = app_id
        self._factory = stores
        self._tables = tables
        self._opened: list[TableNode] = []
        self._forgotten = 0
        self.changelogs = frozenset(changelog_topic(app_id, spec) for spec in part.stores)
        """The topics of its stores."""

    async def open(self) -> None:
        """Restore the stores and load the tables, to the ends that their topics have now."""
        try:
            await self._open()
            self.is_restored = True
            self.restored.set_result(None)
        except Exception as error:
            self._fail(error)
        except asyncio.CancelledError:
            self._fail(StreamsError(f"{self._partition} was revoked while its state was restored"))
            raise

    def _fail(self, error: Exception) -> None:
        self.restored.set_exception(error)
        self.restored.exception()  # who waits gets it, and nobody may wait

    async def _open(self) -> None:
        number = self._partition.partition
        for table in self.part.tables:
            if not table.is_global:
                self._opened.append(table)
                await self._tables.open(table, [number])
        levels = self.part.levels
        for spec in self.part.stores:
            changelog = TopicPartition(changelog_topic(self._app_id, spec), number)
            store = await self._factory.open(spec.kind, changelog, Contents.STATE)
            source_id = self._factory.topic_ids[spec.topic].encode()
            opened = self.stores[spec.name] = StorePartition(
                store, changelog.topic, source_id, level=levels[spec.name]
            )
            await opened.restored()
            if opened.is_of_another_topic:
                raise TopologyError(
                    f"the topic {spec.topic!r} was created again, and the store {spec.name!r} is of the one "
                    f"before: delete {changelog.topic!r}, or give the store another name"
                )

    async def close(self) -> None:
        """Close the stores, and the tables that no other stream reads; stop restoring them."""
        if self.opening is not None and not self.opening.done():
            self.opening.cancel()
            await asyncio.wait([self.opening])
        number = self._partition.partition
        for opened in self.stores.values():
            await self._factory.close(TopicPartition(opened.changelog, number), opened.store)
        self.stores.clear()
        for table in self._opened:
            await self._tables.close(table, [number])
        self._opened.clear()

    @property
    def may_forget(self) -> bool:
        """Whether there was a commit since tombstones were dropped."""
        return self.time.committed != self._forgotten and not self._is_forgetting

    async def forget_tombstones(self) -> None:
        """Drop tombstones of records that are committed."""
        committed = self.time.committed
        self._is_forgetting = True
        try:
            for opened in self.stores.values():
                await opened.store.forget(committed)
            self._forgotten = committed
        finally:
            self._is_forgetting = False
