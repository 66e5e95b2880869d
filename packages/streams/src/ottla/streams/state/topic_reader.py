"""Reads partitions of changelogs and tables into stores, without a group: to their end, and from then on."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Self

from ottla.consumer import ConsumerConfig, ConsumerRecord, NotAssigned
from ottla.protocol.topics import TopicPartition
from ottla.streams.environment import environment
from ottla.streams.state.store import (
    Contents,
    Entry,
    KeyedStore,
    StoreClosed,
    StoreDamaged,
    from_record,
    row_of,
)

log = logging.getLogger(__name__)

POLL_MS: Final = 100
"""How soon an end without records is noticed, such as one of transaction markers."""
MOST_READ_PER_MS: Final = 4_096
PATIENCE_S: Final = 0.1
"""How long a store holds up others, when it is slow or its file locked; then its partition is paused."""
EndOffsets = Callable[[Iterable[TopicPartition]], Awaitable[dict[TopicPartition, int]]]


@dataclass(eq=False)
class _Load:
    """A store that is loaded from a partition, or follows it."""

    store: KeyedStore
    end_offset: int
    is_followed: bool
    contents: Contents
    count_read: Callable[[], int]
    """Rises with each call."""
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    """Everything is applied, or will not be: the store is damaged, or was dropped."""
    is_damaged: bool = False
    is_applying: asyncio.Lock = field(default_factory=asyncio.Lock)

    def entries(self, records: Sequence[ConsumerRecord]) -> list[tuple[bytes, Entry]]:
        """Return the entries of records; the stamp of a table's row is its own offset."""
        with_key = (record for record in records if record.key is not None)
        match self.contents:
            case Contents.TABLE:
                return [(record.key, Entry(record.value, record.offset)) for record in with_key]
            case Contents.GLOBAL_TABLE:
                return [
                    (record.key, row_of(record.value, record.timestamp_ms, self.count_read()))
                    for record in with_key
                ]
            case _:
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
        self._reloading: dict[TopicPartition, asyncio.Task[None]] = {}
        self._has_partitions = asyncio.Event()
        # Above those of an earlier process, which files have.
        self._reads = itertools.count(environment().now_ms() * MOST_READ_PER_MS)

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
            for task in (self._reading, *self._applying, *self._reloading.values()):
                if task is not None:
                    task.cancel()
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            await self._consumer.stop()

    async def load(
        self,
        partition: TopicPartition,
        store: KeyedStore,
        contents: Contents = Contents.STATE,
        *,
        follow: bool,
    ) -> None:
        """Read a partition into a store; return when the end that it had at the call is applied.

        Reading starts at the store's checkpoint. With `follow` it continues until `drop`. A store that turns
        out to be damaged is rebuilt: here, or later in a task.
        """
        store.on_damage = lambda: self._damaged(partition, store)
        while not await self._loaded(partition, store, contents, follow=follow):
            await store.rebuild()
        store.go_on()

    async def _loaded(
        self, partition: TopicPartition, store: KeyedStore, contents: Contents, *, follow: bool
    ) -> bool:
        """Read a partition into a store to its end; return false if the store is damaged."""
        end_offset = (await self._end_offsets([partition]))[partition]
        if store.checkpoint is not None and store.checkpoint > end_offset:
            try:
                await store.clear()  # the log lost its end, or was made again
            except StoreDamaged:
                return False
        load = self._loads[partition] = _Load(store, end_offset, follow, contents, self._reads.__next__)
        self._assign()
        if store.checkpoint is not None:
            self._consumer.seek(partition, store.checkpoint)
        try:
            await load.loaded.wait()
        except BaseException:
            await self.drop(partition, store)
            raise
        return not load.is_damaged

    def _damaged(self, partition: TopicPartition, store: KeyedStore) -> None:
        """Stop reading into a damaged store, and read again from the beginning into its rebuilt one."""
        load = self._loads.get(partition)
        if load is None or load.store is not store:
            return  # it was dropped, or is being rebuilt
        load.is_damaged = True
        del self._loads[partition]
        self._assign()
        if not load.loaded.is_set():
            load.loaded.set()  # `load` rebuilds it
            return
        reloading = self._tasks.create_task(self._reload(partition, load), name=f"rebuild {partition}")
        self._reloading[partition] = reloading
        reloading.add_done_callback(lambda task: self._reloaded(partition, task))

    async def _reload(self, partition: TopicPartition, load: _Load) -> None:
        await load.store.rebuild()
        await self.load(partition, load.store, load.contents, follow=load.is_followed)
        log.info("the state of a partition is rebuilt", extra=partition._asdict())

    def _reloaded(self, partition: TopicPartition, task: asyncio.Task[None]) -> None:
        if self._reloading.get(partition) is task:
            del self._reloading[partition]

    async def drop(self, partition: TopicPartition, store: KeyedStore) -> None:
        """Stop reading into a store; nothing is applied to it after this."""
        store.give_up()
        if (reloading := self._reloading.pop(partition, None)) is not None:
            reloading.cancel()
            await asyncio.wait([reloading])
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
            # Before anything is awaited: what is loaded again meanwhile begins with other records.
            due = [(partition, self._loads.get(partition), records) for partition, records in fetched.items()]
            for partition, load, records in due:
                if load is not None:
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
                with suppress(StoreClosed, StoreDamaged):  # `drop` comes next, or another load
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
