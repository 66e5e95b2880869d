"""The producer: records in, batches out, acknowledgements back.

It has over 500 lines because type checkers need a signature of the constructor for each way to give types.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, Unpack, overload

from ottla.client.cluster import Cluster
from ottla.client.context_manager_task import ContextTask
from ottla.client.environment import chance
from ottla.client.errors import ClientError
from ottla.client.field_types import FieldType, K_contra, V_contra
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.client.interceptors import Interceptors
from ottla.client.serialization import Serializer, SerializerSpec
from ottla.client.settings import config_from
from ottla.producer.accumulator import (
    Accumulator,
    Acknowledgement,
    Acknowledgements,
    Appender,
    BatchBuilder,
    SendMethods,
)
from ottla.producer.append.metadata import ProducerMetadata
from ottla.producer.append.pending_metadata import PendingMetadata
from ottla.producer.append.record_admission import BufferSpace, RecordAdmission, not_open
from ottla.producer.append.record_appender import RecordAppender, RecordSerializer
from ottla.producer.append.send_general_path import BulkSends, ObservedSends, SendGeneralPath, check_lengths
from ottla.producer.config import ProducerConfig, UntypedProducerSettings
from ottla.producer.errors import ProducerClosed
from ottla.producer.flushing import Flushing
from ottla.producer.metrics import ProducerMetrics
from ottla.producer.partitioner import partitioner
from ottla.producer.record import Headers, RecordMetadata
from ottla.producer.sender.batch_completion import BatchCompletion
from ottla.producer.sender.idempotence import Idempotence
from ottla.producer.sender.partition_order import PartitionOrder, RefusedLeaders
from ottla.producer.sender.sender import Sender
from ottla.producer.sender.sequence_numbers import SequenceNumbers
from ottla.producer.transactions.begin_commit_abort import Transactions
from ottla.producer.transactions.coordinator_client import TransactionCoordinatorClient
from ottla.producer.transactions.prepared_transaction import PreparedTransaction
from ottla.protocol.topics import TopicPartition

# The limits of the last abort and of the last flush, when an exception leaves the block.
LAST_FLUSH_S = 5.0
# The methods of interceptors that need to see single records.
RECORD_METHODS = ("on_begin", "on_send", "on_enqueue", "on_acknowledgement")


def loop_time_ms() -> float:
    """Return the time of the running event loop in milliseconds; tests bring a loop of their own."""
    return asyncio.get_running_loop().time() * 1_000


class Producer(SendMethods[K_contra, V_contra]):
    """Writes records to topics.

        async with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
            metadata = await producer.send_and_wait("orders", b"one coffee", key=b"josef")

    Leaving the block sends the records that still wait. With the defaults a record is acknowledged by all
    in-sync replicas and written once, in the order of `send` for each partition. Settings are those of
    `ProducerConfig`, `ClientConfig` and `SecurityConfig`, as keywords. For type checkers it is
    `Producer[K, V]`: serializers, or `key_type` and `value_type`, give the types of keys and values.
    """

    # The only base class is compiled and holds nothing but `send` and `send_nowait`. It calls no method of
    # this class. A method that passed them on to a part would cost 22 % of `await send`; bound methods of a
    # part on the instance cost 7 %, and a subclass could not override them.

    @overload
    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
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
        self: Producer[Any, Any],
        bootstrap_servers: str | Sequence[str] | None = None,
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
        bootstrap_servers: str | Sequence[str] | None = None,
        /,
        config: ProducerConfig | None = None,
        **settings: Any,
    ) -> None:
        if bootstrap_servers is not None:
            settings["bootstrap_servers"] = bootstrap_servers
        self.config = config = config_from(ProducerConfig, config, settings)
        self.metrics = ProducerMetrics(buffer_total_bytes=config.buffer_memory)
        self._tasks: asyncio.TaskGroup | None = None
        self._searches: set[asyncio.Task[None]] = set()
        """Each finds a topic for the records that wait for it."""
        self._running: ContextTask | None = None
        self._cluster = Cluster(config.client.bootstrap_servers, config.client)
        self._coordinator = self._coordinator_client()
        self._accumulator = self._make_accumulator()
        self._buffer_space = BufferSpace(self._accumulator, config.max_block_ms, self.metrics)
        self._pending = PendingMetadata(self._pending_failed)
        interceptors = Interceptors(config.interceptors)
        self._has_interceptors = any(interceptors.methods(name) for name in RECORD_METHODS)
        custom_partitioner = partitioner(config.partitioner)
        self._has_partitioner = custom_partitioner is not None
        appender = Appender(self._accumulator)
        self._admission = RecordAdmission(appender, has_fast_path=self._has_fast_path)
        records = RecordAppender(appender, custom_partitioner, interceptors)
        self._metadata = self._producer_metadata(appender, records)
        serializer = RecordSerializer(interceptors, config)
        self._shows_records = self._has_interceptors or serializer.sees_context
        self._general_path = self._make_general_path(appender, serializer, records, interceptors)
        super().__init__(appender, self._general_path)
        self._bulk = BulkSends(
            appender, self._admission, serializer, records, self._metadata, self._buffer_space
        )
        self._sender = self._make_sender(records)
        self._accumulator.wake = self._sender.wake
        self._flushing = Flushing(self._accumulator, self._pending, self.metrics, loop_time_ms)
        self._transactions = Transactions(
            self._coordinator, self._admission, lambda: self.flush(), self._pending, self._sender
        )
        self.metrics.available = lambda: self._buffer_space.available_bytes
        self.metrics.in_flight = lambda: self._sender.requests_in_flight

    def __repr__(self) -> str:
        state = "open" if self._admission.is_open else "not open"
        return f"<Producer of {self.config.client.bootstrap_servers}, {state}>"

    # --- opening and closing

    async def start(self) -> None:
        """Open the producer; `stop` closes it. For code that cannot use a block.

        If it raises, the producer is not open, and may be started again.
        """
        if self._running is not None:
            return
        self._running = running = ContextTask(self)
        try:
            await running.start()
        except BaseException:
            self._running = None
            raise

    async def stop(self) -> None:
        """Send the records that still wait, and close."""
        running, self._running = self._running, None
        if running is not None:
            await running.stop()

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        await self._start_coordinator_client()
        self._accumulator.loop = asyncio.get_running_loop()
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._sender_task = self._tasks.create_task(self._sender.run(self._tasks))
        self._metadata_task = self._tasks.create_task(self._metadata.keep_fresh())
        self._admission.open(None if self._coordinator is None else self._coordinator.state)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._abort_open_transaction()
            self._admission.close()
            await self._last_flush(kind)
        except BaseException as failed:  # cancelled, as a rule: then requests in flight are not waited for
            await self._end(failed)
            raise
        await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        assert self._tasks is not None
        self._fail_incomplete()
        try:
            await self._tasks.__aexit__(None if error is None else type(error), error, None)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        finally:
            self._tasks = None
            await self._cluster.close()

    async def _last_flush(self, kind: type[BaseException] | None) -> None:
        if self._sender_task.done():
            return  # the sender died: nothing would ever be sent
        if kind is None:
            await self.flush()
            return
        try:
            await self.flush(LAST_FLUSH_S)
        except TimeoutError:
            return  # the remaining records fail with ProducerClosed

    def _fail_incomplete(self) -> None:
        closed = ProducerClosed("the producer was closed before the record was acknowledged")
        self._admission.close()
        self._sender.stop()
        self._pending.fail_all(closed)
        self._buffer_space.fail_all(closed)
        self._sender_task.cancel()
        self._metadata_task.cancel()
        for search in self._searches:
            search.cancel()  # no record waits for its topic any more

    # --- sending

    async def send_and_wait(
        self,
        topic: str,
        value: V_contra | None = None,
        key: K_contra | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Send a record, wait until it is written, and return its metadata. Raises the record's error."""
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def send_many(
        self,
        topic: str,
        values: Iterable[V_contra | None],
        *,
        keys: Iterable[K_contra | None] | None = None,
        partition: int | None = None,
        timestamps_ms: Iterable[int] | None = None,
        headers: Headers | None = None,
    ) -> Acknowledgements:
        """Append many records, in order; return their Acknowledgements, which may be awaited as one.

        `keys` and `timestamps_ms` are as long as `values`; every record gets the `headers`. Waits whenever
        the buffer is full. If it raises, the records before the one at fault may be in batches already.

        Interceptors that see records, serializers that see headers, and a custom partitioner if `partition`
        is None, are called for each record, as in `send`; then this is no faster than a loop of `send`.
        """
        if isinstance(values, str | bytes | bytearray):
            raise TypeError(
                f"values must be a list of values, not {type(values).__name__}; send takes a single one"
            )
        given: list[object] = list(values)  # the caller may change its own list while this waits
        stamps = None if timestamps_ms is None else list(timestamps_ms)
        given_keys: list[object] | None = None if keys is None else list(keys)
        check_lengths(len(given), keys=given_keys, timestamps_ms=stamps)
        self._admission.check()
        if self._shows_records or (self._has_partitioner and partition is None):
            return await self._general_path.send_each(topic, given, given_keys, partition, stamps, headers)
        return await self._bulk.send_many(topic, given, given_keys, partition, stamps, headers)

    async def send_arrow(
        self,
        topic: str,
        data: object,
        *,
        value: str = "value",
        key: str = "key",
        timestamp: str = "timestamp",
        partition: str = "partition",
        headers: str = "headers",
    ) -> Acknowledgements:
        """Append the rows of Arrow columns as records; return their Acknowledgements, in the order of rows.

        `data` is a table or record batch of pyarrow, a polars DataFrame, or any object with
        `__arrow_c_stream__` or `__arrow_c_array__`; pyarrow itself is not needed. The other arguments name
        its columns: values and keys of bytes or text, timestamps (or int64 of milliseconds), partitions, and
        headers (a list of structs of key and value). All but values may be missing, or null. No Python object
        is made per row, and no serializer is called. A custom partitioner is called for rows without a
        partition. Waits whenever the buffer is full. If it raises, the rows before the one at fault are in
        batches already. Raises ClientError if an interceptor sees records: there are none to show.
        """
        columns = {
            "value": value, "key": key, "timestamp": timestamp, "partition": partition, "headers": headers
        }  # fmt: skip
        self._refuse_interceptors("send_arrow", "use send_many")
        return await self._bulk.send_arrow(topic, data, columns)

    def create_batch(self) -> BatchBuilder:
        """Return an empty batch to fill, for `send_batch`; it takes as much as the settings allow batches."""
        config = self.config
        return BatchBuilder(min(config.batch_size, config.max_request_size), config.batch_num_messages)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> Acknowledgement:
        """Send a batch that the caller filled; return the acknowledgement of its first record.

        Raises ClientError if an interceptor sees records.
        """
        self._refuse_interceptors("send_batch", "use send")
        return await self._bulk.send_batch(batch, topic, partition)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything that waits now, and return when every record of it is acknowledged or failed.

        Raises TimeoutError after `timeout_s`; the records go on waiting then. The errors of records are in
        their acknowledgements. Raises ProducerClosed before `start` and after `stop`.
        """
        if self._tasks is None:  # not by the admission: `stop` closes it, and flushes then
            raise not_open()
        await self._flushing.flush(timeout_s)

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic. Brokers that create topics automatically create it."""
        self._admission.check_open()
        return set((await self._metadata.topic(topic)).partitions)

    # --- transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Write the records of the block all together, or none of them when an exception leaves it.

        Needs `transactional_id`. Consumers with `isolation_level="read_committed"` see committed records
        only. Raises TransactionFailed when a record could not be written: then the transaction is aborted.
        """
        await self.begin_transaction()
        try:
            yield self
            await self.commit_transaction()
        except BaseException:
            await self._abort_open_transaction()
            raise

    async def begin_transaction(self) -> None:
        """Begin a transaction. Raises TransactionError inside another, or without `transactional_id`."""
        await self._transactions.begin()

    async def commit_transaction(self) -> None:
        """Write everything that was sent, and commit it.

        Raises TransactionFailed when a record could not be written: then only `abort_transaction` is
        possible. If the coordinator cannot be reached, it may be called again.
        """
        await self._transactions.commit()

    async def prepare_transaction(self) -> PreparedTransaction:
        """Write everything that was sent, and leave the transaction open for `end_prepared`.

        `end_prepared` takes the return value, in this process or another; this producer can only be closed.
        Raises TransactionFailed when a record could not be written. It is the first of two phases, as in
        KIP-939, but brokers do not hold such a transaction longer than others.
        """
        return await self._transactions.prepare()

    async def abort_transaction(self) -> None:
        """Discard everything that was sent since the transaction began."""
        await self._transactions.abort()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Commit offsets of a consumer group with the transaction (KIP-98).

        `offsets` are those of the next records to read. Give `consumer.group_metadata()` as `group`: then the
        coordinator fences a member that has lost its partitions (KIP-447); with a name it cannot.
        """
        await self._transactions.send_offsets(offsets, group)

    send_offsets_to_transaction = send_offsets

    async def _abort_open_transaction(self) -> None:
        """Abort what no caller will commit any more."""
        await self._transactions.abort_if_open(self.abort_transaction, LAST_FLUSH_S)

    # --- the parts

    @property
    def _has_fast_path(self) -> bool:
        """Whether no setting needs to see single records."""
        config = self.config
        serialization = (config.key_serializer, config.value_serializer, config.key_type, config.value_type)
        has_serializer = any(setting is not None for setting in serialization)
        waits = config.metadata_refresh_at_each_send
        return not (self._has_interceptors or self._has_partitioner or has_serializer or waits)

    def _coordinator_client(self) -> TransactionCoordinatorClient | None:
        config = self.config
        if config.transactional_id is None:
            return None
        return TransactionCoordinatorClient(
            self._cluster,
            config.transactional_id,
            config.transaction_timeout_ms,
            self.metrics,
            config.delivery_timeout_ms,
            lambda topic: self._sender.find_leaders(topic),
        )

    def _producer_metadata(self, appender: Appender, records: RecordAppender) -> ProducerMetadata:
        return ProducerMetadata(
            self._cluster,
            appender,
            self.config,
            admission=self._admission,
            pending=self._pending,
            append=records.append,
            on_recreated=lambda topic, displaced, cause: self._sender.topic_recreated(
                topic, displaced, cause
            ),
            now_ms=loop_time_ms,
        )

    def _make_general_path(
        self,
        appender: Appender,
        serializer: RecordSerializer,
        records: RecordAppender,
        interceptors: Interceptors,
    ) -> SendGeneralPath:
        kind = ObservedSends if interceptors.methods("on_begin") else SendGeneralPath
        return kind(
            appender,
            interceptors=interceptors,
            admission=self._admission,
            serializer=serializer,
            records=records,
            metadata=self._metadata,
            pending=self._pending,
            buffer_space=self._buffer_space,
            metrics=self.metrics,
            run=self._look_up,
        )

    def _make_accumulator(self) -> Accumulator:
        config = self.config
        return Accumulator(
            batch_size=config.batch_size,
            linger_ms=config.linger_ms,
            buffer_memory=config.buffer_memory,
            max_record_size=config.max_request_size,
            max_records=config.queue_buffering_max_messages,
            max_batch_records=config.batch_num_messages,
            monotonic_ms=loop_time_ms,
            chance=chance,
        )

    def _make_sender(self, records: RecordAppender) -> Sender:
        config, coordinator = self.config, self._coordinator
        self._idempotence = idempotence = Idempotence(self._cluster, config, SequenceNumbers(), coordinator)
        order = PartitionOrder(loop_time_ms)
        refused_leaders = RefusedLeaders(order.leader_asked, self._cluster.known_leader, self._cluster.forget)
        completion = BatchCompletion(
            self._cluster,
            self._accumulator,
            config,
            self.metrics,
            idempotence=idempotence,
            refused_leaders=refused_leaders,
            coordinator=coordinator,
            on_buffer_space=self._buffer_space.wake_next,
            now_ms=loop_time_ms,
            chance=chance,
        )
        return Sender(
            self._cluster,
            self._accumulator,
            config,
            self.metrics,
            idempotence=idempotence,
            completion=completion,
            order=order,
            refused_leaders=refused_leaders,
            now_ms=loop_time_ms,
            on_metadata=self._metadata.update,
            on_batch=records.batch_listener,
        )

    async def _start_coordinator_client(self) -> None:
        if self._coordinator is None:
            return
        try:
            await self._coordinator.start()
        except BaseException:
            await self._cluster.close()
            raise

    def _look_up(self, search: Coroutine[Any, Any, None]) -> None:
        assert self._tasks is not None
        task = self._tasks.create_task(search)
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)

    def _pending_failed(self, error: BaseException) -> None:
        if self._coordinator is not None:
            self._coordinator.failed(error)

    def _refuse_interceptors(self, call: str, instead: str) -> None:
        if self._has_interceptors:
            raise ClientError(f"{call} takes no interceptors, which it has no records to show: {instead}")
