"""The streams an application reads from: records of the partitions that one thread of the group owns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ottla.client.errors import ClientError
from ottla.consumer.record import ConsumerRecord
from ottla.consumer.zookeeper.errors import ConsumerTimeout
from ottla.consumer.zookeeper.places import Places
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.errors import ZooKeeperError

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Reader(Protocol):
    """Reads assigned partitions, as far as a stream needs it."""

    def assign(self, partitions: Mapping[TopicPartition, int | None]) -> None:
        """Read these partitions: from an offset where one is given, on from where it is otherwise."""

    async def next_records(self) -> Mapping[TopicPartition, Sequence[ConsumerRecord]]:
        """Return records as soon as there are some, or none after a while."""


class MessageStream:
    """An async iterator over the records of the partitions this stream owns, whichever these are just now.

        async for record in stream:
            print(record.topic, record.partition, record.offset, record.value)

    A record counts as finished when the next one is asked for; what is finished is what is committed. The
    iteration ends with the connector's shutdown. It raises ConsumerTimeout after `consumer_timeout_ms`
    without a record, ConsumerRebalanceFailed when the group could not be shared out, and what brokers refuse;
    it can be iterated over again after each of them. One task at a time may iterate.
    """

    def __init__(
        self, name: str, places: Places, spawn: Spawn, *, capacity: int, timeout_ms: int = -1
    ) -> None:
        self.name = name
        self._capacity = capacity
        self._places = places
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
        # Nothing is counted here: what is in hand tells what is finished, see `note_progress`.
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
        """The partitions this stream owns now."""
        return self._owned

    def _finish(self) -> None:
        record, self._current = self._current, None
        if record is not None:
            self._note(record)
            self._places.finished(TopicPartition(record.topic, record.partition), record.offset)
            self._asked.set()

    async def _refill(self) -> None:
        """Return with something to give; raises why there is nothing."""
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
        # A task of the connector, not of whoever asks: an iteration that is cancelled loses nothing.
        if self._filling is None and self._reader is not None and self._owned:
            self._filling = self._spawn(self._fill(self._reader))

    async def _fill(self, reader: Reader) -> None:
        try:
            while self._owned and sum(len(some) for _, some in self._chunks) < self._capacity:
                # Nothing is awaited between the reader giving records and these being here: `release` meets
                # them in one place or the other.
                found = await reader.next_records()
                self._chunks.extend((each, some) for each, some in found.items() if each in self._owned)
                if self._chunks:
                    self._changed.set()
        except (ClientError, KafkaError, ZooKeeperError) as error:
            self._failures.append(error)
        finally:
            self._filling = None
            self._changed.set()

    # --- what the connector calls

    def own(self, reader: Reader, starts: Mapping[TopicPartition, int | None]) -> None:
        """Own further partitions, to be read from these offsets; None leaves it to the reader."""
        self._reader = reader
        self._owned |= starts.keys()
        reader.assign({each: starts.get(each) for each in self._owned})
        self._changed.set()

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Give out no more records of some partitions."""
        gone = self._owned.intersection(partitions)
        if not gone:
            return
        self.note_progress()
        current = self._current
        if current is not None and (current.topic, current.partition) in gone:
            # Noted for the last time: whoever gets the partition back may begin elsewhere.
            self._outlived = current
        self._owned -= gone
        self._chunks = deque((each, some) for each, some in self._chunks if each not in gone)
        if self._chunk_of in gone:
            self._chunk = iter(())
        if self._reader is not None:
            self._reader.assign(dict.fromkeys(self._owned))

    def note_progress(self) -> None:
        """Tell the places what is in hand: it was given out, and everything before it is finished."""
        if self._current is not None:
            self._note(self._current)

    def _note(self, record: ConsumerRecord) -> None:
        if record is not self._outlived:
            self._places.gave(TopicPartition(record.topic, record.partition), record.offset)

    async def done_with(self, partitions: Iterable[TopicPartition]) -> None:
        """Wait until the application has finished the last record it got of these partitions."""
        gone = set(partitions)
        while self._current is not None and (self._current.topic, self._current.partition) in gone:
            self._asked.clear()
            await self._asked.wait()

    def fail(self, error: Exception) -> None:
        """Let whoever iterates hear of a failure, once."""
        if not self._failures:
            self._failures.append(error)
        self._changed.set()

    async def detach(self) -> None:
        """Own nothing, and have no reader any more."""
        self.release(self._owned)
        filling, self._reader = self._filling, None
        if filling is not None:
            filling.cancel()
            await asyncio.wait([filling])
            # A task that is cancelled before its first turn runs nothing of `_fill`, its `finally` included:
            # the next reader would be taken for one that is read already, and nobody would read it.
            self._filling = None

    async def close(self) -> None:
        """End the iteration, and the reading behind it."""
        self._closed = True
        await self.detach()
        self._changed.set()
