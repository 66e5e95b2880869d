"""The consumer for threads: an asynchronous consumer on an event loop thread."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, cast, overload

from ottla.client.blocking import Call, LoopThread
from ottla.client.errors import DeadlineExceeded
from ottla.client.field_types import FieldType, K_co, V_co
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.client.serialization import Deserializer, DeserializerSpec
from ottla.client.settings import config_from
from ottla.consumer.argument_validation import Offset, Partition, check_settings, no_such_name, to_topics
from ottla.consumer.config import ConsumerConfig, UntypedConsumerSettings
from ottla.consumer.consumer import Consumer
from ottla.consumer.fetch.arrow import DEFAULT_BYTES
from ottla.consumer.fetch.offset_lookups import OffsetAndTimestamp
from ottla.consumer.metrics import ConsumerMetrics
from ottla.consumer.record import ConsumerRecord, RecordBatch
from ottla.consumer.subscription import Partitions, RebalanceListener, TopicFilter
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")

log = logging.getLogger(__name__)

SETTLE_S = 5.0


class SyncConsumer(Generic[K_co, V_co]):
    """Reads topics, for scripts and for threads.

        with SyncConsumer("orders", group_id="billing", auto_offset_reset="earliest") as consumer:
            for record in consumer:
                print(record.offset, record.key, record.value)

    All threads of a process may share one; each record is delivered to one of them. Buffered records are
    delivered without a call to the loop. A listener's plain methods run on threads of their own, and may call
    the consumer. After a fork a consumer raises an error: start it in each worker.
    """

    @overload
    def __init__(
        self,
        *topics: str,
        key_type: type[K_co] | FieldType[K_co] | None = None,
        value_type: type[V_co] | FieldType[V_co] | None = None,
        key_deserializer: Callable[[bytes], K_co] | Deserializer[K_co] | None = None,
        value_deserializer: Callable[[bytes], V_co] | Deserializer[V_co] | None = None,
        **settings: Unpack[UntypedConsumerSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: SyncConsumer[Any, Any],
        *topics: str,
        config: ConsumerConfig | None = None,
        key_type: type[Any] | FieldType[Any] | None = None,
        value_type: type[Any] | FieldType[Any] | None = None,
        key_deserializer: DeserializerSpec = None,
        value_deserializer: DeserializerSpec = None,
        **settings: Unpack[UntypedConsumerSettings],
    ) -> None: ...
    def __init__(self, *topics: str, config: ConsumerConfig | None = None, **settings: Any) -> None:
        check_settings(settings)
        self.config = config_from(ConsumerConfig, config, settings)
        self._topics = to_topics(topics)
        self._thread = LoopThread(self._make, name="the consumer")
        self._consumer: Consumer[Any, Any] | None = None
        # One thread at a time asks, so that records of a partition are delivered in order.
        self._asking = threading.Lock()
        self._interrupted: Call[Any] | None = None
        self._settling = threading.Lock()
        self._next_buffered: Callable[[], ConsumerRecord[K_co, V_co] | None] = lambda: None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_such_name(self, name)

    def start(self) -> Self:
        """Connect. Raises DeadlineExceeded, and what starting a consumer raises."""
        self._consumer = self._thread.start()
        self._next_buffered = self._consumer._delivery._next_buffered
        return self

    def stop(self, timeout: float | None = None) -> None:
        """Commit finished records, leave the group, and close; TimeoutError after `timeout` seconds."""
        self._thread.close(timeout)

    close = stop

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- records

    def __iter__(self) -> Iterator[ConsumerRecord[K_co, V_co]]:
        return self

    def __next__(self) -> ConsumerRecord[K_co, V_co]:
        """Return the next record; StopIteration after `consumer_timeout_ms` without one."""
        with self._asking:
            self._thread.check()
            record = self._next_buffered() if self._interrupted is None else None
            if record is None:
                record = self._await_record()
        if record is None:
            raise StopIteration
        return record

    def getone(self, *partitions: Partition) -> ConsumerRecord[K_co, V_co]:
        """Return the next record, of all partitions or some."""
        return cast("ConsumerRecord[K_co, V_co]", self._ask(lambda consumer: consumer.getone(*partitions)))

    def getmany(
        self, *partitions: Partition, timeout_ms: float | None = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[K_co, V_co]]]:
        """Return buffered records of all partitions or some, waiting up to `timeout_ms` for the first."""
        records: dict[TopicPartition, list[ConsumerRecord[K_co, V_co]]] = self._ask(
            lambda consumer: consumer.getmany(*partitions, timeout_ms=timeout_ms, max_records=max_records)
        )
        return records

    def batches(self, *, max_records: int | None = None) -> Iterator[RecordBatch[K_co, V_co]]:
        """Iterate over batches of one partition each; a batch is finished when the next is asked for."""
        batches = self._opened.batches(max_records=max_records)
        while (batch := self._ask(lambda _: anext(batches, None))) is not None:
            yield batch

    def fetch_arrow(
        self,
        *partitions: Partition,
        timeout_ms: float | None = 1_000,
        max_records: int | None = None,
        max_bytes: int = DEFAULT_BYTES,
        columns: Iterable[str] | None = None,
        until: Mapping[TopicPartition, int] | None = None,
    ) -> pyarrow.RecordBatch:
        """Return buffered records as Arrow columns, waiting up to `timeout_ms` for the first."""
        return self._ask(
            lambda consumer: consumer.fetch_arrow(
                *partitions,
                timeout_ms=timeout_ms,
                max_records=max_records,
                max_bytes=max_bytes,
                columns=columns,
                until=until,
            )
        )

    def arrow_batches(
        self,
        *,
        max_records: int | None = None,
        max_bytes: int = DEFAULT_BYTES,
        columns: Iterable[str] | None = None,
    ) -> Iterator[pyarrow.RecordBatch]:
        """Iterate over Arrow batches; a batch is finished when the next is asked for."""
        batches = self._opened.arrow_batches(max_records=max_records, max_bytes=max_bytes, columns=columns)
        while (batch := self._ask(lambda _: anext(batches, None))) is not None:
            yield batch

    # --- what to read

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | TopicFilter | None = None,
        listener: Any = None,
    ) -> None:
        """Read topics by name, or all whose names match; in state of what was subscribed to before."""
        wrapped = None if listener is None else OnThreads(listener)
        self._do(lambda consumer: consumer.subscribe(topics, pattern=pattern, listener=wrapped))

    def unsubscribe(self) -> None:
        """Read nothing any more, and leave the group."""
        self._do(lambda consumer: consumer.unsubscribe())

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics."""
        return self._do(lambda consumer: consumer.subscription())

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions."""
        self._do(lambda consumer: consumer.assign(partitions))

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions."""
        return self._do(lambda consumer: consumer.assignment())

    def pause(self, *partitions: Partition) -> None:
        """Stop fetching and delivering partitions until they are resumed."""
        self._do(lambda consumer: consumer.pause(*partitions))

    def resume(self, *partitions: Partition) -> None:
        """Continue partitions that were paused."""
        self._do(lambda consumer: consumer.resume(*partitions))

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are paused."""
        return self._do(lambda consumer: consumer.paused())

    # --- positions

    def seek(self, partition: Partition, offset: Offset) -> None:
        """Continue a partition at an offset."""
        self._do(lambda consumer: consumer.seek(partition, offset))

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Continue at the first records of partitions, or of all assigned ones."""
        self._call(lambda consumer: consumer.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: Partition) -> None:
        """Continue after the last records of partitions, or of all assigned ones."""
        self._call(lambda consumer: consumer.seek_to_end(*partitions))

    def seek_to_timestamp(self, timestamps: int | Mapping[TopicPartition, int]) -> None:
        """Continue at the first records at or after a timestamp in ms: one for all, or one per partition."""
        self._call(lambda consumer: consumer.seek_to_timestamp(timestamps))

    def seek_to_committed(self, *partitions: Partition) -> dict[TopicPartition, int | None]:
        """Continue at the committed offsets of the group; return them, None where there is none."""
        return self._call(lambda consumer: consumer.seek_to_committed(*partitions))

    def position(self, partition: Partition) -> int:
        """Return the offset of the next record of a partition to be delivered."""
        return self._call(lambda consumer: consumer.position(partition))

    def highwater(self, partition: Partition) -> int | None:
        """Return the high watermark of a partition in the last response; None before the first."""
        return self._do(lambda consumer: consumer.highwater(partition))

    def last_stable_offset(self, partition: Partition) -> int | None:
        """Return the last stable offset of a partition in the last response; None before the first."""
        return self._do(lambda consumer: consumer.last_stable_offset(partition))

    def lag(self, partition: Partition) -> int | None:
        """Return the lag of a partition as of the last response, without a request; None if unknown."""
        return self._do(lambda consumer: consumer.lag(partition))

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """Return the offsets of the first records of partitions."""
        return self._call(lambda consumer: consumer.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[Partition] | None = None) -> dict[TopicPartition, int]:
        """Return the end offsets of partitions, one past their last record; None: of all assigned ones."""
        return self._call(lambda consumer: consumer.end_offsets(partitions))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first offset at or after a timestamp in ms by partition; None where there is none."""
        return self._call(lambda consumer: consumer.offsets_for_times(timestamps))

    # --- commits

    def commit(self, offsets: Mapping[TopicPartition, Offset] | None = None) -> None:
        """Commit offsets for the group: after all delivered records, or those given."""
        self._call(lambda consumer: consumer.commit(offsets))

    def commit_nowait(self, offsets: Mapping[TopicPartition, Offset] | None = None) -> Call[None]:
        """Commit without waiting; `result()` of the returned call waits."""
        consumer = self._settled

        async def commit() -> None:
            await consumer.commit_nowait(offsets)

        return self._thread.submit(commit)

    def committed(self, partition: Partition) -> int | None:
        """Return the offset that the group committed for a partition; None if there is none."""
        return self._call(lambda consumer: consumer.committed(partition))

    def committed_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of the group with their metadata."""
        return self._call(lambda consumer: consumer.committed_offsets(partitions))

    def group_metadata(self) -> GroupMetadata:
        """Return the group metadata for a producer that commits offsets of the group in a transaction."""
        return self._do(lambda consumer: consumer.group_metadata())

    # --- the cluster

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partition numbers of a topic; None if it does not exist."""
        return self._call(lambda consumer: consumer.partitions_for_topic(topic))

    def topics(self) -> set[str]:
        """Return all topics of the cluster."""
        return self._call(lambda consumer: consumer.topics())

    @property
    def metrics(self) -> ConsumerMetrics:
        """The metrics of this consumer."""
        return self._opened.metrics

    # --- the thread

    def _make(self) -> Consumer[Any, Any]:
        return Consumer(*self._topics, config=self.config)

    @property
    def _opened(self) -> Consumer[Any, Any]:
        self._thread.check()
        assert self._consumer is not None
        return self._consumer

    @property
    def _settled(self) -> Consumer[Any, Any]:
        """The consumer, after records of an interrupted call were put back."""
        consumer = self._opened
        if self._interrupted is not None and not self._thread.is_here:
            self._rewind_interrupted(consumer)
        return consumer

    def _call(self, what: Callable[[Consumer[Any, Any]], Coroutine[Any, Any, T]]) -> T:
        consumer = self._settled
        return self._thread.call(lambda: what(consumer))

    def _do(self, what: Callable[[Consumer[Any, Any]], T]) -> T:
        """Call something that does not wait, but must run on the loop."""
        consumer = self._settled

        async def done() -> T:
            return what(consumer)

        return what(consumer) if self._thread.is_here else self._thread.call(done)

    def _ask(self, what: Callable[[Consumer[Any, Any]], Any]) -> Any:
        """Ask for records in lists or batches."""
        with self._asking:
            consumer = self._settled

            async def asked() -> Any:
                return await what(consumer)

            return self._wait_for(asked)

    def _await_record(self) -> ConsumerRecord[K_co, V_co] | None:
        """Wait for a record on the loop; None after `consumer_timeout_ms`."""
        consumer = self._settled

        async def following() -> ConsumerRecord[K_co, V_co] | None:
            try:
                return await anext(consumer)
            except StopAsyncIteration:
                return None

        return cast("ConsumerRecord[K_co, V_co] | None", self._wait_for(following))

    def _wait_for(self, asked: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Wait for records on the loop.

        Ctrl-C, or an exception of a signal handler, may end the wait after records were taken that were not
        returned: the next call puts them back.
        """
        if self._thread.is_here:
            return self._thread.call(asked)  # which raises: the loop cannot wait for itself
        call: Call[Any] | None = None
        try:
            call = self._thread.submit(asked)
            return call.result()
        except BaseException:
            self._interrupted = call
            raise

    def _rewind_interrupted(self, consumer: Consumer[Any, Any]) -> None:
        """Cancel an interrupted call, and rewind to the first record that was not returned."""
        with self._settling:
            call = self._interrupted
            if call is None:
                return
            call.cancel()
            try:
                call.result(SETTLE_S)
            except TimeoutError as error:
                if not call.done():
                    raise DeadlineExceeded("ending a call that was interrupted", SETTLE_S, error) from error
            except Exception:  # it took no records; its own error was raised
                log.debug("an interrupted call had taken no records")
            else:
                self._thread.submit(partial(_rewind, consumer)).result(SETTLE_S)
            self._interrupted = None


async def _rewind(consumer: Consumer[Any, Any]) -> None:
    consumer._position_operations.rewind_unfinished()


class OnThreads(RebalanceListener):
    """Runs the plain methods of a listener on threads, so that they may call a SyncConsumer."""

    def __init__(self, listener: Any) -> None:
        self._listener = listener

    async def on_partitions_revoked(self, revoked: Partitions) -> None:
        """Call the listener."""
        await self._call_listener("on_partitions_revoked", revoked)

    async def on_partitions_assigned(self, assigned: Partitions) -> None:
        """Call the listener."""
        await self._call_listener("on_partitions_assigned", assigned)

    async def on_partitions_lost(self, lost: Partitions) -> None:
        """Call the listener; `on_partitions_revoked` if it has no such method."""
        has_own = hasattr(self._listener, "on_partitions_lost")
        await self._call_listener("on_partitions_lost" if has_own else "on_partitions_revoked", lost)

    async def _call_listener(self, name: str, partitions: Partitions) -> None:
        method = getattr(self._listener, name, None)
        if method is None:
            return
        if inspect.iscoroutinefunction(method):
            await method(partitions)
        else:
            await asyncio.to_thread(method, partitions)
