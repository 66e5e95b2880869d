"""Delayed produce: wait until appended batches are flushed, and replicated to the in-sync replicas.

Kafka keeps such requests in its produce purgatory. Here the wait is a suspended coroutine: the hosted
partition ends it when the high watermark passes the batch. A run on the fast path waits the same way
(`fast_path`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ottla.broker.log.append.batch_validation import RefusedRecords
from ottla.broker.runtime.loop_budget import LONG
from ottla.protocol.errors import KafkaError, KafkaStorageError, NotLeaderOrFollower, RequestTimedOut
from ottla.protocol.messages.produce import BatchIndexAndErrorMessage

if TYPE_CHECKING:
    from ottla.broker.log.log import Appended
    from ottla.broker.replication.replicas import HostedPartition
    from ottla.broker.requests.context import RequestContext
    from ottla.broker.runtime.environment import Clock
    from ottla.protocol.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse

NO_ACKS, LEADER_ACKS, ALL_ACKS = 0, 1, -1
FIRST_BY_ID: Final = 13
"""The first version of Produce that names topics by their ids."""


class Placed:
    """The outcome of one partition's batches: where they were appended, or an error."""

    __slots__ = ("appended", "leader_epoch", "partition", "response")

    def __init__(self, response: PartitionProduceResponse) -> None:
        self.response = response
        self.partition: HostedPartition | None = None
        self.appended: Appended | None = None
        self.leader_epoch = -1
        """The partition's, when the batches were appended."""

    def failed(self, error: KafkaError) -> None:
        """Answer with an error instead of an offset."""
        response = self.response
        response.error_code = int(error.code)
        response.error_message = str(error) or None
        response.base_offset, response.log_append_time_ms, response.log_start_offset = -1, -1, -1
        if isinstance(error, RefusedRecords):
            response.record_errors = [
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=said)
                for index, said in error.record_errors
            ]

    def placed(self, partition: HostedPartition, appended: Appended) -> None:
        """Answer with the offsets of the batches."""
        response = self.response
        response.base_offset = appended.base_offset
        response.log_append_time_ms = appended.log_append_time_ms
        response.log_start_offset = appended.log_start_offset
        self.partition, self.appended = partition, appended
        self.leader_epoch = partition.core.leader_epoch

    @property
    def is_committed(self) -> bool:
        """Whether the batches are committed, or failed; they may still have to be flushed."""
        if self.partition is None or self.appended is None:
            return True
        return self.is_of_leader and self.partition.high_watermark > self.appended.last_offset

    @property
    def is_of_leader(self) -> bool:
        """Whether the leadership goes on in which the batches were appended.

        After it they may be cut off, and the high watermark says nothing about them.
        """
        return self.partition is None or self.partition.core.leader_epoch == self.leader_epoch

    @property
    def is_durable(self) -> bool:
        """Whether the answer does not wait for a flush."""
        return self.partition is None or not self.partition.log.config.flush_before_acknowledge

    def is_safe(self, acks: int) -> bool:
        """Whether the answer waits for nothing."""
        return self.is_durable and (acks == LEADER_ACKS or self.is_committed)


def nothing_to_wait_for(acks: int, placed: list[Placed]) -> bool:
    """Return whether the response can be sent at once."""
    return all(placement.is_safe(acks) for placement in placed)


async def when_safe(
    request: ProduceRequest,
    context: RequestContext,
    response: ProduceResponse,
    placed: list[Placed],
    clock: Clock,
) -> ProduceResponse:
    """Wait for the flush if the topic requires it, and for the replicas if the client does."""
    began_ms = clock.monotonic_ms()
    waiting = [
        placement
        for placement in placed
        if placement.appended is not None and not placement.is_safe(request.acks)
    ]
    # Each wait is a task; those of a long request are made a few at a time.
    while waiting:
        left_ms = began_ms + request.timeout_ms - clock.monotonic_ms()
        await _wait_for(waiting[:LONG], request.acks, left_ms)
        waiting = [placement for placement in waiting[LONG:] if not placement.is_safe(request.acks)]
    context.remote_ms += clock.monotonic_ms() - began_ms
    return response


async def _wait_for(placed: list[Placed], acks: int, timeout_ms: float) -> None:
    results = await asyncio.gather(
        *(asyncio.wait_for(safe(placement, acks), timeout_ms / 1000) for placement in placed),
        return_exceptions=True,
    )
    for placement, result in zip(placed, results, strict=True):
        if isinstance(result, BaseException):
            placement.failed(as_kafka_error(result))


async def safe(placed: Placed, acks: int) -> None:
    """Wait until a batch is flushed, if its topic requires that, and replicated, if the client does."""
    partition, appended = placed.partition, placed.appended
    assert partition is not None
    assert appended is not None
    if partition.log.config.flush_before_acknowledge:
        await partition.log.commit.wait(appended.last_offset + 1)
    if acks == ALL_ACKS:
        if not placed.is_of_leader:  # this wait begins late where a request has many partitions
            raise NotLeaderOrFollower
        await partition.replicated(appended.last_offset + 1)


def as_kafka_error(error: BaseException) -> KafkaError:
    """Return the error that a producer gets; raise one that is none of the append."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, TimeoutError):
        return RequestTimedOut()
    if isinstance(error, OSError):
        return KafkaStorageError(str(error))
    raise error
