"""The log of consumer groups in a simulated cluster, and the part of it that a broker reaches.

It has one partition: a leader's records are committed after a while, and a new leader has those that were
committed, perhaps some more. A leader that was replaced unnoticed goes on with a log of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from ottla.broker.coordinators.coordinator_partitions import KeyValue
from ottla.broker.coordinators.internal_topic_log import AppendedBatch, TransactionalProducer, build_batch
from ottla.broker.groups.records import LogRecord, decode_record
from ottla.protocol.errors import NotEnoughReplicas, NotLeaderOrFollower
from ottla.protocol.records import assign_offsets, iter_records
from ottla.protocol.topics import GROUP_METADATA_TOPIC


@dataclass(slots=True)
class Entry:
    """One batch: its place, and its records as they are decoded."""

    end: int
    batch: bytes
    records: list[LogRecord]


class GroupLog:
    """The present leader's log, with its high watermark; who leads, and in which epoch."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.entries: list[Entry] = []
        self.end = self.high_watermark = 0
        self.leader = 0
        self.epoch = 0
        self.rewritten = 0
        """How often records were taken away: by an election, or by compaction."""
        self.stalls_until_s = 0.0
        self.refuses = False
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def append(
        self, records: Sequence[KeyValue], wall_ms: int, producer: TransactionalProducer | None
    ) -> int:
        """Append as the present leader, and commit after a while; return the base offset."""
        position, batch = self.end, bytearray(build_batch(records, wall_ms, producer=producer))
        self.end = assign_offsets(batch, position, 0)
        self.entries.append(Entry(self.end, bytes(batch), _decoded(batch)))
        delay_s = self._chance.choice([0.0, 0.001, 0.02, 0.02, 0.3])
        asyncio.get_running_loop().call_later(delay_s, self._commit, self.epoch, self.end)
        return position

    def _commit(self, epoch: int, end: int) -> None:
        if epoch != self.epoch:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self.stalls_until_s:
            loop.call_at(self.stalls_until_s, self._commit, epoch, end)
            return
        self.high_watermark = max(self.high_watermark, end)
        ready = [place for at, place in self._waiting if at <= self.high_watermark]
        self._waiting = [(at, place) for at, place in self._waiting if at > self.high_watermark]
        for place in ready:
            if not place.done():
                place.set_result(None)

    async def replicated(self, end: int) -> None:
        """Wait until the records below are committed. Raises NotLeaderOrFollower after an election."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, place))
        await place

    def elect(self, leader: int) -> None:
        """Begin an epoch: another broker than the leader has a part of what was not committed."""
        before = self.leader
        kept = [entry for entry in self.entries if entry.end <= self.high_watermark]
        pending = self.entries[len(kept) :]
        if leader != before:
            pending = pending[: self._chance.randint(0, len(pending))]
        self.entries = kept + pending
        self.end = self.entries[-1].end if self.entries else 0
        self.leader, self.epoch = leader, self.epoch + 1
        self.rewritten += 1
        if leader != before:
            waiting, self._waiting = self._waiting, []
            for _, place in waiting:  # the earlier leader learns of it later
                asyncio.get_running_loop().call_later(self._chance.uniform(0, 1), _fail, place)
        delay_s = self._chance.choice([0.001, 0.5, 3.0])
        asyncio.get_running_loop().call_later(delay_s, self._commit, self.epoch, self.end)

    def compact(self) -> None:
        """Keep the last record of each key among those that are committed; some tombstones stay."""
        records = [
            (record.offset, record)
            for entry in self.entries
            if entry.end <= self.high_watermark
            for record in iter_records(entry.batch)
        ]
        last = {record.key: offset for offset, record in records}
        drops = self._chance.random() < 0.5
        kept = [
            (offset, record)
            for offset, record in records
            if last[record.key] == offset and not (drops and record.value is None)
        ]
        compacted = []
        for offset, record in kept:
            copy = bytearray(build_batch([KeyValue(record.key or b"", record.value, record.headers)], 0))
            compacted.append(Entry(assign_offsets(copy, offset, 0), bytes(copy), _decoded(copy)))
        self.entries = compacted + [entry for entry in self.entries if entry.end > self.high_watermark]
        self.rewritten += 1

    def records(self) -> Iterator[LogRecord]:
        """Every record of the log."""
        for entry in self.entries:
            yield from entry.records


def _fail(place: asyncio.Future[None]) -> None:
    if not place.done():
        place.set_exception(NotLeaderOrFollower())


def _decoded(batch: bytes | bytearray) -> list[LogRecord]:
    decoded = (
        decode_record(record.key or b"", record.value, record.headers) for record in iter_records(batch)
    )
    return [record for record in decoded if record is not None]


class BrokerStore:
    """`CoordinatorStore` of one broker; one that was replaced unnoticed has its own log."""

    topic = GROUP_METADATA_TOPIC

    def __init__(self, log: GroupLog, broker: int) -> None:
        self._log = log
        self._broker = broker
        self.is_dead = False
        self._own_end = 0

    def partition_count(self) -> int:
        return 1

    def _is_present(self, leader_epoch: int) -> bool:
        return self._log.leader == self._broker and self._log.epoch == leader_epoch and not self.is_dead

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        wall_ms: int,
        *,
        leader_epoch: int,
        required_acks: int = -1,
        producer: TransactionalProducer | None = None,
    ) -> AppendedBatch:
        log = self._log
        if not self._is_present(leader_epoch):
            self._own_end = max(self._own_end, log.end) + len(records)
            return AppendedBatch(self._own_end, _never)
        if log.refuses and required_acks == -1:
            raise NotEnoughReplicas
        position = log.append(records, wall_ms, producer)
        return AppendedBatch(position, lambda end=log.end: log.replicated(end))  # type: ignore[misc]

    def is_blank(self, partition: int) -> bool:
        return not self._log.entries

    def is_alone(self, partition: int, leader_epoch: int) -> bool:
        return False

    def committed(self, partition: int, leader_epoch: int) -> Callable[[], Awaitable[None]] | None:
        if not self._is_present(leader_epoch):
            return _never
        end = self._log.end
        return None if end <= self._log.high_watermark else lambda: self._log.replicated(end)

    async def read(self, partition: int, leader_epoch: int) -> AsyncIterator[bytes]:
        entries = list(self._log.entries)
        for first in range(0, len(entries), 50):
            await asyncio.sleep(0.001)
            if not self._is_present(leader_epoch):
                raise NotLeaderOrFollower
            yield b"".join(entry.batch for entry in entries[first : first + 50])


async def _never() -> None:
    """Wait for replicas that do not follow any more; the coordinator gives up after a while."""
    await asyncio.get_running_loop().create_future()


# ---- topics
