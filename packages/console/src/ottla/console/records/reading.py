"""Read records of partitions, with what their transactions came to: markers and aborted records included.

A reader that sees committed records only cannot show why a consumer stands still. So a window is read
twice where it must: up to the last stable offset with the list of aborted transactions, and behind it,
where transactions are open, without.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Final, Literal

from ottla.admin import EARLIEST, LATEST, Admin
from ottla.client.cluster import Cluster, raise_for
from ottla.client.errors import Need
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import OffsetOutOfRange
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.records import Record, decode_records, magic_at, read_header, split_batches
from ottla.protocol.topics import TopicPartition

Fate = Literal["record", "aborted", "open", "commit marker", "abort marker"]

FETCH_BYTES: Final = 1 << 20
MOST_UNFOLDED_BYTES: Final = 64 << 20
"""A batch that unfolds to more is not shown: the console would hold all of it at once."""
MOST_FETCHES: Final = 200
"""Fetches of one partition for one page; records behind them are on the next page."""
_LAST_BY_NAME: Final = 12
_COMMITTED, _ALL = 1, 0
_AT_ONCE: Final = 16
"""Partitions that are read at a time."""


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record, where it is, and what became of its transaction ("record" where nothing is special)."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    fate: Fate = "record"
    producer_id: int = -1
    is_masked: bool = False
    """Whether a part of it is hidden from the person who looks (`records.masking`)."""


@dataclass(frozen=True, slots=True)
class Window:
    """Records of one partition from `start` up to `end`, which is where reading goes on."""

    start: int
    end: int
    records: tuple[ShownRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets of each partition: the first, and the one after the last."""

    starts: Mapping[int, int]
    ends: Mapping[int, int]


# --- pure


class Fates:
    """The fates of the records of each producer; batches are given in the order of the log.

    An aborted transaction has a producer and a first offset, and lasts up to that producer's marker.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._to_come = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._aborted: set[int] = set()

    def of_batch(self, batch: memoryview, *, is_open: bool) -> tuple[Fate, int]:
        """Return the fate of a batch's records, and its producer id; all markers count as those of aborts."""
        if magic_at(batch) < 2:
            return "record", -1
        header = read_header(batch)
        producer = header.producer_id
        if header.is_control:
            self._aborted.discard(producer)
            return "abort marker", producer
        while self._to_come and self._to_come[0].first_offset <= header.last_offset:
            self._aborted.add(self._to_come.popleft().producer_id)
        if not header.is_transactional:
            return "record", producer
        if is_open:
            return "open", producer
        return ("aborted" if producer in self._aborted else "record"), producer


def shown_records(
    partition: int, data: bytes | memoryview, first: int, *, aborted: Iterable[AbortedTransaction] = (),
    stable_end: int | None = None,
) -> Iterator[ShownRecord]:  # fmt: skip
    """Return the records of fetched batches from an offset on.

    Transactional records from `stable_end` on belong to transactions that are open.
    """
    fates = Fates(aborted)
    for batch in split_batches(memoryview(data), torn_tail=True):
        is_open = stable_end is not None and _base_offset(batch) >= stable_end
        fate, producer = fates.of_batch(batch, is_open=is_open)
        for record in decode_records(batch, max_decompressed_bytes=MOST_UNFOLDED_BYTES):
            if record.offset < first:
                continue
            yield shown_record(partition, record, fate, producer)


def shown_record(partition: int, record: Record, fate: Fate, producer: int) -> ShownRecord:
    """Return a record of a batch with that fate; all markers count as those of aborts before."""
    return ShownRecord(
        partition, record.offset, record.timestamp_ms, record.key, record.value,
        tuple(record.headers), _marker(record.key) if fate == "abort marker" else fate, producer,
    )  # fmt: skip


def _base_offset(batch: memoryview) -> int:
    return int.from_bytes(batch[:8], "big")


def _marker(key: bytes | None) -> Fate:
    """Return the kind of a control record: two bytes of version, two of type, 1 for a commit."""
    return "commit marker" if key is not None and key[2:4] == b"\0\1" else "abort marker"


def unfinished(windows: Mapping[int, Window], starts: Mapping[int, int], most: int) -> list[int]:
    """Return the partitions that must be read deeper until the `most` newest records of all are known.

    One is deep enough when it holds a record older than all of those, or has been read from its start.
    """
    stamps = sorted(
        (record.timestamp_ms for window in windows.values() for record in window.records), reverse=True
    )
    oldest = stamps[most - 1] if len(stamps) >= most else None
    return [
        partition
        for partition, window in windows.items()
        if window.start > starts[partition]
        and (oldest is None or all(record.timestamp_ms > oldest for record in window.records))
    ]


def newest_of(windows: Iterable[Window], most: int) -> list[ShownRecord]:
    """Return the newest records of several partitions, the newest first; of one partition by offset."""
    return list(
        islice(merge(*(reversed(window.records) for window in windows), key=_time, reverse=True), most)
    )


def oldest_of(windows: Iterable[Window], most: int) -> list[ShownRecord]:
    """Return the oldest records of several partitions, the oldest first; of one partition by offset."""
    return list(islice(merge(*(window.records for window in windows), key=_time), most))


def _time(record: ShownRecord) -> int:
    return record.timestamp_ms


# --- reading


async def bounds(admin: Admin, topic: str, partitions: Iterable[int]) -> Bounds:
    """Return the offsets of the partitions whose leaders answer."""
    await admin.cluster.topic(topic)  # only leaders that are known are asked
    wanted = [TopicPartition(topic, index) for index in partitions]
    starts, ends = await asyncio.gather(
        admin.offsets.find_reachable(dict.fromkeys(wanted, EARLIEST)),
        admin.offsets.find_reachable(dict.fromkeys(wanted, LATEST)),
    )
    known = sorted(set(starts) & set(ends))
    return Bounds(
        {partition.partition: starts[partition] for partition in known},
        {partition.partition: ends[partition] for partition in known},
    )


async def read_window(cluster: Cluster, partition: TopicPartition, start: int, end: int, most: int) -> Window:
    """Return up to `most` records from `start` on and below `end`.

    An offset that retention has deleted meanwhile is answered by an empty window.
    """
    records: list[ShownRecord] = []
    at = start
    for _ in range(MOST_FETCHES):
        if at >= end or len(records) >= most:
            break
        try:
            found, after = await _fetch(cluster, partition, at, most - len(records))
        except OffsetOutOfRange:
            return Window(start, end, tuple(records))
        records += (record for record in found if record.offset < end)
        if after <= at:
            break
        at = after
    if len(records) > most:
        at = records[most].offset
    return Window(start, min(at, end), tuple(records[:most]))


async def _fetch(
    cluster: Cluster, partition: TopicPartition, offset: int, most: int
) -> tuple[list[ShownRecord], int]:
    """Return the records of one fetch, one more than `most` if there are more, and the offset after it."""
    answer, stable_end = await fetched(cluster, partition, offset)
    data = memoryview(answer.records or b"")
    aborted = answer.aborted_transactions or ()
    # Decompression of a megabyte and more is no work for the loop.
    return await asyncio.to_thread(_decoded, partition.partition, data, offset, aborted, stable_end, most)


async def fetched(
    cluster: Cluster, partition: TopicPartition, offset: int, most_bytes: int = FETCH_BYTES
) -> tuple[PartitionData, int | None]:
    """Return batches from an offset on, and where transactions are open in them: the last stable offset.

    It is None where none is open: then the answer has the list of aborted ones.
    """
    answer = await _ask(cluster, partition, offset, _COMMITTED, most_bytes)
    if answer.records or offset >= answer.high_watermark:
        return answer, None
    return await _ask(cluster, partition, offset, _ALL, most_bytes), answer.last_stable_offset


def _decoded(
    partition: int,
    data: memoryview,
    offset: int,
    aborted: Sequence[AbortedTransaction],
    stable_end: int | None,
    most: int,
) -> tuple[list[ShownRecord], int]:
    """Unfold batch after batch, and no more of them than are shown: a megabyte may hold gigabytes."""
    after = offset
    for batch in split_batches(data, torn_tail=True):
        after = read_header(batch).next_offset if magic_at(batch) == 2 else _base_offset(batch) + 1
    shown = shown_records(partition, data, offset, aborted=aborted, stable_end=stable_end)
    return list(islice(shown, most + 1)), after


async def _ask(
    cluster: Cluster, partition: TopicPartition, offset: int, isolation: int, most_bytes: int
) -> PartitionData:
    async def ask() -> PartitionData:
        leader, epoch = await cluster.leader(partition)
        wanted = FetchPartition(
            partition=partition.partition, current_leader_epoch=epoch, fetch_offset=offset,
            partition_max_bytes=most_bytes,
        )  # fmt: skip
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=most_bytes, isolation_level=isolation,
            topics=[FetchTopic(topic=partition.topic, partitions=[wanted])],
        )  # fmt: skip
        connection = await cluster.connection_to_leader(leader)
        response = await connection.send(request, FetchResponse, max_version=_LAST_BY_NAME)
        raise_for(response.error_code)
        (found,) = (data for topic in response.responses for data in topic.partitions)
        if found.error_code:
            cluster.forget(partition.topic)
        need = Need(Operation.READ, ResourceType.TOPIC, partition.topic)
        raise_for(found.error_code, f"{partition}: the leader refused to read", need)
        return found

    return await cluster.retry(f"reading {partition}", ask)


async def newest(admin: Admin, topic: str, partitions: Sequence[int], most: int) -> list[ShownRecord]:
    """Return the newest records of a topic, over all its partitions, the newest first."""
    known = await bounds(admin, topic, partitions)
    depth = max(4, 2 * most // max(1, len(known.ends)))
    windows: dict[int, Window] = {}
    left = list(known.ends)
    while left:
        starts = {index: max(known.starts[index], known.ends[index] - depth) for index in left}
        windows |= await _read_all(
            admin, topic, {index: (starts[index], known.ends[index]) for index in left}, depth
        )
        left = unfinished(windows, known.starts, most)
        depth *= 4
    return newest_of(windows.values(), most)


async def from_offsets(admin: Admin, topic: str, starts: Mapping[int, int], most: int) -> list[ShownRecord]:
    """Return records from an offset of each partition on, the oldest first."""
    known = await bounds(admin, topic, starts)
    ranges = {
        index: (max(start, known.starts[index]), known.ends[index])
        for index, start in starts.items()
        if index in known.ends
    }
    return oldest_of((await _read_all(admin, topic, ranges, most)).values(), most)


async def from_time(
    admin: Admin, topic: str, partitions: Iterable[int], time_ms: int, most: int
) -> list[ShownRecord]:
    """Return the records of a topic from a time on, the oldest first."""
    wanted = {TopicPartition(topic, index): time_ms for index in partitions}
    found = await admin.offsets.find(wanted)
    return await from_offsets(
        admin, topic, {partition.partition: at for partition, at in found.items()}, most
    )


async def _read_all(
    admin: Admin, topic: str, ranges: Mapping[int, tuple[int, int]], most: int
) -> dict[int, Window]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def read(index: int, start: int, end: int) -> Window:
        async with places:
            return await read_window(admin.cluster, TopicPartition(topic, index), start, end, most)

    try:
        async with asyncio.TaskGroup() as tasks:
            reads = {index: tasks.create_task(read(index, *span)) for index, span in ranges.items()}
    except ExceptionGroup as group:  # most often all partitions fail alike: the first says why
        raise group.exceptions[0] from group
    return {index: task.result() for index, task in reads.items()}
