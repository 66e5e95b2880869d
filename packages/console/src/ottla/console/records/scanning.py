"""A search through partitions: which offsets are read next, which records match, in which order.

Windows of several partitions are read so that their times go on together: from the newest record back, or
from the oldest forwards. So records are found in the order of their times, and the newest hundred are known
before the rest of the topic is read. One window is read while the one before it is looked through.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, nsmallest
from typing import Final, Protocol

from ottla.client.cluster import Cluster
from ottla.console.records.filters import CompiledFilter
from ottla.console.records.masking import NO_MASK, Mask, masked
from ottla.console.records.reading import (
    MOST_UNFOLDED_BYTES,
    Fates,
    ShownRecord,
    fetched,
    shown_record,
)
from ottla.protocol.errors import OffsetOutOfRange
from ottla.protocol.messages.fetch import AbortedTransaction
from ottla.protocol.records import decode_records, magic_at, read_header, split_batches
from ottla.protocol.topics import TopicPartition

WINDOW_BYTES: Final = 2 << 20
NEAR_BYTES: Final = 256 << 10
"""Bytes of one fetch from a broker that is near: its other clients wait while it answers one."""
FAR_BYTES: Final = 2 << 20
"""Bytes of one fetch from a broker that is far: each costs the time of the way."""
MOST_PAUSE_S: Final = 0.25
_NEAR_S: Final = 0.005
_TIMES_THE_BEST: Final = 4.0
_IN_TIME_S: Final = 0.002
_FIRST_DEPTH: Final = 500
_DEEPEST: Final = 100_000
_UNKNOWN_DENSITY: Final = 200.0
"""Bytes of a record, before one was read."""
_SPARE_BYTES: Final = 64 << 10
"""Asked for beyond the size of a window: its first batch begins before it."""
_CODEC_MASK: Final = 7
_ATTRIBUTES_LOW_BYTE: Final = 22


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of one partition, `end` excluded."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Batches:
    """The answer to one fetch: whole batches, the offset after them, and the range of their last times."""

    data: bytes
    after: int
    aborted: tuple[AbortedTransaction, ...] = ()
    stable_end: int | None = None
    oldest_ms: int | None = None
    newest_ms: int | None = None


@dataclass(slots=True)
class Window:
    """Offsets that were read as a whole; `edge_ms` is the time of the record that was reached."""

    span: Span
    parts: list[Batches] = field(default_factory=list)
    edge_ms: int | None = None
    is_last: bool = False
    """Whether nothing of its partition is left."""


class Source(Protocol):
    """Reads batches of a topic."""

    async def read(self, partition: int, offset: int, most_bytes: int) -> Batches | None:
        """Return batches from an offset on; None where there is nothing (any more)."""
        ...


# --- pure


def used_cpu_s() -> float:
    """Return the processor time of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Pace:
    """How much a search asks for at once, and how long it waits after an answer.

    The best answer says how far the broker is. One that takes several times as long comes from a broker with
    much to do, or to a machine with much to do: the search waits, so that the others come first. The time in
    which this process itself had the processor does not count: it looks through records meanwhile.
    """

    def __init__(self, cpu_s: Callable[[], float] = used_cpu_s) -> None:
        self._cpu_s = cpu_s
        self._best_s: float | None = None

    @property
    def fetch_bytes(self) -> int:
        """The bytes of the next fetch."""
        way = 1.0 if self._best_s is None else self._best_s / _NEAR_S
        return min(FAR_BYTES, max(NEAR_BYTES, int(NEAR_BYTES * way)))

    def stopwatch(self, now_s: Callable[[], float]) -> Callable[[], tuple[float, float]]:
        """Return a function that returns the time since now, and how much of it this process worked."""
        begun_s, used_s = now_s(), self._cpu_s()
        return lambda: (now_s() - begun_s, self._cpu_s() - used_s)

    def pause_s(self, took_s: float, worked_s: float = 0.0) -> float:
        """Return how long to wait after an answer that took a time, in part of which this process worked."""
        self._best_s = best_s = took_s if self._best_s is None else min(took_s, self._best_s)
        late_s = took_s - worked_s - max(_TIMES_THE_BEST * best_s, _IN_TIME_S)
        return min(MOST_PAUSE_S, max(0.0, late_s))


class ScanPlan:
    """Which offsets are read next: those of the partition whose times are furthest behind the others."""

    def __init__(self, starts: Mapping[int, int], ends: Mapping[int, int], *, newest_first: bool) -> None:
        self.pace = Pace()
        self._newest_first = newest_first
        self._left = {index: (starts[index], ends[index]) for index in starts if starts[index] < ends[index]}
        self._edges: dict[int, int] = {}
        self._depths: dict[int, int] = {}
        self._densities: dict[int, float] = {}

    @property
    def left(self) -> Mapping[int, tuple[int, int]]:
        """The offsets of each partition that are not read yet."""
        return self._left

    def claim(self) -> Span | None:
        """Return the next offsets, which count as read from now on; None where nothing is left."""
        if not self._left:
            return None
        partition = min(self._left, key=self._rank)
        start, end = self._left[partition]
        depth = self._depths.get(partition, _FIRST_DEPTH)
        span = (
            Span(partition, max(start, end - depth), end)
            if self._newest_first
            else Span(partition, start, min(end, start + depth))
        )
        self._leave(partition, *((start, span.start) if self._newest_first else (span.end, end)))
        return span

    def was_read(self, partition: int, offsets: int, size_bytes: int, edge_ms: int | None) -> None:
        """Take the size of the offsets that were read, and the time that was reached.

        The next window has about `WINDOW_BYTES`. Batches behind the end of a window count, too: otherwise
        each window would be smaller than the one before.
        """
        if edge_ms is not None:
            self._edges[partition] = edge_ms
        if offsets:
            self._densities[partition] = size_bytes / offsets
            wanted = int(WINDOW_BYTES * 4 / 5 * offsets / max(size_bytes, 1))
            deepest = min(8 * self._depths.get(partition, _FIRST_DEPTH), _DEEPEST)
            self._depths[partition] = max(1, min(wanted, deepest))

    def size_bytes(self, span: Span) -> int:
        """Return the bytes to ask for at once: those of the window, if it ends where another one was read."""
        if not self._newest_first:
            return self.pace.fetch_bytes
        density = self._densities.get(span.partition, _UNKNOWN_DENSITY)
        return min(self.pace.fetch_bytes, _SPARE_BYTES + int(density * (span.end - span.start)))

    def read_beyond(self, span: Span, after: int) -> Span:
        """Return a window that ends with its last batch, where records are read forwards."""
        if self._newest_first or after <= span.end or span.partition not in self._left:
            return span
        _, end = self._left[span.partition]
        self._leave(span.partition, min(after, end), end)
        return Span(span.partition, span.start, min(after, end))

    def is_done(self, partition: int) -> bool:
        """Whether nothing of a partition is left."""
        return partition not in self._left

    def _leave(self, partition: int, start: int, end: int) -> None:
        if start < end:
            self._left[partition] = start, end
        else:
            del self._left[partition]

    def _rank(self, partition: int) -> tuple[bool, int, int]:
        edge = self._edges.get(partition)
        if edge is None:
            return False, 0, partition
        return True, -edge if self._newest_first else edge, partition


class TimeMerge:
    """Records that were found, in the order of their times over all partitions; of one of them by offset.

    A record is ready once no partition can hold one that comes before it. At most `most` are kept.
    """

    def __init__(self, partitions: Iterable[int], most: int, *, newest_first: bool) -> None:
        self._sign = -1 if newest_first else 1
        self._edges: dict[int, int | None] = dict.fromkeys(partitions)
        self._is_single = len(self._edges) == 1
        self._left = most
        self._found: list[tuple[int, int, int, ShownRecord]] = []

    @property
    def left(self) -> int:
        """How many more are wanted."""
        return self._left

    def add(self, records: Iterable[ShownRecord]) -> None:
        """Take the records of a window."""
        for record in records:
            order = 0 if self._is_single else self._sign * record.timestamp_ms
            heappush(self._found, (order, self._sign * record.offset, record.partition, record))
        if len(self._found) > 2 * self._left:
            self._found = nsmallest(self._left, self._found)

    def reached(self, partition: int, edge_ms: int | None, *, is_last: bool) -> None:
        """Take the time up to which a partition was looked through."""
        if is_last:
            self._edges.pop(partition, None)
        elif edge_ms is not None:
            self._edges[partition] = edge_ms

    def ready(self) -> list[ShownRecord]:
        """Return the records whose place in the order is known."""
        found = []
        while self._found and self._left and self._is_known(self._found[0][0]):
            found.append(heappop(self._found)[3])
            self._left -= 1
        return found

    def _is_known(self, order: int) -> bool:
        if self._is_single:
            return True
        return all(edge is not None and order <= self._sign * edge for edge in self._edges.values())


Readable = Callable[[ShownRecord], ShownRecord]


@dataclass(slots=True)
class Looked:
    """The records of a window that pass, and how many it has."""

    found: list[ShownRecord] = field(default_factory=list)
    records: int = 0
    unreadable: int = 0


def look_through(
    window: Window, passes: CompiledFilter, mask: Mask = NO_MASK, readable: Readable | None = None
) -> Looked:
    """Return the records of a window that pass a filter, as their viewer may see them.

    `readable` reads a record by its schemas, without which its fields cannot be masked. Batches whose bytes
    cannot hold one are not unfolded. With a mask all are: a filter sees only that which its viewer may see.
    """
    looked, span = Looked(), window.span
    is_open_to_all, is_quick = mask.is_empty and mask.origins is None, passes.needs_batch_alone
    for part in window.parts:
        fates = Fates(part.aborted)
        at = 0
        may_skip = mask.is_empty and bool(passes.needles)
        is_hopeless = may_skip and not passes.may_hold(part.data)
        for batch in split_batches(memoryview(part.data), torn_tail=True):
            begin, at = at, at + len(batch)
            is_open = part.stable_end is not None and int.from_bytes(batch[:8], "big") >= part.stable_end
            fate, producer = fates.of_batch(batch, is_open=is_open)
            if may_skip and _is_plain(batch) and (is_hopeless or not passes.may_hold(part.data, begin, at)):
                looked.records += read_header(batch).record_count
                continue
            for record in decode_records(batch, max_decompressed_bytes=MOST_UNFOLDED_BYTES):
                if not span.start <= record.offset < span.end:
                    continue
                looked.records += 1
                own = NO_MASK if is_open_to_all else mask.of(record.headers)
                if is_quick and (is_open_to_all or own.is_empty):
                    if passes(record):
                        looked.found.append(shown_record(span.partition, record, fate, producer))
                    continue
                shown = shown_record(span.partition, record, fate, producer)
                if own.fields and readable is not None:
                    shown = readable(shown)
                shown = masked(shown, own)
                if passes(shown):
                    looked.found.append(shown)
    return looked


def _is_plain(batch: memoryview) -> bool:
    return magic_at(batch) == 2 and not batch[_ATTRIBUTES_LOW_BYTE] & _CODEC_MASK


# --- reading


class ClusterSource:
    """Reads a topic of a cluster."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic

    async def read(self, partition: int, offset: int, most_bytes: int) -> Batches | None:
        """Return batches from an offset on; None where retention has deleted it meanwhile."""
        where = TopicPartition(self._topic, partition)
        try:
            answer, stable_end = await fetched(self._cluster, where, offset, most_bytes)
        except OffsetOutOfRange:
            return None
        if not answer.records:
            return None
        return batches(bytes(answer.records), tuple(answer.aborted_transactions or ()), stable_end)


def batches(
    data: bytes, aborted: tuple[AbortedTransaction, ...] = (), stable_end: int | None = None
) -> Batches | None:
    """Return fetched bytes with their last offset and their times; None where no batch is whole."""
    after, times = -1, list[int]()
    for batch in split_batches(memoryview(data), torn_tail=True):
        if magic_at(batch) == 2:
            header = read_header(batch)
            after = header.next_offset
            times.append(header.max_timestamp)
        else:
            after = int.from_bytes(batch[:8], "big") + 1
    if after < 0:
        return None
    known = times or [0]
    return Batches(data, after, aborted, stable_end, min(known), max(known))


class Scan:
    """Reads a topic by plan, and gives each window to `look`; ends when that returns false."""

    def __init__(
        self, source: Source, plan: ScanPlan, look: Callable[[Window], Awaitable[bool]], *, newest_first: bool
    ) -> None:
        self._source = source
        self._plan = plan
        self._look = look
        self._newest_first = newest_first

    async def run(self) -> None:
        """Read until all is read, or enough is found."""
        async with asyncio.TaskGroup() as tasks:
            ahead = tasks.create_task(self._next())
            while (window := await ahead) is not None:
                ahead = tasks.create_task(self._next())
                if not await self._look(window):
                    ahead.cancel()
                    return

    async def _next(self) -> Window | None:
        span = self._plan.claim()
        if span is None:
            return None
        window, at = Window(span), span.start
        while at < window.span.end:
            wanted_bytes = self._plan.size_bytes(Span(span.partition, at, window.span.end))
            part = await self._read(span.partition, at, wanted_bytes)
            if part is None or part.after <= at:
                break
            window.parts.append(part)
            at = part.after
            window.span = self._plan.read_beyond(window.span, at)
        return self._with_edge(window, at - span.start)

    async def _read(self, partition: int, offset: int, most_bytes: int) -> Batches | None:
        pace = self._plan.pace
        taken = pace.stopwatch(asyncio.get_running_loop().time)
        part = await self._source.read(partition, offset, most_bytes)
        if pause_s := pace.pause_s(*taken()):
            await asyncio.sleep(pause_s)
        return part

    def _with_edge(self, window: Window, offsets: int) -> Window:
        pick = min if self._newest_first else max
        edges = [part.oldest_ms if self._newest_first else part.newest_ms for part in window.parts]
        window.edge_ms = pick((edge for edge in edges if edge is not None), default=None)
        size_bytes = sum(len(part.data) for part in window.parts)
        self._plan.was_read(window.span.partition, offsets, size_bytes, window.edge_ms)
        window.is_last = self._plan.is_done(window.span.partition)
        return window
