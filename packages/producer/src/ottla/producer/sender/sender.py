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
from ottla.client.connection import Connection
from ottla.client.errors import ClientError, DeadlineExceeded
from ottla.client.retry import is_retriable
from ottla.producer.accumulator import Accumulator, Batch
from ottla.producer.config import ProducerConfig
from ottla.producer.errors import DeliveryTimeout, ProducerClosed
from ottla.producer.metrics import ProducerMetrics
from ottla.producer.sender.batch_completion import BatchCompletion, Responses
from ottla.producer.sender.batch_compression import BatchCompression
from ottla.producer.sender.idempotence import Idempotence
from ottla.producer.sender.partition_order import PartitionOrder
from ottla.producer.sender.produce_requests import produce_request, responses_by_partition, unanswered
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError, error_for
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.topics import TopicPartition

# Batches also expire; a pass once a second is precise enough for that.
_LONGEST_SLEEP_MS: Final = 1_000.0


class Sender:
    """One task that looks for due batches, and one task per request in flight.

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
        self._order = PartitionOrder(now_ms)
        self._awake = asyncio.Event()
        self._refreshing: set[str] = set()
        self._requests_in_flight: dict[int, int] = defaultdict(int)
        self._tasks: asyncio.TaskGroup | None = None

    def wake(self) -> None:
        """Look for due batches again: something changed."""
        self._awake.set()

    @property
    def requests_in_flight(self) -> int:
        """Requests without a response yet."""
        return sum(self._requests_in_flight.values())

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

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Send until cancelled."""
        self._tasks = tasks
        self._awake = asyncio.Event()  # the last one may belong to another event loop
        # A task that was cancelled before its first step, as the last run ended, did not undo its entry here.
        self._refreshing.clear()
        self._requests_in_flight.clear()
        while True:
            self._awake.clear()
            self._expire()
            self._order.forget_idle()
            await self._sleep_until(await self._send_due())

    # --- due batches

    async def _send_due(self) -> float | None:
        """Start requests for due batches; return when the next batch is due."""
        due, next_ms = await self._next_due()
        for leader, batches in self._by_leader(due).items():
            self._start_request(leader, batches)
            self.wake()  # the next batches of the same partitions may be due as well
        return next_ms

    async def _next_due(self) -> tuple[list[Batch], float | None]:
        """Return batches that can be numbered and sent without an await, and when the next one is due."""
        due, next_ms = self._accumulator.ready(self._now_ms(), self._idempotence.max_in_flight)
        slow = [batch for batch in due if self._compression.is_slow(batch)]
        if not slow and self._idempotence.is_ready(due):
            return due, next_ms
        await self._compress_slow(slow)
        if not await self._prepare(due):
            return [], self._now_ms() + self._config.client.retry_backoff_ms
        # Meanwhile some batches may have failed, and others been put back that must be sent before them.
        prepared = set(due)
        still, next_ms = self._accumulator.ready(self._now_ms(), self._idempotence.max_in_flight)
        return [batch for batch in still if batch in prepared], next_ms

    async def _sleep_until(self, next_ms: float | None) -> None:
        if self._awake.is_set():
            await asyncio.sleep(0)
            return
        wait_ms = _LONGEST_SLEEP_MS if next_ms is None else min(next_ms - self._now_ms(), _LONGEST_SLEEP_MS)
        try:
            async with asyncio.timeout(max(0.0, wait_ms) / 1_000):
                await self._awake.wait()
        except TimeoutError:
            return

    def _expire(self) -> None:
        timeout_ms = self._config.delivery_timeout_ms
        # A transaction must not end while a batch of it may still be appended: batches in flight are waited
        # for.
        for batch in self._accumulator.expired(self._now_ms(), timeout_ms, not self._is_transactional):
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
                self._find_leader(batch.partition.topic)
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
        if self._requests_in_flight[leader] >= most:
            return False
        return self._order.may_follow(batch, leader) and self._idempotence.may_follow(batch)

    def _find_leader(self, topic: str) -> None:
        assert self._tasks is not None
        if topic not in self._refreshing:
            self._refreshing.add(topic)
            self._tasks.create_task(self._refresh(topic))

    async def _refresh(self, topic: str) -> None:
        try:
            response = await self._cluster.refresh([topic], may_create=True)
            self._on_metadata(topic)
            self._no_leader(topic, response)
            self.wake()  # batches that have a leader do not wait for those that have none
            info = self._accumulator.topics.get(topic)  # None for a topic that was deleted
            indexes = info.partitions if info is not None else ()
            if info is None or any(
                self._cluster.known_leader(TopicPartition(topic, index)) is None for index in indexes
            ):
                await asyncio.sleep(self._config.client.retry_backoff_ms / 1_000)
        except (ClientError, KafkaError) as error:
            # The batches stay due, and expire after `delivery_timeout_ms`.
            self._waits_for(topic, error)
            await asyncio.sleep(self._config.client.retry_backoff_ms / 1_000)
        finally:
            self._refreshing.discard(topic)
            self.wake()

    def _no_leader(self, topic: str, response: MetadataResponse) -> None:
        """Note why batches of a topic have no leader, if metadata say so."""
        code = next((each.error_code for each in response.topics if each.name == topic), ErrorCode.NONE)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._waits_for(topic, NoSuchTopic(topic))
        elif code != ErrorCode.NONE:
            self._waits_for(topic, error_for(code, f"topic {topic!r}: {ErrorCode(code).name}"))

    def _waits_for(self, topic: str, error: BaseException) -> None:
        for batch in self._accumulator.incomplete_batches():
            if batch.partition.topic == topic and not batch.in_flight:
                batch.last_error = error

    # --- requests

    def _start_request(self, leader: int, batches: Sequence[Batch]) -> None:
        assert self._tasks is not None
        for batch in batches:
            self._accumulator.drain(batch)
            self._order.sent(batch, leader)
            self._compression.compress(batch)
            self._idempotence.number(batch)
            if self._on_batch is not None:
                self._on_batch(batch)
        self._requests_in_flight[leader] += 1
        self._tasks.create_task(self._deliver(leader, batches))

    async def _deliver(self, leader: int, batches: Sequence[Batch]) -> None:
        try:
            connection = await self._cluster.connection_to_leader(leader)
        except (ClientError, KafkaError) as error:
            self._completion.all_failed(batches, error)
        else:
            await self._exchange(connection, [batch for batch in batches if not batch.done])
        finally:
            self._requests_in_flight[leader] -= 1
            for batch in batches:
                self._order.ended(batch)
            self.wake()

    async def _exchange(self, connection: Connection, batches: Sequence[Batch]) -> None:
        if not batches:
            return  # they expired before there was a connection
        try:
            responses = await self._send(connection, batches)
        except (ClientError, KafkaError) as error:
            # With acks=0 no broker recognizes repetitions: a batch that may be written is not sent again.
            self._completion.all_failed(batches, error, may_repeat=self._config.required_acks != 0)
        else:
            await self._completion.answered(batches, responses)

    async def _send(self, connection: Connection, batches: Sequence[Batch]) -> Responses:
        began_ms = self._now_ms()
        version = connection.versions.get(ApiKey.PRODUCE, (0, 0))[1]
        request = produce_request(batches, self._config, version)
        self._count(batches)
        if self._config.required_acks == 0:
            await connection.send_unanswered(request)
            return unanswered(batches)
        response = await connection.send(request, ProduceResponse)
        self._metrics.answered(self._now_ms() - began_ms, response.throttle_time_ms)
        return responses_by_partition(response)

    def _count(self, batches: Sequence[Batch]) -> None:
        now_ms = self._now_ms()
        self._metrics.request_total += 1
        for batch in batches:
            self._metrics.batch_sent(
                batch.partition.topic,
                batch.record_count,
                len(batch.data or b""),
                now_ms - batch.created_ms,
                batch.attempts,
            )
