"""The live tail of a topic: new records as they come, and the honest count of those that a page cannot show.

The log itself is the buffer: nothing is lost by not being shown, and the offsets of records that were left
out are named, so that a link leads to them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.cluster import Cluster, raise_for
from ottla.client.errors import ClientError, Need
from ottla.client.retry import is_retriable
from ottla.console.records.filters import CompiledFilter
from ottla.console.records.masking import Mask
from ottla.console.records.reading import ShownRecord
from ottla.console.records.scanning import Readable, Span, Window, batches, look_through
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import KafkaError, OffsetOutOfRange
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.topics import TopicPartition

MOST_WAITING: Final = 200
"""Records that wait for the page; it is shown the newest of them."""
MOST_AT_ONCE: Final = 50
"""Records that a page gets in one step."""
STEP_S: Final = 0.25
"""The time between two steps: two hundred records a second are more than can be read."""
_WAIT_MS: Final = 500
_PARTITION_BYTES: Final = 256 << 10
_FETCH_BYTES: Final = 2 << 20
_BACKOFF_S: Final = 0.5
_LAST_BY_NAME: Final = 12
_COMMITTED: Final = 1


@dataclass(slots=True)
class LeftOut:
    """Records of one partition that were not shown: how many, and the offsets around them."""

    first: int
    last: int
    count: int = 0


class TailWindow:
    """The newest records for a page that takes them in steps; older ones are counted and left out. Pure."""

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        self._waiting: deque[ShownRecord] = deque()
        self._most_waiting = most_waiting
        self._left_out: dict[int, LeftOut] = {}

    def add(self, records: Iterable[ShownRecord]) -> None:
        """Take records in the order in which they came."""
        for record in records:
            self._waiting.append(record)
            if len(self._waiting) > self._most_waiting:
                self._leave_out(self._waiting.popleft())

    def _leave_out(self, record: ShownRecord) -> None:
        known = self._left_out.setdefault(record.partition, LeftOut(record.offset, record.offset))
        known.first, known.last = min(known.first, record.offset), max(known.last, record.offset)
        known.count += 1

    def leave_out_offsets(self, partition: int, first: int, last: int) -> None:
        """Count offsets that cannot be read any more."""
        known = self._left_out.setdefault(partition, LeftOut(first, last))
        known.last = max(known.last, last)
        known.count += last - first + 1

    def first_waiting(self) -> dict[int, int]:
        """Return the first offset of each partition that waits for the page."""
        found: dict[int, int] = {}
        for record in self._waiting:
            found.setdefault(record.partition, record.offset)
        return found

    def take(self, most: int = MOST_AT_ONCE) -> tuple[list[ShownRecord], dict[int, LeftOut]]:
        """Return the next records, and those that were left out since the last step."""
        records = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        left_out, self._left_out = self._left_out, {}
        return records, left_out


class _LeadersMoved(Exception):
    """A partition has another leader: all are asked for again."""


class Tail:
    """Follows partitions of a topic; new records stand in `window`.

    Records of transactions are there once these are decided, aborted ones as such.
    """

    def __init__(
        self, cluster: Cluster, topic: str, positions: Mapping[int, int], passes: CompiledFilter, mask: Mask,
        readable: Readable | None = None,
    ) -> None:  # fmt: skip
        self.window = TailWindow()
        self.positions = dict(positions)
        self.ends = dict(positions)
        self.records = 0
        self._cluster = cluster
        self._topic = topic
        self._passes = passes
        self._mask = mask
        self._readable = readable

    @property
    def behind(self) -> int:
        """How many offsets are not read yet."""
        return sum(max(0, self.ends[index] - at) for index, at in self.positions.items())

    @property
    def resume(self) -> dict[int, int]:
        """The offsets from which a page goes on that has seen all that was taken from the window."""
        return self.positions | self.window.first_waiting()

    async def follow(self) -> None:
        """Read until cancelled. Raises KafkaError and ClientError that do not pass by themselves."""
        while True:
            try:
                by_leader = await self._leaders()
                async with asyncio.TaskGroup() as tasks:
                    for leader, partitions in by_leader.items():
                        tasks.create_task(self._follow_leader(leader, partitions))
            except* _LeadersMoved:
                self._cluster.forget(self._topic)
                await asyncio.sleep(_BACKOFF_S)

    async def _leaders(self) -> dict[int, list[int]]:
        async def ask() -> dict[int, list[int]]:
            found: dict[int, list[int]] = defaultdict(list)
            for index in self.positions:
                leader, _ = await self._cluster.leader(TopicPartition(self._topic, index))
                found[leader].append(index)
            return found

        return await self._cluster.retry(f"finding the leaders of {self._topic}", ask)

    async def _follow_leader(self, leader: int, partitions: list[int]) -> None:
        while True:
            response = await self._fetch(leader, partitions)
            for answer in (data for topic in response.responses for data in topic.partitions):
                await self._take(answer)

    async def _fetch(self, leader: int, partitions: list[int]) -> FetchResponse:
        wanted = [
            FetchPartition(
                partition=index, fetch_offset=self.positions[index], partition_max_bytes=_PARTITION_BYTES
            )
            for index in partitions
        ]
        request = FetchRequest(
            max_wait_ms=_WAIT_MS, min_bytes=1, max_bytes=_FETCH_BYTES, isolation_level=_COMMITTED,
            topics=[FetchTopic(topic=self._topic, partitions=wanted)],
        )  # fmt: skip
        try:
            connection = await self._cluster.connection_to_leader(leader)
            response = await connection.send(request, FetchResponse, max_version=_LAST_BY_NAME)
            raise_for(response.error_code)
        except (ClientError, KafkaError) as error:
            if is_retriable(error):
                raise _LeadersMoved from error
            raise
        return response

    async def _take(self, answer: PartitionData) -> None:
        index = answer.partition_index
        need = Need(Operation.READ, ResourceType.TOPIC, self._topic)
        try:
            raise_for(answer.error_code, f"{self._topic}-{index}: the leader refused to read", need)
        except OffsetOutOfRange:
            self._start_again(index, answer.log_start_offset)
            raise _LeadersMoved from None
        except KafkaError as error:
            if is_retriable(error):
                raise _LeadersMoved from error
            raise
        self.ends[index] = answer.high_watermark
        if answer.records:
            await self._look(index, bytes(answer.records), answer)

    async def _look(self, index: int, data: bytes, answer: PartitionData) -> None:
        at = self.positions[index]
        part = batches(data, tuple(answer.aborted_transactions or ()))
        if part is None or part.after <= at:
            return
        window = Window(Span(index, at, part.after), [part])
        looked = await asyncio.to_thread(look_through, window, self._passes, self._mask, self._readable)
        self.records += looked.records
        self.window.add(looked.found)
        self.positions[index] = part.after

    def _start_again(self, index: int, log_start: int) -> None:
        """Go on where the log begins now: retention was faster, or the topic was made again."""
        at = self.positions[index]
        if log_start > at:
            self.window.leave_out_offsets(index, at, log_start - 1)
        self.positions[index] = max(log_start, 0)


Send = Callable[[list[ShownRecord], dict[int, LeftOut]], Awaitable[None]]


async def pass_on(tail: Tail, send: Send) -> None:
    """Send new records to a page, step by step, as fast as it takes them."""
    while True:
        await send(*tail.window.take())
        await asyncio.sleep(STEP_S)
