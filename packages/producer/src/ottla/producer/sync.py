"""The producer for threads: the asynchronous one on an event loop of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from ottla.client.blocking import LoopThread
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.client.settings import chosen
from ottla.producer.config import ProducerConfig, ProducerSettings
from ottla.producer.handover import Handover, SyncAcknowledgement
from ottla.producer.metrics import ProducerMetrics
from ottla.producer.prepared import PreparedTransaction, end_prepared
from ottla.producer.producer import Producer
from ottla.producer.record import RecordMetadata
from ottla.producer.sending import Acknowledgements, BatchBuilder, Headers
from ottla.protocol.topics import TopicPartition

T = TypeVar("T")

MOST_BYTES = 4 * 1024 * 1024
"""What may wait to be handed over, beside `buffer_memory`."""
GRACE_S = 1.0


class SyncAcknowledgements:
    """What a thread holds of many records: `result()` waits for all of them."""

    def __init__(self, thread: LoopThread[Producer], inner: Acknowledgements) -> None:
        self._thread = thread
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def __repr__(self) -> str:
        return f"<Sync{repr(self._inner)[1:]}"

    def done(self) -> bool:
        """Whether all records are written, or given up."""
        return self._inner.done()

    def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """Wait until all records are written; return where. Raises the first error there is, TimeoutError."""

        async def settled() -> list[RecordMetadata]:
            await self._inner
            return [each.result() for each in self._inner]

        return self._thread.call(settled, timeout)


class SyncProducer:
    """Writes records to topics, for scripts and for web frameworks with threads.

        with SyncProducer(bootstrap_servers="127.0.0.1:9092") as producer:
            producer.send("orders", b"one coffee", key=b"josef")

    All threads of a process may share one. `send` only hands the record over; the acknowledgement that it
    returns can be waited for. Leaving the block sends what is still waiting. After a fork a producer is of no
    use any more, and says so: start it in each worker.
    """

    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        /,
        config: ProducerConfig | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        if servers is not None:
            settings["bootstrap_servers"] = servers
        self.config = chosen(ProducerConfig, config, settings)
        self._thread = LoopThread(lambda: Producer(config=self.config), name="the producer")
        self._producer: Producer | None = None
        self._handover = Handover(
            self._thread,
            most_bytes=min(MOST_BYTES, self.config.buffer_memory),
            max_block_ms=self.config.max_block_ms,
        )

    def __repr__(self) -> str:
        return f"<SyncProducer of {self.config.client.bootstrap_servers}>"

    def start(self) -> Self:
        """Connect. Raises DeadlineExceeded, and what else opening a producer raises."""
        self._producer = self._thread.start()
        self._handover.open(self._producer)
        return self

    def stop(self, timeout: float | None = None) -> None:
        """Send what is still waiting, and end; TimeoutError after `timeout` seconds."""
        try:
            if self._thread.is_running:
                self._thread.call(self._handover.emptied, timeout)
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
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> SyncAcknowledgement:
        """Hand a record over; return its acknowledgement. Waits up to `max_block_ms` while there is no room.

        What is wrong with the record is in the acknowledgement: SerializationFailed, RecordTooLarge, and all
        that can go wrong later. Raises BufferFull, NotRunning, Forked.
        """
        record = SyncAcknowledgement(self._thread, topic, value, key, partition, timestamp_ms, headers)
        self._handover.put(record)
        return record

    def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Send a record, wait until it is written, and return where."""
        return self.send(topic, value, key, partition, timestamp_ms, headers).result()

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Headers | None = None,
    ) -> SyncAcknowledgements:
        """Send many records of a topic at once; much quicker than one by one."""
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
        """Return an empty batch, to be filled by the caller and given to `send_batch`."""
        return self._opened.create_batch()

    def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> RecordMetadata:
        """Send a batch, wait until it is written, and return where its first record is."""

        async def send(producer: Producer) -> RecordMetadata:
            return await (await producer.send_batch(batch, topic, partition=partition))

        return self._ordered(send)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all records that were sent are written or given up; TimeoutError after `timeout` s."""
        bound = None if timeout is None else timeout + GRACE_S  # the producer's own error says what waits
        self._ordered(lambda producer: producer.flush(timeout), bound)

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic."""
        return self._thread.call(lambda: self._opened.partitions_for(topic))

    @property
    def metrics(self) -> ProducerMetrics:
        """What the producer counts."""
        return self._opened.metrics

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is sent in the block is written together, or, when it raises, not at all.

        A transaction is the producer's, not the thread's: all threads that send meanwhile take part in it.
        """
        self.begin_transaction()
        try:
            yield
            self.commit_transaction()
        except BaseException:
            self._ordered(lambda producer: producer._leave_transaction())
            raise

    def begin_transaction(self) -> None:
        """Begin a transaction; needs `transactional_id`."""
        self._ordered(lambda producer: producer.begin_transaction())

    def commit_transaction(self) -> None:
        """Write what was sent since the transaction began, all together."""
        self._ordered(lambda producer: producer.commit_transaction())

    def prepare_transaction(self) -> PreparedTransaction:
        """Write what was sent since the transaction began, and leave its end to `end_prepared`."""
        return self._ordered(lambda producer: producer.prepare_transaction())

    def end_prepared(self, prepared: PreparedTransaction, *, committed: bool) -> None:
        """Commit or abort a prepared transaction, of this producer or of any other; may be repeated.

        A producer without a `transactional_id` can do so, too; one with that of the transaction aborts it as
        it starts. Raises what the function `end_prepared` raises.
        """
        cluster = self._opened._cluster
        self._thread.call(lambda: end_prepared(cluster, prepared, committed=committed))

    def abort_transaction(self) -> None:
        """Give up what was sent since the transaction began."""
        self._ordered(lambda producer: producer.abort_transaction())

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Commit offsets of a group with the transaction."""
        self._ordered(lambda producer: producer.send_offsets(offsets, group))

    send_offsets_to_transaction = send_offsets

    @property
    def _opened(self) -> Producer:
        self._thread.check()
        assert self._producer is not None
        return self._producer

    def _ordered(self, what: Callable[[Producer], Coroutine[Any, Any, T]], timeout: float | None = None) -> T:
        """Do something after all records that were handed over before are with the producer."""
        producer = self._opened

        async def in_turn() -> T:
            await self._handover.emptied()
            return await what(producer)

        return self._thread.call(in_turn, timeout)
