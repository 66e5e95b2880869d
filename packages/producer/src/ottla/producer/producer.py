"""The producer: records in, batches out, acknowledgements back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, cast

from ottla.client.cluster import Cluster
from ottla.producer.accumulator import Accumulator, Batch, record_size
from ottla.producer.config import CODECS, ProducerConfig
from ottla.producer.errors import ProducerClosed, RecordTooLarge
from ottla.producer.partitioner import StickyPartitioner
from ottla.producer.record import RecordMetadata
from ottla.producer.sender import Sender
from ottla.protocol.topics import TopicPartition

Headers = Sequence[tuple[str, bytes | None]]


class Producer:
    """Writes records to topics.

        async with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
            metadata = await producer.send_and_wait("orders", b"one coffee", key=b"josef")

    Leaving the block sends what is still waiting. With the defaults a record is acknowledged by all in-sync
    replicas and written once, in the order of `send` for each partition.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] = "127.0.0.1:9092",
        config: ProducerConfig | None = None,
        **settings: Any,
    ) -> None:
        if config is not None and settings:
            raise TypeError("give a config or single settings, not both")
        self.config = config or ProducerConfig(**settings)
        self._cluster = Cluster(bootstrap_servers, self.config.client)
        self._accumulator = Accumulator(
            batch_size=min(self.config.batch_size, self.config.max_request_size),
            linger_ms=self.config.linger_ms,
            codec=CODECS[self.config.compression_type],
        )
        self._partitioner = StickyPartitioner()
        self._sender = Sender(self._cluster, self._accumulator, self.config)
        self._tasks: asyncio.TaskGroup | None = None
        self._open = False

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._running = self._tasks.create_task(self._sender.run(self._tasks))
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        self._open = False
        try:
            if kind is None:
                await self.flush()
        finally:
            self._sender.stop()
            self._running.cancel()
            try:
                await self._tasks.__aexit__(kind, error, trace)
            except BaseExceptionGroup as group:
                if len(group.exceptions) == 1:
                    raise group.exceptions[0] from None
                raise
            finally:
                await self._cluster.close()

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> asyncio.Future[RecordMetadata]:
        """Take a record and return a future of its acknowledgement. Waits while the buffer is full.

        Raises RecordTooLarge, ProducerClosed, and what finding the topic meets; what happens later is in the
        future. An error in a future that nobody looks at is logged by asyncio.
        """
        self._refuse_when_closed()
        size = record_size(key, value, headers)
        if size > self.config.max_request_size:
            raise RecordTooLarge(size, self.config.max_request_size)
        target = TopicPartition(topic, await self._choose(topic, key, partition))
        await self._room_for(size)
        self._refuse_when_closed()
        # Nothing is awaited from here on: the order of calls is the order in the log.
        stamp = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        batch, began = self._accumulator.append(target, key, value, stamp, headers, self._sender.now_ms())
        if began and key is None and batch.size_bytes < self.config.batch_size:
            self._partitioner_turns(topic, batch)
        done: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        batch.waiters.append(done)
        self._sender.wake()
        return done

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> RecordMetadata:
        """Send a record and wait for its acknowledgement. Raises what kept it from being written."""
        sent = await self.send(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )
        return await sent

    async def flush(self) -> None:
        """Send everything that waits now, and return when all of it is acknowledged or given up."""
        waiting = [cast(asyncio.Future[RecordMetadata], one) for one in self._sender.waiting()]
        self._accumulator.flush(True)
        self._sender.wake()
        try:
            if waiting:
                await asyncio.wait(waiting)
        finally:
            self._accumulator.flush(False)

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the partitions of a topic, which is created where brokers do that."""
        return sorted((await self._cluster.topic(topic, may_create=True)).partitions)

    async def _choose(self, topic: str, key: bytes | None, partition: int | None) -> int:
        if partition is not None:
            return partition
        known = self._cluster.known_topic(topic) or await self._cluster.topic(topic, may_create=True)
        led = [index for index, each in known.partitions.items() if each.leader >= 0]
        return self._partitioner.choose(topic, key, len(known.partitions), led)

    async def _room_for(self, size: int) -> None:
        while (
            self._accumulator.size_bytes and self._accumulator.size_bytes + size > self.config.buffer_memory
        ):
            self._refuse_when_closed()
            await self._sender.progress()

    def _partitioner_turns(self, topic: str, batch: Batch) -> None:
        # A new batch began because the last was full: further keyless records may go elsewhere.
        if len([one for one in self._accumulator.everything() if one.partition == batch.partition]) > 1:
            self._partitioner.batch_full(topic)

    def _refuse_when_closed(self) -> None:
        if not self._open:
            raise ProducerClosed("the producer is not open; use it inside `async with`")
