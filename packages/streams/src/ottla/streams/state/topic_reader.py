"""Reads partitions of changelogs and tables into stores, without a group: to their end, and from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Self

from ottla.consumer import ConsumerConfig, ConsumerRecord, NotAssigned
from ottla.protocol.topics import TopicPartition
from ottla.streams.environment import environment
from ottla.streams.state.entry import Entry, from_record
from ottla.streams.state.errors import StoreClosed
from ottla.streams.state.store import KeyedStore

POLL_MS: Final = 100
"""How soon an end without records is noticed, such as one of transaction markers."""
PATIENCE_S: Final = 0.1
"""How long a store holds up others, when it is slow or its file locked; then its partition is paused."""
EndOffsets = Callable[[Iterable[TopicPartition]], Awaitable[dict[TopicPartition, int]]]


@dataclass(eq=False)
class _Load:
    """A store that is loaded from a partition, or follows it."""

    store: KeyedStore
    end_offset: int
    is_followed: bool
    is_table: bool
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    is_applying: asyncio.Lock = field(default_factory=asyncio.Lock)

    def entries(self, records: Sequence[ConsumerRecord]) -> list[tuple[bytes, Entry]]:
        """Return the entries of records; the stamp of a table's row is its own offset."""
        with_key = (record for record in records if record.key is not None)
        if self.is_table:
            return [(record.key, Entry(record.value, record.offset)) for record in with_key]
        return [(record.key, from_record(record.value, record.headers)) for record in with_key]


class TopicReader:
    """Loads stores from partitions; use it as an async context manager.

    `end_offsets` returns the high watermarks: with `read_committed`, a transaction that is still open at the
    end is waited for.
    """

    def __init__(self, config: ConsumerConfig, end_offsets: EndOffsets) -> None:
        plain = replace(
            config,
            group_id=None,
            group_instance_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            interceptors=(),
        )
        self._consumer = environment().consumer(plain)
        self._end_offsets = end_offsets
        self._loads: dict[TopicPartition, _Load] = {}
        self._tasks = asyncio.TaskGroup()
        self._reading: asyncio.Task[None] | None = None
        self._applying: set[asyncio.Task[None]] = set()
        """Tasks that apply records; those of slow stores outlive a turn of the reader."""
        self._has_partitions = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        try:
            await self._tasks.__aenter__()
            self._reading = self._tasks.create_task(self._read(), name="ottla-streams-topic-reader")
        except BaseException:
            await self._consumer.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for task in (self._reading, *self._applying):
                if task is not None:
                    task.cancel()
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            await self._consumer.stop()

    async def load(
        self, partition: TopicPartition, store: KeyedStore, *, follow: bool, is_table: bool = False
    ) -> None:
        """Read a partition into a store; return when the end that it had at the call is applied.

        Reading starts at the store's checkpoint. With `follow` it continues until `drop`.
        """
        end_offset = (await self._end_offsets([partition]))[partition]
        if store.checkpoint is not None and store.checkpoint > end_offset:
            await store.clear()  # the log lost its end, or was made anew
        load = self._loads[partition] = _Load(store, end_offset, follow, is_table)
        self._assign()
        if store.checkpoint is not None:
            self._consumer.seek(partition, store.checkpoint)
        try:
            await load.loaded.wait()
        except BaseException:
            await self.drop(partition, store)
            raise

    async def drop(self, partition: TopicPartition, store: KeyedStore) -> None:
        """Stop reading into a store; nothing is applied to it after this."""
        store.give_up()
        load = self._loads.get(partition)
        if load is None or load.store is not store:
            return
        del self._loads[partition]
        self._assign()
        async with load.is_applying:
            return

    def _assign(self) -> None:
        self._consumer.assign(self._loads)
        if self._loads:
            self._has_partitions.set()
        else:
            self._has_partitions.clear()

    async def _read(self) -> None:
        while True:
            await self._has_partitions.wait()
            fetched = await self._consumer.getmany(timeout_ms=POLL_MS)
            for partition, records in fetched.items():
                if (load := self._loads.get(partition)) is not None:
                    await self._apply_soon(partition, load, records)
            for partition, load in list(self._loads.items()):
                if not load.loaded.is_set():
                    await self._note_progress(partition, load)

    async def _apply_soon(
        self, partition: TopicPartition, load: _Load, records: Sequence[ConsumerRecord]
    ) -> None:
        applying = self._tasks.create_task(self._apply(partition, load, records), name=f"apply {partition}")
        self._applying.add(applying)
        applying.add_done_callback(self._applying.discard)
        done, _ = await asyncio.wait([applying], timeout=PATIENCE_S)
        if not done and self._loads.get(partition) is load:
            self._consumer.pause(partition)
            applying.add_done_callback(lambda _: self._resume(partition, load))

    def _resume(self, partition: TopicPartition, load: _Load) -> None:
        if self._loads.get(partition) is load:
            self._consumer.resume(partition)

    async def _apply(self, partition: TopicPartition, load: _Load, records: Sequence[ConsumerRecord]) -> None:
        async with load.is_applying:
            if self._loads.get(partition) is load:
                with suppress(StoreClosed):  # `drop` comes next
                    await load.store.apply(load.entries(records), records[-1].offset + 1)

    async def _note_progress(self, partition: TopicPartition, load: _Load) -> None:
        if self._loads.get(partition) is not load or load.is_applying.locked():
            return
        with suppress(NotAssigned):  # dropped meanwhile
            if await self._consumer.position(partition) < load.end_offset:
                return
        if self._loads.get(partition) is load:
            load.loaded.set()
            if not load.is_followed:
                del self._loads[partition]
                self._assign()
