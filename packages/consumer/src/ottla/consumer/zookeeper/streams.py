"""The streams an application reads from: records of the partitions that one thread of the group owns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
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

    async def next_records(self) -> Sequence[ConsumerRecord]:
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
        self._buffer: deque[ConsumerRecord] = deque()
        self._current: ConsumerRecord | None = None
        self._filling: asyncio.Task[None] | None = None
        self._failures: deque[Exception] = deque()
        self._closed = False
        self._changed = asyncio.Event()
        self._asked = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        self._finish()
        if not self._buffer:
            await self._refill()
        record = self._current = self._buffer.popleft()
        self._places.gave(TopicPartition(record.topic, record.partition), record.offset)
        return record

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions this stream owns now."""
        return self._owned

    def _finish(self) -> None:
        record, self._current = self._current, None
        if record is not None:
            self._places.finished(TopicPartition(record.topic, record.partition), record.offset)
            self._asked.set()

    async def _refill(self) -> None:
        """Return with something in the buffer; raises why there is nothing."""
        deadline = None if self._timeout_s is None else asyncio.get_running_loop().time() + self._timeout_s
        while not self._buffer:
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
            while self._owned and len(self._buffer) < self._capacity and not self._closed:
                # Nothing is awaited between the reader giving records and these being in the buffer:
                # `release` meets them in one place or the other.
                records = await reader.next_records()
                self._buffer.extend(r for r in records if (r.topic, r.partition) in self._owned)
                if self._buffer:
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
        self._owned -= gone
        self._buffer = deque(each for each in self._buffer if (each.topic, each.partition) not in gone)
        if self._reader is not None:
            self._reader.assign(dict.fromkeys(self._owned))

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

    async def close(self) -> None:
        """End the iteration, and the reading behind it."""
        self._closed = True
        self._owned = frozenset()
        self._buffer.clear()
        filling = self._filling
        if filling is not None:
            filling.cancel()
            await asyncio.wait([filling])
        self._changed.set()
