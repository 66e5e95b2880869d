"""The share consumer for threads: an asynchronous one on an event loop thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from ottla.client.blocking import Call, LoopThread
from ottla.client.field_types import FieldType, K_co, V_co
from ottla.client.serialization import Deserializer, DeserializerSpec
from ottla.client.settings import config_from
from ottla.consumer.argument_validation import to_topics
from ottla.consumer.metrics import ShareConsumerMetrics
from ottla.consumer.record import ConsumerRecord
from ottla.consumer.share.config import ShareConsumerConfig, UntypedShareConsumerSettings
from ottla.consumer.share.consumer import ShareConsumer
from ottla.consumer.share.record import ShareRecord
from ottla.consumer.subscription import TopicFilter
from ottla.protocol.topics import TopicPartition

T = TypeVar("T")


class SyncShareRecord(Generic[K_co, V_co]):
    """A record that this member acquired, for threads.

        with record:
            handle(record.value)

    accepts the record at the end of the block, and releases it on an exception. The methods that acknowledge
    it return at once; `result()` of what they return waits for the broker's answer.
    """

    __slots__ = ("_thread", "shared")

    def __init__(self, shared: ShareRecord[K_co, V_co], thread: LoopThread[Any]) -> None:
        self.shared = shared
        """The record of the asynchronous consumer."""
        self._thread = thread

    def accept(self) -> Call[None]:
        """Acknowledge that it was handled: it is not delivered again."""
        return self._acknowledge(ShareRecord.accept)

    def release(self) -> Call[None]:
        """Give it back: a member gets it again, unless it was delivered as often as the group permits."""
        return self._acknowledge(ShareRecord.release)

    def reject(self) -> Call[None]:
        """Acknowledge that it can never be handled: it is not delivered again."""
        return self._acknowledge(ShareRecord.reject)

    def renew(self) -> Call[None]:
        """Keep it for the time of a lock from now on."""
        return self._acknowledge(ShareRecord.renew)

    def _acknowledge(self, how: Callable[[ShareRecord[Any, Any]], Any]) -> Call[None]:
        async def acknowledge() -> None:
            await how(self.shared)

        return self._thread.submit(acknowledge)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shared = self.shared
        self._thread.post(
            _unless_chosen, shared, ShareRecord.accept if error is None else ShareRecord.release
        )

    # --- the record

    @property
    def record(self) -> ConsumerRecord[K_co, V_co]:
        """The record as consumers have it."""
        return self.shared.record

    @property
    def delivery_count(self) -> int:
        """How often it was given to a member, this time included."""
        return self.shared.delivery_count

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return self.shared.topic_partition

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.shared.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.shared.partition

    @property
    def offset(self) -> int:
        """The offset in the partition."""
        return self.shared.offset

    @property
    def key(self) -> K_co:
        """The key."""
        return self.shared.key

    @property
    def value(self) -> V_co:
        """The value."""
        return self.shared.value

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers in order; keys may repeat."""
        return self.shared.headers

    @property
    def timestamp_ms(self) -> int:
        """The time of creation or of append."""
        return self.shared.timestamp_ms

    def __repr__(self) -> str:
        return f"Sync{self.shared!r}"


def _unless_chosen(record: ShareRecord[Any, Any], how: Callable[[ShareRecord[Any, Any]], object]) -> None:
    if record.choice is None:
        how(record)


class SyncShareConsumer(Generic[K_co, V_co]):
    """Reads topics as queues, for scripts and for threads.

        with SyncShareConsumer("jobs", group_id="workers") as consumer:
            for record in consumer:
                with record:
                    handle(record.value)

    All threads of a process may share one with `acknowledgement_mode="explicit"`; each record is delivered to
    one of them. Start it after a fork, in each worker.
    """

    @overload
    def __init__(
        self,
        *topics: str,
        key_type: type[K_co] | FieldType[K_co] | None = None,
        value_type: type[V_co] | FieldType[V_co] | None = None,
        key_deserializer: Callable[[bytes], K_co] | Deserializer[K_co] | None = None,
        value_deserializer: Callable[[bytes], V_co] | Deserializer[V_co] | None = None,
        **settings: Unpack[UntypedShareConsumerSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: SyncShareConsumer[Any, Any],
        *topics: str,
        config: ShareConsumerConfig | None = None,
        key_type: type[Any] | FieldType[Any] | None = None,
        value_type: type[Any] | FieldType[Any] | None = None,
        key_deserializer: DeserializerSpec = None,
        value_deserializer: DeserializerSpec = None,
        **settings: Unpack[UntypedShareConsumerSettings],
    ) -> None: ...
    def __init__(self, *topics: str, config: ShareConsumerConfig | None = None, **settings: Any) -> None:
        self.config = config_from(ShareConsumerConfig, config, settings)
        self._topics = to_topics(topics)
        self._thread: LoopThread[ShareConsumer[Any, Any]] = LoopThread(self._make, name="the share consumer")
        self._consumer: ShareConsumer[Any, Any] | None = None
        self._asking = threading.Lock()

    def start(self) -> Self:
        """Connect. Raises DeadlineExceeded, and what starting a consumer raises."""
        self._consumer = self._thread.start()
        return self

    def stop(self, timeout: float | None = None) -> None:
        """Send acknowledgements, release all other records, leave the group, and close."""
        self._thread.close(timeout)

    close = stop

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- records

    def __iter__(self) -> Iterator[SyncShareRecord[K_co, V_co]]:
        return self

    def __next__(self) -> SyncShareRecord[K_co, V_co]:
        """Return the next record; StopIteration after `consumer_timeout_ms` without one."""

        async def following(consumer: ShareConsumer[Any, Any]) -> ShareRecord[Any, Any] | None:
            try:
                return await anext(consumer)
            except StopAsyncIteration:
                return None

        with self._asking:
            record = self._call(following)
        if record is None:
            raise StopIteration
        return SyncShareRecord(record, self._thread)

    def getmany(
        self, *, timeout_ms: float | None = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[SyncShareRecord[K_co, V_co]]]:
        """Return acquired records by partition, waiting up to `timeout_ms` for the first."""
        with self._asking:
            found = self._call(
                lambda consumer: consumer.getmany(timeout_ms=timeout_ms, max_records=max_records)
            )
        return {
            partition: [SyncShareRecord(record, self._thread) for record in records]
            for partition, records in found.items()
        }

    # --- what to read

    def subscribe(
        self, topics: str | Iterable[str] = (), *, pattern: str | TopicFilter | None = None
    ) -> None:
        """Read topics by name, or all that match a pattern, instead of the previous subscription."""
        self._do(lambda consumer: consumer.subscribe(topics, pattern=pattern))

    def unsubscribe(self) -> None:
        """Leave the group. Records that were delivered may still be acknowledged."""
        self._do(lambda consumer: consumer.unsubscribe())

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics that were named."""
        return self._do(lambda consumer: consumer.subscription())

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this member reads, with others or alone."""
        return self._do(lambda consumer: consumer.assignment())

    def commit(self) -> None:
        """Acknowledge what was delivered, as the mode says, and wait for the brokers' answers."""
        self._call(lambda consumer: consumer.commit())

    @property
    def metrics(self) -> ShareConsumerMetrics:
        """The metrics of this consumer."""
        return self._opened.metrics

    # --- the thread

    def _make(self) -> ShareConsumer[Any, Any]:
        return ShareConsumer(*self._topics, config=self.config)

    @property
    def _opened(self) -> ShareConsumer[Any, Any]:
        self._thread.check()
        assert self._consumer is not None
        return self._consumer

    def _call(self, what: Callable[[ShareConsumer[Any, Any]], Coroutine[Any, Any, T]]) -> T:
        consumer = self._opened
        return self._thread.call(lambda: what(consumer))

    def _do(self, what: Callable[[ShareConsumer[Any, Any]], T]) -> T:
        async def done(consumer: ShareConsumer[Any, Any]) -> T:
            return what(consumer)

        return self._call(done)
