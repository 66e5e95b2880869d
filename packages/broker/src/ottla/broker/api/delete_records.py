"""DeleteRecords: move the log start offset of partitions forward."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.broker.requests.authorization import refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DELETE_TOPICS
from ottla.protocol.errors import (
    ErrorCode,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    PolicyViolation,
    RequestTimedOut,
)
from ottla.protocol.messages.log_offsets import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from ottla.protocol.topics import INTERNAL_TOPICS, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.replication.replicas import HostedPartition, Replicas

TO_HIGH_WATERMARK: Final = -1


class Needs(Protocol):
    """The parts of the broker that DeleteRecords uses."""

    replicas: Replicas


async def handle(
    services: Needs, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    """Advance each log start offset, then wait until every replica has advanced its own."""
    deadline_s = asyncio.get_running_loop().time() + request.timeout_ms / 1000
    advanced: list[_Advanced] = []
    refused = await refused_names(context, DELETE_TOPICS, (topic.name for topic in request.topics))
    topics = []
    for topic in request.topics:
        results = [
            _refused(partition.partition_index)
            if topic.name in refused
            else _advance(
                services, TopicPartition(topic.name, partition.partition_index), partition.offset, advanced
            )
            async for partition in context.paced(topic.partitions)
        ]
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    # The replicas advance together, so waiting for one after the other takes as long as the slowest.
    async for advance in context.paced(advanced):
        await _wait(advance, deadline_s)
    return DeleteRecordsResponse(topics=topics)


def _refused(index: int) -> DeleteRecordsPartitionResult:
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=-1, error_code=error)


class _Advanced(NamedTuple):
    """A log start offset that moved here, and perhaps not yet at the replicas."""

    partition: HostedPartition
    log_start_offset: int
    result: DeleteRecordsPartitionResult


def _advance(
    services: Needs, topic_partition: TopicPartition, offset: int, advanced: list[_Advanced]
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=topic_partition.partition, low_watermark=-1)
    try:
        if topic_partition.topic in INTERNAL_TOPICS:
            raise PolicyViolation(f"records of {topic_partition.topic} cannot be deleted")
        partition = services.replicas.leader(topic_partition)
        advanced.append(_Advanced(partition, delete_before(partition, offset), result))
    except KafkaError as error:
        result.error_code = int(error.code)
    except OSError:
        result.error_code = int(KafkaStorageError.code)
    return result


async def _wait(entry: _Advanced, deadline_s: float) -> None:
    try:
        async with asyncio.timeout_at(deadline_s):
            await entry.partition.low_watermark_at(entry.log_start_offset)
        entry.result.low_watermark = entry.partition.core.low_watermark
    except KafkaError as error:
        entry.result.error_code = int(error.code)
    except TimeoutError:
        entry.result.error_code = int(RequestTimedOut.code)


def delete_before(partition: HostedPartition, offset: int) -> int:
    """Delete records below `offset` (-1: all committed ones) here; return where the log is to start."""
    log = partition.log
    if not log.config.delete:
        raise PolicyViolation("the topic's cleanup.policy does not delete")
    wanted = partition.high_watermark if offset == TO_HIGH_WATERMARK else offset
    if not 0 <= wanted <= partition.high_watermark:
        raise OffsetOutOfRange
    if wanted > log.log_start_offset:
        log.advance_log_start(wanted)
    partition.core.log_start_moved(log.log_start_offset)
    return wanted
