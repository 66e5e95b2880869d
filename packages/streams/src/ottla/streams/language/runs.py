"""A run: one record on its way through a sub-topology. What it writes is kept until all of it succeeded.

Steps call functions of programs, which may be plain or async, and each other. Nothing waits most of the time:
so a step is a plain call, and returns something to await only where it came to an async function, or to a
store that reads its file. A coroutine per step would cost more than the work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord
from ottla.streams.errors import StateUndecodable
from ottla.streams.language.declarations import TableNode
from ottla.streams.state.store import (
    CLOSED_UNTIL_KEY,
    ELSEWHERE,
    SOURCE_KEY,
    Entry,
    StorePartition,
    closed_until_entry,
    to_headers,
)

Headers = Sequence[tuple[str, bytes | None]]
Waiting = Awaitable[None] | None
"""None: all is done. Otherwise it is awaited, and the rest is done then."""


class Run:
    """One record: what it has changed and what it causes, before anybody else sees it."""

    __slots__ = (
        "_cells", "_closed_until", "closes_windows", "counters", "headers", "lookup", "outputs", "record",
        "stores", "timestamp_ms",
    )  # fmt: skip

    def __init__(
        self,
        record: ConsumerRecord,
        stores: Mapping[str, StorePartition],
        lookup: Lookup,
        counters: Counters,
    ) -> None:
        self.record = record
        self.headers: Headers = record.headers
        """The headers of what it writes: the record's own, unless a step says otherwise."""
        self.timestamp_ms = max(record.timestamp_ms, 0)
        """The event time; records without one count as from time 0."""
        self.stores = stores
        self.lookup = lookup
        self.counters = counters
        self.outputs: list[ProducerRecord] = []
        self.closes_windows = False
        """Whether it emits windows that its changelog records remove: then outputs come first."""
        self._cells: dict[tuple[str, bytes], Cell] = {}
        self._closed_until: dict[str, int] = {}

    def cell(self, store: str, key: bytes) -> Cell | Awaitable[Cell]:
        """Return the entry of a key, or an awaitable of it; no other run changes it until this one ends."""
        found = self._cells.get((store, key))
        if found is not None:
            return found
        partition = self.stores[store]
        if not partition.store.has_room or not partition.acquire_if_free(key):
            return self._acquired(store, partition, key)
        before = partition.store.at_hand(key)
        if before is ELSEWHERE:
            return self._loaded(store, partition, key)
        return self._made(store, partition, key, before)

    async def cell_if_free(self, store: str, key: bytes) -> Cell | None:
        """Return the entry of a key, unless another run has it, or this one."""
        partition = self.stores[store]
        if not partition.acquire_if_free(key):
            return None
        return await self._loaded(store, partition, key)

    def cannot_decode(self, where: str, remedy: str, error: Exception) -> StateUndecodable:
        """Return the error of state that the record needs and that cannot be decoded."""
        return StateUndecodable(self.record.topic_partition, self.record.offset, error, where, remedy)

    def close_until(self, store: str, time_ms: int) -> None:
        """Note that windows of idle keys are closed up to a time."""
        self._closed_until[store] = max(time_ms, self.stores[store].closed_until_ms)

    async def finish(self, outbox: Outbox) -> None:
        """Write everything, and then change the stores."""
        for output in self.outputs:
            await outbox.send(output)
        if self._cells or self._closed_until:
            await self._finish_stores(outbox)

    async def _finish_stores(self, outbox: Outbox) -> None:
        if self.closes_windows:
            # A crash between these two emits the windows again. The other way round they would be lost.
            await outbox.acknowledged()
        for partition in self._unnamed():
            await outbox.send(self._changelog(partition, SOURCE_KEY, Entry(partition.source_id)))
        for store, time_ms in self._closed_until.items():
            partition = self.stores[store]
            await outbox.send(self._changelog(partition, CLOSED_UNTIL_KEY, closed_until_entry(time_ms)))
        await self._write_entries(outbox)
        self._apply()

    async def _write_entries(self, outbox: Outbox) -> None:
        """Write entries to changelogs, those of the last aggregates of a chain first.

        An aggregate that knows a record passes on its value as of now, not as of then. So one must never know
        a record that those after it have lost: each waits until theirs are acknowledged.
        """
        cells, level = list(self._cells.values()), None
        if len(cells) > 1:
            cells.sort(key=lambda cell: -cell.partition.level)
        for cell in cells:
            # The known entry is written again: its changelog record may not have been acknowledged before.
            entry = cell.after or (cell.before if cell.is_known else None)
            if entry is None:
                continue
            if level not in (None, cell.partition.level):
                await outbox.acknowledged()
            level = cell.partition.level
            await outbox.send(self._changelog(cell.partition, cell.key, entry))

    def release(self) -> None:
        """Unlock the keys for other runs; always called at the end."""
        for cell in self._cells.values():
            cell.partition.release(cell.key)
        self._cells.clear()

    def _apply(self) -> None:
        for store, time_ms in self._closed_until.items():
            self.stores[store].closed_until_ms = time_ms
            self.stores[store].store.put(CLOSED_UNTIL_KEY, closed_until_entry(time_ms))
        for partition in self._unnamed():
            partition.written_source_id = partition.source_id
            partition.store.put(SOURCE_KEY, Entry(partition.source_id))
        for cell in self._cells.values():
            if cell.after is not None:
                cell.partition.store.put(cell.key, cell.after)

    def _unnamed(self) -> set[StorePartition]:
        """Return the stores of this run whose changelogs do not say yet of which topic they are."""
        return {cell.partition for cell in self._cells.values() if cell.partition.written_source_id is None}

    async def _acquired(self, store: str, partition: StorePartition, key: bytes) -> Cell:
        await partition.store.room()
        await partition.acquire(key)
        return await self._loaded(store, partition, key)

    async def _loaded(self, store: str, partition: StorePartition, key: bytes) -> Cell:
        try:
            before = await partition.store.get(key)
        except BaseException:
            partition.release(key)
            raise
        return self._made(store, partition, key, before)

    def _made(self, store: str, partition: StorePartition, key: bytes, before: Entry | None) -> Cell:
        is_known = before is not None and before.stamp >= self.record.offset
        cell = self._cells[store, key] = Cell(partition, key, before, is_known)
        return cell

    def _changelog(self, partition: StorePartition, key: bytes, entry: Entry) -> ProducerRecord:
        return ProducerRecord(
            partition.changelog, entry.value, key, self.record.partition, self.timestamp_ms, to_headers(entry)
        )


Step = Callable[[Run, Any, Any], Waiting]
"""Takes a run, a key and a value."""
GoOn = Callable[[Run, Any, Any, Any], Waiting]
"""Takes a run, a key, a value, and the result of a call."""


class Outbox(Protocol):
    """Takes what a record causes. The record is finished when all of it is acknowledged."""

    def send(self, output: ProducerRecord) -> Awaitable[None]:
        """Take an output, awaited."""

    async def acknowledged(self) -> None:
        """Return when all of it is acknowledged; at once in a transaction, which writes all or nothing."""


class Lookup(Protocol):
    """Looks up rows of tables."""

    def row(self, table: TableNode, key: bytes) -> bytes | Awaitable[bytes | None] | None:
        """Return the newest value of a key, None without one, or an awaitable of it."""

    def name_row(self, table: TableNode, key: bytes) -> str:
        """Name the row of a key that was just looked up, with its table and partition."""


@dataclass
class Counters:
    """Counters of records that were dropped."""

    late: int = 0
    """Records that came after their window was closed."""
    without_key: int = 0
    """Records without a key before a join or an aggregate."""
    without_value: int = 0
    """Records without a value in streams."""


@dataclass(slots=True, eq=False)
class Cell:
    """The entry of one key in one store during a run."""

    partition: StorePartition
    key: bytes
    before: Entry | None
    is_known: bool
    """Whether the record was applied before, in another life of the process."""
    after: Entry | None = None

    @property
    def value(self) -> bytes | None:
        """The value as of now in this run."""
        entry = self.after or self.before
        return None if entry is None else entry.value


def calling(function: Callable[[Any], Any], go_on: GoOn) -> Step:
    """Return a step that calls a function of the value and goes on with its result."""

    def step(run: Run, key: Any, value: Any) -> Waiting:
        made = function(value)
        if hasattr(made, "__await__"):
            return then(made, go_on, run, key, value)
        return go_on(run, key, value, made)

    return step


def calling_with_key(function: Callable[[Any, Any], Any], go_on: GoOn) -> Step:
    """Return a step that calls a function of key and value and goes on with its result."""

    def step(run: Run, key: Any, value: Any) -> Waiting:
        made = function(key, value)
        if hasattr(made, "__await__"):
            return then(made, go_on, run, key, value)
        return go_on(run, key, value, made)

    return step


async def then(made: Awaitable[Any], go_on: GoOn, run: Run, key: Any, value: Any) -> None:
    """Await the result of a call and go on with it."""
    waiting = go_on(run, key, value, await made)
    if waiting is not None:
        await waiting


def in_turn(turns: Iterator[Waiting]) -> Waiting:
    """Do one thing after the other; each begins when it is taken from the iterator."""
    for waiting in turns:
        if waiting is not None:
            return _rest(waiting, turns)
    return None


def without(header: str | None, run: Run, turns: Iterator[Callable[[], Waiting]]) -> Waiting:
    """Do one thing after the other; what they write has the run's headers without one of them, or none.

    Several records that were made of one are no copies of each other: so they must not have its message id.
    A window that closes has no headers: those of the record that closes it say nothing about it.
    """
    headers = run.headers
    run.headers = () if header is None else [pair for pair in headers if pair[0] != header]
    waiting = in_turn(turn() for turn in turns)
    if waiting is not None:
        return _with(headers, run, waiting)
    run.headers = headers
    return None


async def _with(headers: Headers, run: Run, waiting: Awaitable[None]) -> None:
    await waiting
    run.headers = headers


async def _rest(first: Awaitable[None], turns: Iterator[Waiting]) -> None:
    await first
    for waiting in turns:
        if waiting is not None:
            await waiting
