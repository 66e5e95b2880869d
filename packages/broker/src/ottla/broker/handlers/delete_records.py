"""DeleteRecords: move the log start offset of partitions forward."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.handlers.request_context import RequestContext
from ottla.protocol.errors import (
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    PolicyViolation,
    RequestTimedOut,
)
from ottla.protocol.messages.delete_records import (
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
    timeout_s = request.timeout_ms / 1000
    topics = []
    for topic in request.topics:
        answers = [
            _answer(services, TopicPartition(topic.name, one.partition_index), one.offset, timeout_s)
            for one in topic.partitions
        ]
        topics.append(
            DeleteRecordsTopicResult(name=topic.name, partitions=list(await asyncio.gather(*answers)))
        )
    return DeleteRecordsResponse(topics=topics)


async def _answer(
    services: Needs, topic_partition: TopicPartition, offset: int, timeout_s: float
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=topic_partition.partition, low_watermark=-1)
    try:
        if topic_partition.topic in INTERNAL_TOPICS:
            raise PolicyViolation(f"records of {topic_partition.topic} cannot be deleted")
        partition = services.replicas.leader(topic_partition)
        async with asyncio.timeout(timeout_s):
            result.low_watermark = await delete_before(partition, offset)
    except KafkaError as error:
        result.error_code = int(error.code)
    except TimeoutError:
        result.error_code = int(RequestTimedOut.code)
    except OSError:
        result.error_code = int(KafkaStorageError.code)
    return result


async def delete_before(partition: HostedPartition, offset: int) -> int:
    """Delete records below `offset` (-1: all committed ones); return the lowest log start of all replicas."""
    log = partition.log
    if not log.config.delete:
        raise PolicyViolation("the topic's cleanup.policy does not delete")
    wanted = partition.high_watermark if offset == TO_HIGH_WATERMARK else offset
    if not 0 <= wanted <= partition.high_watermark:
        raise OffsetOutOfRange
    if wanted > log.log_start_offset:
        log.advance_log_start(wanted)
    partition.core.log_start_moved(log.log_start_offset)
    await partition.low_watermark_at(wanted)
    return partition.core.low_watermark
