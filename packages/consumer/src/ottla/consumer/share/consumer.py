"""The share consumer: topics as queues, whose records are acknowledged one by one (KIP-932)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, Unpack, overload

from ottla.client.cluster import Cluster
from ottla.client.field_types import FieldType, K_co, V_co
from ottla.client.interceptors import Interceptors
from ottla.client.serialization import MOST_PREPARATIONS, Deserializer, DeserializerSpec
from ottla.client.settings import config_from
from ottla.consumer.argument_validation import to_record_limit
from ottla.consumer.errors import (
    ConsumerStopped,
    RecordDeserializationFailed,
    RecordUnprepared,
    WrongMode,
)
from ottla.consumer.fetch.state_change_notifier import StateChangeNotifier
from ottla.consumer.group.assigned_membership import AssignedMembership
from ottla.consumer.main_task import MainTask
from ottla.consumer.metrics import ShareConsumerMetrics
from ottla.consumer.share.config import ShareConsumerConfig, UntypedShareConsumerSettings
from ottla.consumer.share.errors import NotAcknowledged
from ottla.consumer.share.fetched import FetchedRecords
from ottla.consumer.share.fetcher import Callback, ShareFetcher
from ottla.consumer.share.membership import ShareAssignment, ShareHeartbeats
from ottla.consumer.share.record import ShareBatch, ShareRecord
from ottla.consumer.subscription import TopicFilter, subscription
from ottla.protocol.topics import TopicPartition

_POLL_EVERY_S = 0.05


class ShareConsumer(Generic[K_co, V_co]):
    """Reads topics as queues: any number of members share the records of each partition.

        async with ShareConsumer("jobs", group_id="workers") as consumer:
            async for record in consumer:
                async with record:
                    await handle(record.value)

    A record that a member has is locked: no other gets it until it is released or its lock ends. Without an
    acknowledgement of its own, a record is accepted when the next one is asked for
    (`acknowledgement_mode="implicit"`), and released when the consumer is closed before that. With "explicit"
    only the application acknowledges: tasks of its own may have many records in work at once. One task at a
    time may ask for records. Order is kept neither between members nor after a release.
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
        self: ShareConsumer[Any, Any],
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
        self.metrics = ShareConsumerMetrics()
        self._lifecycle = _Lifecycle(self.config, self.metrics)
        self._interceptors = Interceptors(self.config.interceptors)
        self._on_consume = self._interceptors.methods("on_consume")
        self._delivered: list[ShareRecord[K_co, V_co]] = []
        self._preparations = 0
        if topics:
            self.subscribe(topics)

    # --- starting and stopping

    async def start(self) -> None:
        """Connect, and join the group. Raises NoBrokerAvailable, and errors of authorization."""
        await self._lifecycle.start()

    async def stop(self) -> None:
        """Send acknowledgements, release all other records, leave the group, and close all connections."""
        await self._lifecycle.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --- what to read

    def subscribe(
        self, topics: str | Iterable[str] = (), *, pattern: str | TopicFilter | None = None
    ) -> None:
        """Read topics by name, or all that match a pattern, instead of the previous subscription."""
        self._lifecycle.subscribe(topics, pattern)

    def unsubscribe(self) -> None:
        """Leave the group. Records that were delivered may still be acknowledged."""
        self._lifecycle.unsubscribe()

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics that were named."""
        return self._lifecycle.topics

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this member reads, with others or alone."""
        return self._lifecycle.assignment.partitions

    # --- records

    def __aiter__(self) -> AsyncIterator[ShareRecord[K_co, V_co]]:
        return self

    async def __anext__(self) -> ShareRecord[K_co, V_co]:
        """Return the next record; the end after `consumer_timeout_ms`, and when the consumer is stopped."""
        timeout_ms = self.config.consumer_timeout_ms
        try:
            records = await self._collect(1, None if timeout_ms < 0 else timeout_ms)
        except ConsumerStopped:
            raise StopAsyncIteration from None
        if not records:
            raise StopAsyncIteration
        return records[0]

    async def getone(self) -> ShareRecord[K_co, V_co]:
        """Return the next record."""
        return (await self._collect(1, None))[0]

    async def getmany(
        self, *, timeout_ms: float | None = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ShareRecord[K_co, V_co]]]:
        """Return acquired records by partition, waiting up to `timeout_ms` for the first; None: without end.

        Raises what prevents reading: RecordDeserializationFailed for a record that was released,
        UnreadableBatch for a batch that was rejected, errors of authorization.
        """
        limit = to_record_limit(max_records) or self.config.max_poll_records
        found: dict[TopicPartition, list[ShareRecord[K_co, V_co]]] = {}
        for record in await self._collect(limit, timeout_ms):
            found.setdefault(record.topic_partition, []).append(record)
        return found

    async def batches(self, *, max_records: int | None = None) -> AsyncIterator[ShareBatch[K_co, V_co]]:
        """Iterate over batches of one partition each.

        Ends when the consumer is stopped, and after `consumer_timeout_ms` without records if that is set.
        """
        limit = to_record_limit(max_records) or self.config.max_poll_records
        timeout_ms = self.config.consumer_timeout_ms
        while True:
            try:
                records = await self._collect(limit, None if timeout_ms < 0 else timeout_ms, of_one=True)
            except ConsumerStopped:
                return
            if not records:
                return
            yield ShareBatch(records[0].topic_partition, records)

    # --- acknowledgements

    async def commit(self) -> None:
        """Acknowledge what was delivered, as the mode says, and wait for the answers of all acknowledgements.

        Raises AcknowledgementFailed for the first one that was refused; DeadlineExceeded after
        `default_api_timeout_ms`.
        """
        self._lifecycle.check_open()
        self._finish_delivered()
        answers = self._lifecycle.fetcher.hurry()
        async with asyncio.timeout(self.config.client.default_api_timeout_ms / 1_000):
            results = await asyncio.gather(*answers, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def set_acknowledgement_callback(self, callback: Callback | None) -> None:
        """Call a function with partition, offsets and error, None without one, of each answer of a broker.

        It runs on the event loop and must be quick. Its exceptions are logged.
        """
        self._lifecycle.fetcher.callback = callback

    @property
    def lock_timeout_ms(self) -> int | None:
        """How long a record is locked, as the brokers said last; None before the first records."""
        return self._lifecycle.fetcher.lock_timeout_ms

    @property
    def in_flight(self) -> int:
        """Acquired records without an acknowledgement, those that are buffered included."""
        return self._lifecycle.fetcher.in_flight

    # --- inside

    async def _collect(
        self, limit: int, timeout_ms: float | None, *, of_one: bool = False
    ) -> list[ShareRecord[K_co, V_co]]:
        """Return up to `limit` acquired records, waiting for the first; `of_one`: of one partition."""
        self._finish_delivered()
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_ms is None else loop.time() + timeout_ms / 1_000
        await asyncio.sleep(0)  # a buffer that never empties must not starve other tasks
        records: list[ShareRecord[K_co, V_co]] = []
        while not records:
            fetched = await self._lifecycle.next_fetched(deadline_s)
            if fetched is None:
                break
            records = await self._take(fetched, limit)
            while not of_one and len(records) < limit and (more := self._lifecycle.buffered()) is not None:
                try:
                    records += more.take(limit - len(records))
                except Exception:  # it is raised by the next call
                    break
                if not more.at_end:
                    break
            records = self._intercepted(records) if self._on_consume else records
        self._delivered = list(records)
        return records

    async def _take(self, fetched: FetchedRecords, limit: int) -> list[ShareRecord[K_co, V_co]]:
        """Take records, after waiting for what their deserializers need."""
        for _ in range(MOST_PREPARATIONS):
            try:
                return fetched.take(limit)
            except RecordUnprepared as unprepared:
                where = (unprepared.what, unprepared.partition, unprepared.offset)
                try:
                    async with asyncio.timeout(self.config.client.default_api_timeout_ms / 1_000):
                        await unprepared.prepare()
                except Exception as error:
                    raise RecordDeserializationFailed(*where, error) from error
        return []

    def _finish_delivered(self) -> None:
        """Accept what was delivered, in the implicit mode; the application asks for more."""
        delivered, self._delivered = self._delivered, []
        if self.config.acknowledgement_mode == "implicit":
            for record in delivered:
                if record.choice is None:
                    record.accept()
        elif (count := self._lifecycle.fetcher.in_flight) >= self.config.max_in_flight_records:
            buffered = any(not fetched.at_end for fetched in self._lifecycle.fetcher.buffered)
            if not buffered:
                raise NotAcknowledged(count)

    def _intercepted(self, records: list[ShareRecord[K_co, V_co]]) -> list[ShareRecord[K_co, V_co]]:
        """Return the records that interceptors show; accept the others."""
        shown = self._interceptors.transform(self._on_consume, records)
        kept = {id(record) for record in shown}
        for record in records:
            if id(record) not in kept and record.choice is None:
                record.accept()
        return list(shown)


class _Lifecycle:
    """Owns the parts of a share consumer, and runs their tasks inside the one task that `start` creates."""

    def __init__(self, config: ShareConsumerConfig, metrics: ShareConsumerMetrics) -> None:
        self.config = config
        self.cluster = Cluster(config.client.bootstrap_servers, config.client)
        self.topics: frozenset[str] = frozenset()
        self._notifier = StateChangeNotifier()
        self._polled = False
        self._is_subscribed = False
        self.assignment = ShareAssignment(self._assigned, self._was_polled)
        self._membership = AssignedMembership(
            self.cluster, config.membership(), self.assignment,
            wake=self._notifier.notify, metrics=metrics, heartbeats=ShareHeartbeats,
        )  # fmt: skip
        self.fetcher = ShareFetcher(
            self.cluster, config, lambda: self._membership.member_id, self.assignment.owned,
            self._notifier, metrics,
        )  # fmt: skip
        self._joined: asyncio.Task[None] | None = None
        self._main = MainTask("ottla-share-consumer", self.cluster, self._run, self._notifier.notify)

    # --- lifetime

    async def start(self) -> None:
        """Connect, and join the group."""
        await self._main.start()

    async def stop(self) -> None:
        """Send acknowledgements, release all other records, leave the group, and close all connections."""
        await self._main.stop()

    async def _run(self, tasks: asyncio.TaskGroup, ready: Callable[[], None]) -> None:
        fetching = tasks.create_task(self.fetcher.run())
        try:
            if self._is_subscribed:
                self._join()
                await self._first_assignment()
            ready()
            await self._main.stopping.wait()
            await self._settle()
        finally:
            fetching.cancel()
            with suppress(asyncio.CancelledError):
                await fetching
            await self._close()

    async def _first_assignment(self) -> None:
        """Wait for the first assignment, within a timeout: the coordinator may be loading."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.client.default_api_timeout_ms / 1_000):
                while not self._membership.is_stable and not self._main.stopping.is_set():
                    self._membership.polled()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._membership.stable(), _POLL_EVERY_S)

    async def _settle(self) -> None:
        """Send the acknowledgements of the application, and await answers, within a third of the bound."""
        self.fetcher.is_wanted = False
        self.fetcher.release_buffered()
        self.fetcher.hurry()
        until_s = asyncio.get_running_loop().time() + self.config.close_timeout_ms / 3_000
        while not self.fetcher.is_settled:
            if not await self._notifier.wait(until_s):
                return

    async def _close(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.close_timeout_ms / 3_000):
                await self.fetcher.close()
        if self._joined is not None:
            await self._membership.close()
            self._joined.cancel()

    # --- what the consumer asks for

    def subscribe(self, topics: str | Iterable[str], pattern: str | TopicFilter | None) -> None:
        """Read topics instead of what was subscribed to before."""
        self._main.check_usable()
        wanted = subscription(topics, pattern)
        self.topics = wanted.names
        self._is_subscribed = True
        self._membership.subscribe(wanted)
        self._join()

    def unsubscribe(self) -> None:
        """Leave the group."""
        self._main.check_usable()
        self.topics = frozenset()
        self._is_subscribed = False
        self._membership.unsubscribe()
        self._notifier.notify()

    def _join(self) -> None:
        if self._main.tasks is not None and self._joined is None:
            self._joined = self._main.tasks.create_task(self._membership.run())

    def check_open(self) -> None:
        """Raise what ended the consumer; ConsumerClosed before it starts."""
        self._main.check_open()

    async def next_fetched(self, deadline_s: float | None) -> FetchedRecords | None:
        """Wait for acquired records; None after the deadline. Raises what prevents reading."""
        self._polled = True
        try:
            while True:
                self.check_open()
                if (found := self.buffered()) is not None:
                    return found
                self._raise_failures()
                self.fetcher.is_wanted = True
                self.fetcher.wake()
                if not await self._notifier.wait(deadline_s):
                    return None
        finally:
            self.fetcher.is_wanted = False

    def buffered(self) -> FetchedRecords | None:
        """Return the first buffered records."""
        buffered = self.fetcher.buffered
        while buffered and buffered[0].at_end:
            buffered.popleft()
        return buffered[0] if buffered else None

    def _raise_failures(self) -> None:
        if not self._is_subscribed:
            raise WrongMode("there is nothing to read: subscribe to topics")
        self._membership.polled()
        failure, self.fetcher.failure = self.fetcher.failure, None
        if failure is not None:
            raise failure

    def _assigned(self) -> None:
        self.fetcher.wake()

    def _was_polled(self) -> bool:
        was_polled, self._polled = self._polled or self._notifier.has_waiters, False
        return was_polled
