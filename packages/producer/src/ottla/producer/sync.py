"""The producer for threads: the asyncio producer on an event loop of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from ottla.client.blocking import LoopThread
from ottla.client.field_types import FieldType, K_contra, V_contra
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.client.interceptors import Interceptors
from ottla.client.serialization import Serializer, SerializerSpec
from ottla.client.settings import config_from
from ottla.producer.accumulator import Acknowledgements, BatchBuilder
from ottla.producer.config import ProducerConfig, UntypedProducerSettings
from ottla.producer.errors import ProducerClosed
from ottla.producer.metrics import ProducerMetrics
from ottla.producer.producer import Producer
from ottla.producer.record import Headers, ProducerRecord, RecordMetadata
from ottla.producer.sync_acknowledgement import SyncAcknowledgement
from ottla.producer.sync_send_queue import SyncSendQueue
from ottla.producer.transactions.prepared_transaction import PreparedTransaction, end_prepared
from ottla.protocol.topics import TopicPartition

T = TypeVar("T")

MOST_BYTES = 4 * 1024 * 1024
"""Bytes of large records that may wait for the producer's thread, besides `buffer_memory`."""
GRACE_S = 1.0


class SyncAcknowledgements:
    """The acknowledgements of many records, for threads: `result()` waits for all of them."""

    def __init__(self, thread: LoopThread[Producer[Any, Any]], inner: Acknowledgements) -> None:
        self._thread = thread
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def __repr__(self) -> str:
        return f"<Sync{repr(self._inner)[1:]}"

    def done(self) -> bool:
        """Whether all records are written or failed."""
        return self._inner.done()

    def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """Wait until all records are written; return their metadata. Raises the first error, TimeoutError."""

        async def settled() -> list[RecordMetadata]:
            await self._inner
            return [record.result() for record in self._inner]

        return self._thread.call(settled, timeout)


class SyncProducer(Generic[K_contra, V_contra]):
    """Writes records to topics, for scripts and for web frameworks with threads.

        with SyncProducer(bootstrap_servers="127.0.0.1:9092") as producer:
            producer.send("orders", b"one coffee", key=b"josef")

    All threads of a process may share one. `send` puts the record into a queue, and returns an
    acknowledgement to wait for. Leaving the block sends the records that still wait. After a fork every call
    raises Forked: start the producer in each worker.
    """

    @overload
    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        /,
        *,
        key_type: type[K_contra] | FieldType[K_contra] | None = None,
        value_type: type[V_contra] | FieldType[V_contra] | None = None,
        key_serializer: Callable[[K_contra], bytes | None] | Serializer[K_contra] | None = None,
        value_serializer: Callable[[V_contra], bytes | None] | Serializer[V_contra] | None = None,
        **settings: Unpack[UntypedProducerSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: SyncProducer[Any, Any],
        servers: str | Sequence[str] | None = None,
        /,
        config: ProducerConfig | None = None,
        *,
        key_type: type[Any] | FieldType[Any] | None = None,
        value_type: type[Any] | FieldType[Any] | None = None,
        key_serializer: SerializerSpec = None,
        value_serializer: SerializerSpec = None,
        **settings: Unpack[UntypedProducerSettings],
    ) -> None: ...
    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        /,
        config: ProducerConfig | None = None,
        **settings: Any,
    ) -> None:
        if servers is not None:
            settings["bootstrap_servers"] = servers
        self.config = config_from(ProducerConfig, config, settings)
        self._thread = LoopThread(
            lambda: Producer(config=self.config), name="the producer", closed=ProducerClosed
        )
        self._interceptors = Interceptors(self.config.interceptors)
        self._on_create = self._interceptors.methods("on_create")
        self._producer: Producer[Any, Any] | None = None
        self._send_queue = SyncSendQueue(
            self._thread,
            most_bytes=min(MOST_BYTES, self.config.buffer_memory),
            most_records=self.config.queue_buffering_max_messages,
            max_block_ms=self.config.max_block_ms,
        )

    def __repr__(self) -> str:
        return f"<SyncProducer of {self.config.client.bootstrap_servers}>"

    def start(self) -> Self:
        """Connect. Raises DeadlineExceeded, and the other errors of opening a producer."""
        self._producer = self._thread.start()
        self._send_queue.open(self._producer)
        return self

    def stop(self, timeout: float | None = None) -> None:
        """Send the records that still wait, and close; raise TimeoutError after `timeout` seconds."""
        try:
            if self._thread.is_running:
                self._thread.call(self._send_queue.emptied, timeout)
        finally:
            self._thread.close(timeout)

    close = stop

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def send(
        self,
        topic: str,
        value: V_contra | None = None,
        key: K_contra | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> SyncAcknowledgement:
        """Queue a record; return its acknowledgement. Waits up to `max_block_ms` while the queue is full.

        The errors of the record are in the acknowledgement: SerializationFailed, RecordTooLarge, and those of
        its delivery. Raises BufferFull, ProducerClosed, Forked.
        """
        if self._on_create:
            headers = self._created(ProducerRecord(topic, value, key, partition, timestamp_ms, headers or ()))
        record = SyncAcknowledgement(self._thread, topic, value, key, partition, timestamp_ms, headers)
        self._send_queue.put(record)
        return record

    def send_and_wait(
        self,
        topic: str,
        value: V_contra | None = None,
        key: K_contra | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Send a record, wait until it is written, and return its metadata."""
        return self.send(topic, value, key, partition, timestamp_ms, headers).result()

    def send_many(
        self,
        topic: str,
        values: Sequence[V_contra | None],
        *,
        keys: Sequence[K_contra | None] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Headers | None = None,
    ) -> SyncAcknowledgements:
        """Send many records of a topic at once; much faster than one by one."""
        if self._on_create:
            headers = self._created(ProducerRecord(topic, headers=headers or ()))
        inner = self._ordered(
            lambda producer: producer.send_many(
                topic, values, keys=keys, partition=partition, timestamps_ms=timestamps_ms, headers=headers
            )
        )
        return SyncAcknowledgements(self._thread, inner)

    def send_arrow(self, topic: str, data: object, **columns: str) -> SyncAcknowledgements:
        """Send the rows of Arrow columns, as `Producer.send_arrow` does; `columns` name them."""
        inner = self._ordered(lambda producer: producer.send_arrow(topic, data, **columns))
        return SyncAcknowledgements(self._thread, inner)

    def create_batch(self) -> BatchBuilder:
        """Return an empty batch to fill, for `send_batch`."""
        return self._opened.create_batch()

    def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> RecordMetadata:
        """Send a batch, wait until it is written, and return the metadata of its first record."""

        async def send(producer: Producer[Any, Any]) -> RecordMetadata:
            return await (await producer.send_batch(batch, topic, partition=partition))

        return self._ordered(send)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record is written or failed; raise TimeoutError after `timeout` seconds."""
        bound = (
            None if timeout is None else timeout + GRACE_S
        )  # the producer's own TimeoutError names the topics
        self._ordered(lambda producer: producer.flush(timeout), bound)

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic."""
        return self._thread.call(lambda: self._opened.partitions_for(topic))

    @property
    def metrics(self) -> ProducerMetrics:
        """The metrics of the producer."""
        return self._opened.metrics

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write the records of the block all together, or none of them when it raises.

        A transaction belongs to the producer, not to a thread: the records of all threads are part of it.
        """
        self.begin_transaction()
        try:
            yield
            self.commit_transaction()
        except BaseException:
            self._ordered(lambda producer: producer._abort_open_transaction())
            raise

    def begin_transaction(self) -> None:
        """Begin a transaction; needs `transactional_id`."""
        self._ordered(lambda producer: producer.begin_transaction())

    def commit_transaction(self) -> None:
        """Commit everything that was sent since the transaction began."""
        self._ordered(lambda producer: producer.commit_transaction())

    def prepare_transaction(self) -> PreparedTransaction:
        """Write everything that was sent since the transaction began, and leave its end to `end_prepared`."""
        return self._ordered(lambda producer: producer.prepare_transaction())

    def end_prepared(self, prepared: PreparedTransaction, *, committed: bool) -> None:
        """Commit or abort a prepared transaction, of this producer or of another; may be repeated.

        A producer without a `transactional_id` can do so too. A producer with the id of the transaction
        aborts it as it starts. Raises the errors of the function `end_prepared`.
        """
        cluster = self._opened._cluster
        self._thread.call(lambda: end_prepared(cluster, prepared, committed=committed))

    def abort_transaction(self) -> None:
        """Discard everything that was sent since the transaction began."""
        self._ordered(lambda producer: producer.abort_transaction())

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Commit offsets of a group with the transaction."""
        self._ordered(lambda producer: producer.send_offsets(offsets, group))

    send_offsets_to_transaction = send_offsets

    def _created(self, record: ProducerRecord) -> Headers:
        """Return the headers with those that interceptors add on the thread that sends."""
        return self._interceptors.transform(self._on_create, record, ProducerRecord).headers

    @property
    def _opened(self) -> Producer[Any, Any]:
        self._thread.check()
        assert self._producer is not None
        return self._producer

    def _ordered(
        self, what: Callable[[Producer[Any, Any]], Coroutine[Any, Any, T]], timeout: float | None = None
    ) -> T:
        """Call `what` after the producer has taken every record that was queued before."""
        producer = self._opened

        async def in_turn() -> T:
            await self._send_queue.emptied()
            return await what(producer)

        return self._thread.call(in_turn, timeout)
