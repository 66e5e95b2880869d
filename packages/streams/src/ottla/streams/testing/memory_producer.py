"""A producer to the log in memory, with the methods of `ottla.producer.Producer` that streams use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.client.interceptors import Interceptors
from ottla.client.serialization import SentHeader, when_prepared
from ottla.producer import (
    ProducerConfig,
    ProducerFenced,
    ProducerMetrics,
    ProducerRecord,
    RecordMetadata,
    RecordTooLarge,
    TransactionError,
)
from ottla.producer.partitioner import Partitioner, partition_for_key, partitioner
from ottla.producer.record import RECORD_OVERHEAD_BYTES
from ottla.producer.record import Headers as GivenHeaders
from ottla.protocol.topics import TopicPartition
from ottla.streams.testing.cluster import Life, MemoryCluster
from ottla.streams.testing.memory_log import Headers


class MemoryAcknowledgement:
    """The acknowledgement of a record that is written, or kept for a commit."""

    def __init__(self, metadata: RecordMetadata) -> None:
        self._metadata = metadata
        self._future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        self._future.set_result(metadata)

    def done(self) -> bool:
        """Return True: the record is written at once."""
        return True

    def result(self) -> RecordMetadata:
        """Return the metadata."""
        return self._metadata

    def exception(self) -> BaseException | None:
        """Return None: it is written."""
        return None

    @property
    def offset(self) -> int:
        """The record's offset; -1 inside a transaction."""
        return self._metadata.offset

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        """Call a function with this, in the next turn of the loop."""
        self._future.add_done_callback(lambda _: function(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self._future.__await__()


class MemoryProducer:
    """Writes records to topics. Those of a transaction are kept until it is committed."""

    def __init__(
        self, config: ProducerConfig, cluster: MemoryCluster, life: Life, now_ms: Callable[[], int]
    ) -> None:
        self.config = config
        self.metrics = ProducerMetrics()
        self._cluster = cluster
        self._life = life
        self._now_ms = now_ms
        self._serializers = config.serializers()
        self._interceptors = Interceptors(config.interceptors)
        self._partitioner: Partitioner | None = partitioner(config.partitioner)
        self._turns: dict[str, int] = {}
        self._transaction: _Transaction | None = None
        self._fenced: ProducerFenced | None = None

    # --- opening and closing

    async def start(self) -> None:
        """Open it; fence the producer that had its transactional id."""
        await self._life.going_on()
        if self.config.transactional_id is not None:
            self._cluster.take_transactional_id(self.config.transactional_id, self)

    async def stop(self) -> None:
        """Close it; an open transaction is aborted."""
        self._transaction = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --- sending

    async def send(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: GivenHeaders | None = None,
    ) -> MemoryAcknowledgement:
        """Write a record. Raises what the serializers raise, and RecordTooLarge."""
        await self._life.going_on()
        record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers or ())
        record, end = self._interceptors.begin(self._interceptors.methods("on_begin"), record)
        for on_send in self._interceptors.methods("on_send"):
            record = on_send(record) or record
        timeout_s = None if self.config.max_block_ms < 0 else self.config.max_block_ms / 1_000
        try:
            metadata = await when_prepared(partial(self.write, record), timeout_s)
        except BaseException as error:
            end(None, error)
            raise
        end(metadata, None)
        return MemoryAcknowledgement(metadata)

    async def send_and_wait(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: GivenHeaders | None = None,
    ) -> RecordMetadata:
        """Send a record, and return its metadata."""
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def flush(self, timeout_s: float | None = None) -> None:
        """Return: everything is written at once."""
        await self._life.going_on()

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic, which is created if there is none."""
        self._cluster.log.ensure([topic])
        return set(range(len(self._cluster.log.partitions(topic))))

    def write(self, given: ProducerRecord) -> RecordMetadata:
        """Write a record now, or keep it for the commit."""
        pairs = given.headers.items() if isinstance(given.headers, Mapping) else given.headers
        key, value, sent = self._serializers.serialize(given.topic, given.key, given.value, pairs)
        headers = _headers(sent)
        size_bytes = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        if size_bytes > self.config.max_request_size:
            raise RecordTooLarge(size_bytes, self.config.max_request_size)
        self._cluster.log.ensure([given.topic])
        partition = TopicPartition(given.topic, self._choose(given.topic, key, given.partition))
        log = self._cluster.log.partition(partition)
        stamp_ms = self._now_ms() if given.timestamp_ms is None else given.timestamp_ms
        if self.config.transactional_id is not None:
            self._open().records.append((partition, key, value, stamp_ms, headers))
            return RecordMetadata(*partition, -1, stamp_ms)
        offset = log.append(key, value, stamp_ms, headers)
        self._cluster.log.changed()
        return RecordMetadata(*partition, offset, stamp_ms)

    def _choose(self, topic: str, key: bytes | None, partition: int | None) -> int:
        if partition is not None:
            return partition
        count = len(self._cluster.log.partitions(topic))
        if self._partitioner is not None:
            return self._partitioner.partition(topic, key, count, range(count))
        if key is not None:
            return partition_for_key(key, count)
        turn = self._turns[topic] = self._turns.get(topic, -1) + 1
        return turn % count

    # --- transactions

    async def begin_transaction(self) -> None:
        """Begin a transaction."""
        await self._life.going_on()
        self._check_fenced()
        if self.config.transactional_id is None or self._transaction is not None:
            raise TransactionError("begin_transaction needs a transactional_id, and no open transaction")
        self._transaction = _Transaction()

    async def commit_transaction(self) -> None:
        """Write everything that was sent, and commit the offsets, all at once."""
        await self._life.going_on()
        transaction = self._open()
        for group, offsets in transaction.offsets:
            self._cluster.group(group).offsets.update(offsets)
        for partition, key, value, stamp_ms, headers in transaction.records:
            self._cluster.log.partition(partition).append(key, value, stamp_ms, headers)
        for partition in dict.fromkeys(partition for partition, *_ in transaction.records):
            self._cluster.log.partition(partition).append_marker()
        self._transaction = None
        self._cluster.log.changed()

    async def abort_transaction(self) -> None:
        """Discard everything that was sent since the transaction began."""
        await self._life.going_on()
        self._open()
        self._transaction = None

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Commit offsets with the transaction. Raises IllegalGeneration for a member that lost them."""
        await self._life.going_on()
        transaction = self._open()
        group_id = group if isinstance(group, str) else group.group_id
        if isinstance(group, GroupMetadata):
            self._cluster.group(group_id).check(group)
        given = {p: OffsetAndMetadata(o) if isinstance(o, int) else o for p, o in offsets.items()}
        transaction.offsets.append((group_id, given))

    def fence(self, error: ProducerFenced) -> None:
        """Another producer has its transactional id now: the open transaction is aborted."""
        self._fenced, self._transaction = error, None

    def _open(self) -> _Transaction:
        self._check_fenced()
        if self._transaction is None:
            raise TransactionError("there is no open transaction: begin one")
        return self._transaction

    def _check_fenced(self) -> None:
        if self._fenced is not None:
            raise self._fenced


class _Transaction:
    """The records and offsets that a transaction will write."""

    def __init__(self) -> None:
        self.records: list[tuple[TopicPartition, bytes | None, bytes | None, int, Headers]] = []
        self.offsets: list[tuple[str, dict[TopicPartition, OffsetAndMetadata]]] = []


def _headers(pairs: Iterable[SentHeader]) -> Headers:
    return tuple((name, data.encode() if isinstance(data, str) else data) for name, data in pairs)
