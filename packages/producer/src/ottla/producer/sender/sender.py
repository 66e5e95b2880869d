"""The sender: sends due batches to the leaders of their partitions, and reads their responses.

Order within a partition. With idempotence several batches of a partition may be in flight at once, numbered
in the order they are sent. When one of them fails with a retriable error, those behind it fail too, for their
sequences leave a gap. All are retried one at a time, in order and with their sequences, until no retry is
left. Without idempotence only one batch of a partition is in flight, so that none can overtake another.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from ottla.client.cluster import Cluster, NoSuchTopic
from ottla.client.environment import chance
from ottla.client.errors import ClientError, DeadlineExceeded, Need, error_about
from ottla.client.retry import Backoff, is_retriable
from ottla.producer.accumulator import Accumulator, Batch
from ottla.producer.config import ProducerConfig
from ottla.producer.errors import DeliveryTimeout, ProducerClosed, TopicRecreated
from ottla.producer.metrics import ProducerMetrics
from ottla.producer.sender.batch_completion import BatchCompletion
from ottla.producer.sender.idempotence import Idempotence
from ottla.producer.sender.partition_order import PartitionOrder, RefusedLeaders
from ottla.producer.sender.produce_exchange import ProduceExchange
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.records import Codec
from ottla.protocol.topics import TopicPartition

# Batches also expire; a pass once a second is precise enough for that.
_LONGEST_SLEEP_MS: Final = 1_000.0

# From about these sizes on compression takes some milliseconds.
_SLOW_BYTES: Final = {Codec.GZIP: 128 * 1024}
_SLOW_BYTES_OTHERWISE: Final = 512 * 1024
# zstd takes a hundred times as long at level 19 as at level 3, and lz4 thirty times.
_QUICK_LEVEL: Final = 3
_SLOW_BYTES_ABOVE_QUICK_LEVEL: Final = 8 * 1024


class Sender:
    """Passes over the batches, each a callback of the event loop, that start requests for due batches.

    A pass awaits nothing. What has to be waited for (a producer id, registered partitions, slow compression,
    metadata) is a task, and a pass follows it. `run` keeps the sender open and raises what a pass raised.

    `on_metadata` is called with a topic whose metadata was refreshed, `on_batch` for a batch as it is sent.
    """

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        config: ProducerConfig,
        metrics: ProducerMetrics,
        *,
        idempotence: Idempotence,
        completion: BatchCompletion,
        order: PartitionOrder,
        refused_leaders: RefusedLeaders,
        now_ms: Callable[[], float],
        on_metadata: Callable[[str], None],
        on_batch: Callable[[Batch], None] | None,
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._config = config
        self._metrics = metrics
        self._idempotence = idempotence
        self._completion = completion
        self._is_transactional = config.transactional_id is not None
        self._now_ms = now_ms
        self._on_metadata, self._on_batch = on_metadata, on_batch
        self._compression = BatchCompression(config)
        self._order, self._refused_leaders = order, refused_leaders
        # The first answer may come from a broker that does not know the new leader yet, and will in a moment.
        client = config.client
        self._refreshing_backoff = Backoff(client.retry_backoff_ms / 4, client.retry_backoff_max_ms / 4)
        self._exchange = ProduceExchange(
            cluster,
            config,
            metrics,
            completion,
            now_ms=now_ms,
            required_version=lambda: idempotence.produce_version,
            on_end=self._request_ended,
            on_bug=self._failed,
        )
        self._refreshing: set[str] = set()
        self._is_preparing = False
        self._tasks: asyncio.TaskGroup | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # while `run` runs
        self._bug: asyncio.Future[None] | None = None
        self._next_pass: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0

    def wake(self) -> None:
        """Look for due batches again: something changed."""
        if self._next_pass is None and self._loop is not None:
            self._next_pass = self._loop.call_soon(self._pass)

    @property
    def requests_in_flight(self) -> int:
        """Requests without a response yet."""
        return self._exchange.all_in_flight

    def stop(self) -> None:
        """Fail every batch with ProducerClosed."""
        for batch in self._accumulator.incomplete_batches():
            self._completion.end(
                batch, ProducerClosed("the producer was closed before the record was acknowledged")
            )

    def drop_unsent(self, error: BaseException) -> None:
        """Fail every batch that is not in flight: its transaction is being aborted."""
        for batch in self._accumulator.incomplete_batches():
            if not batch.in_flight:
                self._completion.drop(batch, error)

    def topic_recreated(self, topic: str, displaced: Sequence[Batch], cause: TopicRecreated) -> None:
        """Note that a topic was deleted and created again; fail the batches that have no place in it.

        Batches in flight are not failed before their response: the old topic's leader may have written them.
        """
        self._idempotence.topic_recreated(topic)
        for batch in displaced:
            if batch.in_flight:
                batch.displaced_by = cause
            else:
                self._completion.fail(batch, cause)

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Send until cancelled. Raises what a pass raised."""
        self._tasks = tasks
        self._exchange.open(tasks)
        # A task that was cancelled before its first step, as the last run ended, did not undo its entry here.
        self._refreshing.clear()
        self._is_preparing = False
        self._loop = asyncio.get_running_loop()
        self._bug = self._loop.create_future()
        self.wake()
        try:
            await self._bug
        finally:
            self._loop = None
            for handle in (self._next_pass, self._timer):
                if handle is not None:
                    handle.cancel()
            self._next_pass = self._timer = None

    def _failed(self, bug: Exception) -> None:
        if self._bug is not None and not self._bug.done():
            self._bug.set_exception(bug)

    def _request_ended(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._order.ended(batch)
        if not self._accumulator.is_empty:
            self.wake()

    # --- due batches

    def _pass(self) -> None:
        self._next_pass = None
        try:
            now_ms = self._now_ms()
            self._expire(now_ms)
            self._order.forget_idle()
            for topic in self._refused_leaders.topics if self._refused_leaders else ():
                self.find_leaders(topic)
            self._pass_at(now_ms, None if self._is_preparing else self._send_due(now_ms))
        except Exception as bug:
            self._failed(bug)

    def _send_due(self, now_ms: float) -> float | None:
        """Start requests for due batches, or the task that prepares them; return when the next one is due."""
        due, next_ms = self._accumulator.ready(now_ms, self._idempotence.max_in_flight)
        if not due:
            return next_ms
        slow = [batch for batch in due if self._compression.is_slow(batch)]
        if slow or not self._idempotence.is_ready(due):
            assert self._tasks is not None
            self._is_preparing = True
            self._tasks.create_task(self._prepare_and_send(due, slow))
        else:
            self._start_requests(due)
        return next_ms

    def _start_requests(self, due: Sequence[Batch]) -> None:
        for leader, batches in self._by_leader(due).items():
            self._start_request(leader, batches)
            if any(len(batch.queue.batches) > batch.queue.in_flight for batch in batches):
                self.wake()  # the next batches of the same partitions may be due as well

    async def _prepare_and_send(self, due: Sequence[Batch], slow: Sequence[Batch]) -> None:
        """Number and compress batches without an await, and send them; no pass sends meanwhile."""
        try:
            await self._compress_slow(slow)
            if await self._prepare(due):
                # Meanwhile some batches may have failed, and others been put back that are to be sent first.
                prepared = set(due)
                still, _ = self._accumulator.ready(self._now_ms(), self._idempotence.max_in_flight)
                self._start_requests([batch for batch in still if batch in prepared])
            else:
                await asyncio.sleep(self._config.client.retry_backoff_ms / 1_000)
        finally:
            self._is_preparing = False
            self.wake()

    def _pass_at(self, now_ms: float, next_ms: float | None) -> None:
        """Set the timer of the next pass: when the next batch is due, or when one may have expired."""
        if self._loop is None or self._accumulator.is_empty:
            return
        latest_ms = now_ms + _LONGEST_SLEEP_MS
        at_s = (latest_ms if next_ms is None else min(next_ms, latest_ms)) / 1_000
        if self._timer is not None:
            if self._timer_at_s <= at_s:
                return  # a pass too many costs less than another timer for each request
            self._timer.cancel()
        self._timer = self._loop.call_at(at_s, self._timed_pass)
        self._timer_at_s = at_s  # uvloop's handle of a time that has passed has no `when`

    def _timed_pass(self) -> None:
        self._timer = None
        self._pass()

    def _expire(self, now_ms: float) -> None:
        timeout_ms = self._config.delivery_timeout_ms
        # A transaction must not end while a batch of it may still be appended: batches in flight are waited
        # for.
        for batch in self._accumulator.expired(now_ms, timeout_ms, not self._is_transactional):
            self._completion.fail(batch, DeliveryTimeout(batch.partition, timeout_ms, batch.last_error))

    async def _compress_slow(self, slow: Sequence[Batch]) -> None:
        for batch in slow:
            self._accumulator.close(batch)
            try:
                await self._compression.compress_on_thread(batch)
            except MemoryError as error:
                self._completion.fail(batch, error)

    async def _prepare(self, due: Sequence[Batch]) -> bool:
        """Obtain a producer id, or register partitions; return False to try again later."""
        try:
            await self._idempotence.prepare(due)
        except (ClientError, KafkaError) as error:
            # A transactional request has a timeout of its own; the limit of a record is
            # `delivery_timeout_ms`.
            if is_retriable(error) or isinstance(error, DeadlineExceeded):
                for batch in due:
                    batch.last_error = error
                return False
            for batch in due:
                self._completion.fail(batch, error)
            return False
        return True

    # --- leaders

    def _by_leader(self, due: Sequence[Batch]) -> dict[int, list[Batch]]:
        found: dict[int, list[Batch]] = defaultdict(list)
        sizes: dict[int, int] = defaultdict(int)
        for batch in due:
            if batch.done:
                continue
            leader = self._cluster.known_leader(batch.partition)
            if leader is None:
                self.find_leaders(batch.partition.topic)
            elif not self._may_send(leader, batch):
                continue  # a response must arrive first, and wakes the sender
            elif sizes[leader] and sizes[leader] + batch.size_in_bytes > self._config.max_request_size:
                self.wake()  # the rest is sent in the next pass
            else:
                sizes[leader] += batch.size_in_bytes
                found[leader].append(batch)
        return found

    def _may_send(self, leader: int, batch: Batch) -> bool:
        most = self._config.client.max_in_flight_requests_per_connection
        if self._exchange.in_flight(leader) >= most:
            return False
        return self._order.may_follow(batch, leader) and self._idempotence.may_follow(batch)

    def find_leaders(self, topic: str) -> None:
        """Refresh a topic's metadata, unless that is under way."""
        assert self._tasks is not None
        if topic not in self._refreshing:
            self._refreshing.add(topic)
            self._tasks.create_task(self._refresh(topic))

    async def _refresh(self, topic: str) -> None:
        """Refresh a topic's metadata, and again while they name a leader that refused a batch."""
        attempt = 0
        try:
            while True:
                pause_ms = await self._refresh_once(topic)
                if self._refused_leaders.awaits(topic):
                    pause_ms = self._refreshing_backoff.delay_ms(attempt, chance())
                await asyncio.sleep(pause_ms / 1_000)
                if not self._refused_leaders.awaits(topic):
                    return
                attempt += 1
        finally:
            self._refreshing.discard(topic)
            self.wake()

    async def _refresh_once(self, topic: str) -> float:
        """Refresh a topic's metadata; return the wait before the next time, if there is one."""
        try:
            response = await self._cluster.refresh([topic], may_create=True)
            self._on_metadata(topic)
            self._no_leader(topic, response)
            self._refused_leaders.refreshed(topic)
            self.wake()  # batches that have a leader do not wait for those that have none
            info = self._accumulator.topics.get(topic)  # None for a topic that was deleted
            indexes = info.partitions if info is not None else ()
            if info is None or any(
                self._cluster.known_leader(TopicPartition(topic, index)) is None for index in indexes
            ):
                return self._config.client.retry_backoff_ms
        except (ClientError, KafkaError) as error:
            # The batches stay due, and expire after `delivery_timeout_ms`.
            self._waits_for(topic, error)
            return self._config.client.retry_backoff_ms
        return 0.0

    def _no_leader(self, topic: str, response: MetadataResponse) -> None:
        """Note why batches of a topic have no leader, if metadata say so."""
        codes = {described.name: described.error_code for described in response.topics}
        code = codes.get(topic, ErrorCode.NONE)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._waits_for(topic, NoSuchTopic(topic))
        elif code != ErrorCode.NONE:
            need = Need(Operation.DESCRIBE, ResourceType.TOPIC, topic)
            self._waits_for(topic, error_about(code, f"topic {topic!r}: {ErrorCode(code).name}", need))

    def _waits_for(self, topic: str, error: BaseException) -> None:
        for batch in self._accumulator.incomplete_batches():
            if batch.partition.topic == topic and not batch.in_flight:
                batch.last_error = error

    # --- requests

    def _start_request(self, leader: int, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._accumulator.drain(batch)
            self._order.sent(batch, leader)
            if self._refused_leaders:
                self._refused_leaders.sent(batch)
            self._compression.compress(batch)
            self._idempotence.number(batch)
            if self._on_batch is not None:
                self._on_batch(batch)
        self._exchange.start(leader, batches)


class BatchCompression:
    """Compresses batches with the codec of their topic."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config

    def is_slow(self, batch: Batch) -> bool:
        """Whether a batch is to be compressed on a thread."""
        codec = self._config.codec_for(batch.partition.topic)
        return bool(codec) and batch.data is None and batch.size_in_bytes > self._slow_bytes(codec)

    def compress(self, batch: Batch) -> None:
        """Compress a batch, unless it is compressed."""
        batch.pack(self._config.codec_for(batch.partition.topic), self._config.compression_level)

    async def compress_on_thread(self, batch: Batch) -> None:
        """Compress a closed batch on a thread. Raises MemoryError."""
        codec = self._config.codec_for(batch.partition.topic)
        await asyncio.to_thread(batch.pack, codec, self._config.compression_level)

    def _slow_bytes(self, codec: Codec) -> int:
        if codec not in _SLOW_BYTES and (self._config.compression_level or 0) > _QUICK_LEVEL:
            return _SLOW_BYTES_ABOVE_QUICK_LEVEL
        return _SLOW_BYTES.get(codec, _SLOW_BYTES_OTHERWISE)
