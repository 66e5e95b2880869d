"""The sender: takes due batches to the leaders of their partitions, and hands acknowledgements out."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, cast

from ottla.client.cluster import Cluster, is_stale
from ottla.client.errors import ClientError, UnsupportedByBroker
from ottla.client.retry import is_retriable
from ottla.producer.accumulator import Accumulator, Batch
from ottla.producer.config import ProducerConfig
from ottla.producer.errors import DeliveryTimeout, ProducerClosed
from ottla.producer.record import RecordMetadata
from ottla.producer.sequences import Sequences
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError, error_for
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records import convert_down
from ottla.protocol.topics import TopicPartition

# Produce carries v2 batches from version 3 on; version 2 has magic 1, before that it is 0.
_MAGIC_BY_VERSION: Final = {0: 0, 1: 0, 2: 1}


class Sender:
    """One task that looks for due batches, and one per request while it is out."""

    def __init__(self, cluster: Cluster, accumulator: Accumulator, config: ProducerConfig) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._config = config
        self._sequences = Sequences()
        self._idempotent = config.acks == -1 and config.enable_idempotence is not False
        self._awake = asyncio.Event()
        self._progress = asyncio.Event()
        self._refreshing: set[str] = set()

    def now_ms(self) -> float:
        """The loop's time; what batches are dated with."""
        return asyncio.get_running_loop().time() * 1_000

    def wake(self) -> None:
        """Look again: something changed."""
        self._awake.set()

    async def progress(self) -> None:
        """Wait until a batch is finished."""
        self._progress.clear()
        await self._progress.wait()

    def waiting(self) -> list[object]:
        """Return the futures of all records that are not acknowledged."""
        return [waiter for batch in self._accumulator.everything() for waiter in batch.waiters]

    def stop(self) -> None:
        """Give up what was not sent."""
        for batch in self._accumulator.everything():
            _fail(batch, ProducerClosed("the producer was closed before the record was acknowledged"))
        self._progress.set()

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Send until cancelled."""
        while True:
            self._awake.clear()
            self._expire()
            due, next_ms = self._accumulator.ready(self.now_ms())
            if due and self._idempotent and not self._sequences.has_id and not await self._obtain_id():
                next_ms = self.now_ms() + self._config.client.retry_backoff_ms
                due = []
            for leader, batches in self._by_leader(due, tasks).items():
                for batch in batches:
                    self._accumulator.take(batch)
                    self._build(batch)
                tasks.create_task(self._deliver(leader, batches))
            await self._sleep_until(next_ms)

    async def _sleep_until(self, next_ms: float | None) -> None:
        # Batches also grow too old; a look once a second is precise enough for that.
        wait_ms = 1_000.0 if next_ms is None else min(max(0.0, next_ms - self.now_ms()), 1_000.0)
        try:
            async with asyncio.timeout(wait_ms / 1_000):
                await self._awake.wait()
        except TimeoutError:
            return

    def _expire(self) -> None:
        timeout_ms = self._config.delivery_timeout_ms
        for batch in self._accumulator.expired(self.now_ms(), timeout_ms):
            self._give_up(batch, DeliveryTimeout(batch.partition, timeout_ms, batch.last_error))

    async def _obtain_id(self) -> bool:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        try:
            answer = await self._cluster.send_to_any(request, InitProducerIdResponse)
            if answer.error_code != ErrorCode.NONE:
                raise error_for(answer.error_code)
        except UnsupportedByBroker:
            if self._config.enable_idempotence:
                raise
            self._idempotent = False  # a broker before 0.11
            return True
        except (ClientError, KafkaError) as error:
            if not is_retriable(error):
                raise
            return False
        self._sequences.start(answer.producer_id, answer.producer_epoch)
        return True

    def _by_leader(self, due: Sequence[Batch], tasks: asyncio.TaskGroup) -> dict[int, list[Batch]]:
        found: dict[int, list[Batch]] = defaultdict(list)
        sizes: dict[int, int] = defaultdict(int)
        for batch in due:
            leader = self._cluster.known_leader(batch.partition)
            if leader is None:
                batch.not_before_ms = self.now_ms() + self._config.client.retry_backoff_ms
                if batch.partition.topic not in self._refreshing:
                    tasks.create_task(self._refresh(batch.partition.topic))
                continue
            if sizes[leader] and sizes[leader] + batch.size_bytes > self._config.max_request_size:
                self.wake()  # the rest goes out with the next look
                continue
            sizes[leader] += batch.size_bytes
            found[leader].append(batch)
        return found

    async def _refresh(self, topic: str) -> None:
        self._refreshing.add(topic)
        try:
            await self._cluster.refresh([topic], may_create=True)
        except (ClientError, KafkaError):
            return  # the batches come round again, and are given up when their time is over
        finally:
            self._refreshing.discard(topic)
            self.wake()

    def _build(self, batch: Batch) -> None:
        if batch.data is not None:
            return  # a repetition keeps its numbers: that is how the broker knows it
        base = self._sequences.take(batch.partition, batch.record_count)
        batch.producer_id = self._sequences.producer_id
        batch.data = batch.builder.build(
            producer_id=batch.producer_id,
            producer_epoch=self._sequences.producer_epoch,
            base_sequence=base,
        )

    async def _deliver(self, leader: int, batches: Sequence[Batch]) -> None:
        try:
            answers = await self._send(leader, batches)
        except (ClientError, KafkaError) as error:
            for batch in batches:
                self._failed(batch, error)
        else:
            for batch in batches:
                self._answered(batch, answers.get(batch.partition))
        self.wake()

    async def _send(
        self, leader: int, batches: Sequence[Batch]
    ) -> dict[TopicPartition, PartitionProduceResponse]:
        connection = await self._cluster.connection(leader)
        newest = connection.versions.get(ApiKey.PRODUCE, (0, 0))[1]
        request = self._request(batches, _MAGIC_BY_VERSION.get(newest, 2))
        if self._config.acks == 0:
            await connection.send_unanswered(request)
            return {batch.partition: PartitionProduceResponse(base_offset=-1) for batch in batches}
        answer = await connection.send(request, ProduceResponse)
        return {
            TopicPartition(topic.name, each.index): each
            for topic in answer.responses
            for each in topic.partition_responses
        }

    def _request(self, batches: Sequence[Batch], magic: int) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = defaultdict(list)
        for batch in batches:
            data = batch.data or b""
            records = data if magic == 2 else convert_down(data, magic)
            part = PartitionProduceData(index=batch.partition.partition, records=records)
            topics[batch.partition.topic].append(part)
        return ProduceRequest(
            acks=self._config.required_acks,
            timeout_ms=self._config.client.request_timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )

    def _answered(self, batch: Batch, answer: PartitionProduceResponse | None) -> None:
        if answer is None:
            self._failed(batch, ClientError(f"the broker's answer leaves out {batch.partition}"))
        elif answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._succeed(batch, -1, -1)  # it is in the log already; where, the broker does not know any more
        elif answer.error_code != ErrorCode.NONE:
            self._failed(batch, error_for(answer.error_code, answer.error_message))
        else:
            self._succeed(batch, answer.base_offset, answer.log_append_time_ms)

    def _failed(self, batch: Batch, error: ClientError | KafkaError) -> None:
        batch.last_error = error
        if is_stale(error):
            self._cluster.forget(batch.partition.topic)
        if self._config.acks == 0 or not is_retriable(error):
            self._give_up(batch, error)
            return
        delay_ms = self._cluster.backoff.delay_ms(batch.attempts, random.random())
        batch.attempts += 1
        self._accumulator.put_back(batch, self.now_ms() + delay_ms)

    def _give_up(self, batch: Batch, error: BaseException) -> None:
        if batch.data is not None and batch.producer_id == self._sequences.producer_id:
            self._sequences.give_up_id()
        _fail(batch, error)
        self._finish(batch)

    def _succeed(self, batch: Batch, base_offset: int, log_append_time_ms: int) -> None:
        topic, partition = batch.partition
        for index, waiter in enumerate(batch.waiters):
            done = cast("asyncio.Future[RecordMetadata]", waiter)
            stamp = log_append_time_ms if log_append_time_ms >= 0 else batch.timestamps[index]
            offset = base_offset + index if base_offset >= 0 else -1
            if not done.done():
                done.set_result(RecordMetadata(topic, partition, offset, stamp))
        self._finish(batch)

    def _finish(self, batch: Batch) -> None:
        self._accumulator.finish(batch)
        self._progress.set()


def _fail(batch: Batch, error: BaseException) -> None:
    for waiter in batch.waiters:
        done = cast("asyncio.Future[RecordMetadata]", waiter)
        if not done.done():
            done.set_exception(error)
