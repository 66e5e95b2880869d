"""The streams an application reads from: records of partitions that one thread owns, and their positions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Protocol

from ottla.client.errors import ClientError
from ottla.consumer.argument_validation import to_offset, to_partition
from ottla.consumer.errors import NotAssigned
from ottla.consumer.record import ConsumerRecord
from ottla.consumer.zookeeper.errors import ConsumerTimeout
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.errors import ZooKeeperError

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]

Offsets = dict[TopicPartition, int]

UNKNOWN = -1


class Reader(Protocol):
    """The reader of partitions that a stream uses."""

    def assign(self, partitions: Mapping[TopicPartition, int | None]) -> None:
        """Assign partitions; each starts at its offset if one is given, else continues at its position."""

    async def next_records(self) -> Mapping[TopicPartition, Sequence[ConsumerRecord]]:
        """Return records as soon as there are some; after a timeout, none."""


class MessageStream:
    """An async iterator over the records of the partitions that this stream owns; rebalances change them.

        async for record in stream:
            print(record.topic, record.partition, record.offset, record.value)

    A record is finished when the next one is asked for; finished records are committed. The iteration ends
    with the connector's shutdown. It raises ConsumerTimeout after `consumer_timeout_ms` without a record,
    ConsumerRebalanceFailed when the rebalance failed repeatedly, UnreadableBatch, and the errors of brokers;
    after each of them it can be iterated over again. One task at a time may iterate.
    """

    def __init__(
        self, name: str, positions: StreamPositions, spawn: Spawn, *, capacity: int, timeout_ms: int = -1
    ) -> None:
        self.name = name
        self._capacity = capacity
        self._positions = positions
        self._spawn = spawn
        self._timeout_s = None if timeout_ms < 0 else timeout_ms / 1_000
        self._reader: Reader | None = None
        self._owned: frozenset[TopicPartition] = frozenset()
        self._chunks: deque[tuple[TopicPartition, Sequence[ConsumerRecord]]] = deque()
        self._chunk: Iterator[ConsumerRecord] = iter(())
        self._chunk_of: TopicPartition | None = None
        self._current: ConsumerRecord | None = None
        self._outlived: ConsumerRecord | None = None
        self._filling: asyncio.Task[None] | None = None
        self._failures: deque[Exception] = deque()
        self._closed = False
        self._changed = asyncio.Event()
        self._asked = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        # Nothing is counted per record: the current record tells what is finished, see `note_progress`.
        for record in self._chunk:
            self._current = record
            return record
        self._finish()
        while True:
            if not self._chunks:
                await self._refill()
            self._chunk_of, records = self._chunks.popleft()
            self._chunk = iter(records)
            for record in self._chunk:
                self._current = record
                return record

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that this stream owns now."""
        return self._owned

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """Continue an owned partition at an offset, as behind a batch that cannot be read.

        Records below the offset count as finished. Raises NotAssigned for other partitions.
        """
        where = to_partition(partition)
        target = to_offset(where, offset).offset
        if where not in self._owned or self._reader is None:
            raise NotAssigned(where)
        self._drop_buffered({where})
        self._positions.moved(where, target)
        self._reader.assign({owned: target if owned == where else None for owned in self._owned})

    def _finish(self) -> None:
        record, self._current = self._current, None
        if record is not None:
            self._note(record)
            self._positions.finished(TopicPartition(record.topic, record.partition), record.offset)
            self._asked.set()

    async def _refill(self) -> None:
        """Return once records are buffered; raise the reason if there will be none."""
        deadline = None if self._timeout_s is None else asyncio.get_running_loop().time() + self._timeout_s
        while not self._chunks:
            if self._failures:
                raise self._failures.popleft()
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            self._start_filling()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                raise ConsumerTimeout(int((self._timeout_s or 0) * 1_000)) from None

    def _start_filling(self) -> None:
        # A task of the connector, not of the iterating task: an iteration that is cancelled loses no records.
        if self._filling is None and self._reader is not None and self._owned:
            self._filling = self._spawn(self._fill(self._reader))

    async def _fill(self, reader: Reader) -> None:
        try:
            while self._owned and sum(len(some) for _, some in self._chunks) < self._capacity:
                # Nothing is awaited between the reader returning records and buffering them: `release` finds
                # them either in the reader or in the buffer.
                found = await reader.next_records()
                self._chunks.extend(
                    (partition, some) for partition, some in found.items() if partition in self._owned
                )
                if self._chunks:
                    self._changed.set()
        except (ClientError, KafkaError, ZooKeeperError) as error:
            self._failures.append(error)
        finally:
            self._filling = None
            self._changed.set()

    # --- what the connector calls

    def own(self, reader: Reader, starts: Mapping[TopicPartition, int | None]) -> None:
        """Own further partitions, starting at these offsets; None leaves the start to the reader."""
        self._reader = reader
        self._owned |= starts.keys()
        reader.assign({partition: starts.get(partition) for partition in self._owned})
        self._changed.set()

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop owning partitions: none of their records is delivered from now on."""
        gone = self._owned.intersection(partitions)
        if not gone:
            return
        self.note_progress()
        self._owned -= gone
        self._drop_buffered(gone)
        if self._reader is not None:
            self._reader.assign(dict.fromkeys(self._owned))

    def _drop_buffered(self, partitions: Collection[TopicPartition]) -> None:
        """Deliver none of the buffered records of partitions, and note the current record no more."""
        current = self._current
        if current is not None and (current.topic, current.partition) in partitions:
            # The next owner, or this one again, may start at another offset.
            self._outlived = current
        self._chunks = deque(
            (partition, some) for partition, some in self._chunks if partition not in partitions
        )
        if self._chunk_of in partitions:
            self._chunk = iter(())

    def note_progress(self) -> None:
        """Mark the current record as delivered, and all before it as finished."""
        if self._current is not None:
            self._note(self._current)

    def _note(self, record: ConsumerRecord) -> None:
        if record is not self._outlived:
            self._positions.delivered(TopicPartition(record.topic, record.partition), record.offset)

    async def done_with(self, partitions: Iterable[TopicPartition]) -> None:
        """Wait until the application finished the last record that was delivered of these partitions."""
        gone = set(partitions)
        while self._current is not None and (self._current.topic, self._current.partition) in gone:
            self._asked.clear()
            await self._asked.wait()

    def fail(self, error: Exception) -> None:
        """Raise an error to the iterating task, once."""
        if not self._failures:
            self._failures.append(error)
        self._changed.set()

    async def detach(self) -> None:
        """Release all partitions and the reader."""
        self.release(self._owned)
        filling, self._reader = self._filling, None
        if filling is not None:
            filling.cancel()
            await asyncio.wait([filling])
            # A task that is cancelled before its first step runs nothing of `_fill`, its `finally` included:
            # `_filling` would stay set, and the next reader would never be read.
            self._filling = None

    async def close(self) -> None:
        """End the iteration and release all partitions."""
        self._closed = True
        await self.detach()
        self._changed.set()


@dataclass(slots=True)
class StreamPosition:
    """`delivered` is the offset of the next record to deliver. Everything below `finished` is finished.

    `stored` is the offset in the offset storage as far as known, None for none.
    """

    delivered: int
    finished: int
    stored: int | None
    owned: bool = True


class StreamPositions:
    """The positions of all partitions that were ever owned."""

    def __init__(self) -> None:
        self._positions: dict[TopicPartition, StreamPosition] = {}

    def begin(self, partition: TopicPartition, offset: int, stored: int | None) -> int:
        """Own a partition that starts at `offset`; return the offset to start at.

        UNKNOWN leaves the start to the reader, which applies the reset policy. A member that gave a partition
        up, or lost it with its session, and owns it again before another member committed, continues after
        the last record it delivered: its application has the records before.
        """
        known = self._positions.get(partition)
        if known is not None and known.stored == stored:
            known.owned = True
            return known.delivered
        self._positions[partition] = StreamPosition(offset, offset, stored)
        return offset

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop owning partitions."""
        for partition in partitions:
            if partition in self._positions:
                self._positions[partition].owned = False

    def delivered(self, partition: TopicPartition, offset: int) -> None:
        """Mark the record at an offset as delivered, and all before it as finished."""
        position = self._positions.get(partition)
        # The same record again says nothing new: it may have been committed on demand meanwhile.
        if position is not None and position.owned and position.delivered != offset + 1:
            position.delivered = offset + 1
            position.finished = offset

    def finished(self, partition: TopicPartition, offset: int) -> None:
        """Mark the record at an offset as finished, also after the partition was given up."""
        position = self._positions.get(partition)
        if position is not None and position.finished <= offset < position.delivered:
            position.finished = offset + 1

    def moved(self, partition: TopicPartition, offset: int) -> None:
        """Continue a partition at an offset; all below it is finished."""
        position = self._positions.get(partition)
        if position is not None and position.owned:
            position.delivered = position.finished = offset

    def uncommitted(self, *, delivered: bool = False) -> Offsets:
        """Return the finished offsets that are not committed; with `delivered`, the delivered ones."""
        ends = {
            partition: position.delivered if delivered else position.finished
            for partition, position in self._positions.items()
            if position.owned
        }
        return {
            partition: end
            for partition, end in ends.items()
            if end not in (UNKNOWN, self._positions[partition].stored)
        }

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record what the offset storage holds now."""
        for partition, offset in offsets.items():
            position = self._positions.get(partition)
            if position is not None:
                position.stored = offset
                position.finished = max(position.finished, offset)
