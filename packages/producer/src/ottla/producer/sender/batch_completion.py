"""Completion of batches: written, retried, split or failed, as the leader's response says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from operator import attrgetter

from ottla.client.cluster import Cluster, is_stale
from ottla.client.errors import IDEMPOTENT_WRITE, ClientError, Need, error_about
from ottla.client.retry import is_retriable
from ottla.producer.accumulator import Accumulator, Batch
from ottla.producer.config import ProducerConfig
from ottla.producer.errors import RecordRefused
from ottla.producer.metrics import ProducerMetrics
from ottla.producer.sender.idempotence import Idempotence, TransactionCoordinator
from ottla.producer.sender.partition_order import RefusedLeaders
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import ErrorCode, InvalidRecord, KafkaError, error_for
from ottla.protocol.messages.produce import PartitionProduceResponse
from ottla.protocol.topics import TopicPartition

Responses = Mapping[TopicPartition, PartitionProduceResponse]
Offsets = Mapping[tuple[str, int], tuple[int, int]]
"""Base offset and append time by partition."""


class BatchCompletion:
    """Ends batches, or puts them back into the accumulator for a retry.

    `on_buffer_space` is called when a batch ended, and its memory is free.
    """

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        config: ProducerConfig,
        metrics: ProducerMetrics,
        *,
        idempotence: Idempotence,
        refused_leaders: RefusedLeaders,
        coordinator: TransactionCoordinator | None,
        on_buffer_space: Callable[[], None],
        now_ms: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._config = config
        self._metrics = metrics
        self._idempotence = idempotence
        self._refused_leaders = refused_leaders
        self._coordinator = coordinator
        self._on_buffer_space = on_buffer_space
        self._now_ms = now_ms
        self._chance = chance

    def written(self, batches: Iterable[Batch], offsets: Offsets) -> None:
        """End the batches of a request whose response reports no error."""
        for batch in batches:
            if batch.done:
                continue  # it failed while it was in flight, when the producer was closed
            found = offsets.get(batch.partition)
            if found is None:
                self._answered(batch, None)
            else:
                self._succeed(batch, *found)

    def answered(self, batches: Iterable[Batch], responses: Responses) -> Coroutine[None, None, None] | None:
        """End or retry the batches of a request, as its response says; return the rest, to be awaited."""
        later = []
        for batch in batches:
            if self._is_to_be_split(batch, responses) or self._is_epoch_rejected(batch, responses):
                later.append(batch)
            else:
                self._answered(batch, responses.get(batch.partition))
        return self._end_later(later, responses) if later else None

    async def _end_later(self, batches: Sequence[Batch], responses: Responses) -> None:
        """Split the batches that are too large; ask what the rejection of a transaction's epoch means."""
        rejected = []
        for batch in batches:
            if self._is_epoch_rejected(batch, responses):
                rejected.append(batch)
            else:
                await self._split(batch)
        if rejected:
            await self._fail_rejected(rejected)

    def all_failed(
        self, batches: Iterable[Batch], error: ClientError | KafkaError, *, may_repeat: bool = True
    ) -> None:
        """Retry or fail the batches of a request that has no response."""
        for batch in batches:
            self._failed(batch, error, may_repeat=may_repeat)

    def fail(self, batch: Batch, error: BaseException) -> None:
        """Fail a batch for good: its sequences leave a gap, and its transaction can only be aborted."""
        if batch.done:
            return  # its transaction was aborted meanwhile
        self._idempotence.failed(batch)
        if self._coordinator is not None:
            self._coordinator.failed(error, numbered=batch.was_sent)
        self._metrics.batch_failed(batch.partition.topic, batch.record_count)
        self.end(batch, error)

    def drop(self, batch: Batch, error: BaseException) -> None:
        """Fail a batch that is not in flight, because its transaction is being aborted."""
        if batch.was_sent and self._coordinator is not None:
            self._coordinator.failed(error, numbered=True)
        self.end(batch, error)

    def end(self, batch: Batch, error: BaseException) -> None:
        """Set the error of a batch, and free its memory."""
        self._idempotence.forget(batch)
        self._accumulator.finish(batch)
        batch.fail(error)
        self._on_buffer_space()

    def _answered(self, batch: Batch, response: PartitionProduceResponse | None) -> None:
        if batch.done:
            return  # it failed while it was in flight, when the producer was closed
        if response is None:
            self._failed(batch, ClientError(f"the broker's answer leaves out {batch.partition}"))
        elif response.error_code == ErrorCode.NONE:
            self._succeed(batch, response.base_offset, response.log_append_time_ms)
        elif response.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._succeed(batch, -1, -1)  # it is in the log already, at an offset the broker no longer knows
        else:
            error = _error_in(response, batch.partition.topic)
            if self._idempotence.is_sequence_rejected(batch, error):
                self._idempotence.rejected(batch)
                self._retry(batch, error)
            else:
                self._failed(batch, error)

    def _failed(self, batch: Batch, error: ClientError | KafkaError, *, may_repeat: bool = True) -> None:
        if batch.done:
            return
        at_once = is_stale(error) and self._refused_leaders.refused(batch)
        if not may_repeat or not is_retriable(error):
            self.fail(batch, error)
        else:
            self._retry(batch, error, at_once=at_once)

    def _retry(self, batch: Batch, error: ClientError | KafkaError, *, at_once: bool = False) -> None:
        batch.last_error = error
        if batch.displaced_by is not None:
            self.fail(batch, batch.displaced_by)
            return
        if batch.attempts >= self._config.retries:
            self.fail(batch, error)
            return
        delay_ms = 0.0 if at_once else self._cluster.backoff.delay_ms(batch.attempts, self._chance())
        self._accumulator.reenqueue(batch, self._now_ms() + delay_ms)

    def _succeed(self, batch: Batch, base_offset: int, log_append_time_ms: int) -> None:
        self._accumulator.finish(batch)
        batch.succeed(base_offset, log_append_time_ms)
        self._on_buffer_space()

    def _is_epoch_rejected(self, batch: Batch, responses: Responses) -> bool:
        """Whether a leader rejected the epoch of a transaction: another producer may have fenced this one."""
        response = responses.get(batch.partition)
        rejected = response is not None and response.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        return rejected and self._coordinator is not None and not batch.done

    async def _fail_rejected(self, batches: Sequence[Batch]) -> None:
        assert self._coordinator is not None
        error = await self._coordinator.meaning_of(error_for(ErrorCode.INVALID_PRODUCER_EPOCH))
        for batch in batches:
            self.fail(batch, error)

    @staticmethod
    def _is_to_be_split(batch: Batch, responses: Responses) -> bool:
        response = responses.get(batch.partition)
        too_large = response is not None and response.error_code == ErrorCode.MESSAGE_TOO_LARGE
        return too_large and batch.record_count > 1 and not batch.done

    async def _split(self, batch: Batch) -> None:
        """Replace a batch that was too large by its halves.

        Until then it counts as in flight, and keeps its position before the batches that follow.
        """
        codec = self._config.codec_for(batch.partition.topic)
        level = self._config.compression_level
        try:
            parts = await asyncio.to_thread(self._accumulator.halves, batch, codec, level)
        except MemoryError as error:
            self.fail(batch, error)
            return
        if batch.done:
            return  # it failed meanwhile
        if batch.displaced_by is not None:
            self.fail(batch, batch.displaced_by)
            return
        self._accumulator.split(batch, parts)
        for part in parts:
            part.attempts += 1
        self._idempotence.number_parts(batch, parts)


def _error_in(response: PartitionProduceResponse, topic: str) -> KafkaError:
    """Return the error of a batch; RecordRefused where the leader names the records that it refuses."""
    if response.error_code != ErrorCode.INVALID_RECORD or not response.record_errors:
        write = Need(Operation.WRITE, ResourceType.TOPIC, topic)
        return error_about(response.error_code, response.error_message, write, IDEMPOTENT_WRITE)
    summary = response.error_message
    said = {
        refused.batch_index: refused.batch_index_error_message or summary or InvalidRecord.description
        for refused in sorted(response.record_errors, key=attrgetter("batch_index"))
    }
    return RecordRefused(said)
