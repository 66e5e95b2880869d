"""DescribeLogDirs: the partitions in each log directory, and their sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from ottla.broker.log.hosting.directories import DirectoryDescription, PartitionSize
from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.log.hosting.registry import LogRegistry
    from ottla.broker.replication.replicas import Replicas


class Needs(Protocol):
    """The parts of the broker that DescribeLogDirs uses."""

    logs: LogRegistry
    replicas: Replicas


async def handle(
    services: Needs, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    """Describe every log directory, with all partitions or the requested ones."""
    wanted = None
    if request.topics is not None:
        wanted = {
            TopicPartition(topic.topic, number)
            for topic in request.topics
            async for number in context.paced(topic.partitions)
        }
    return DescribeLogDirsResponse(
        results=[
            await _result(services, directory, wanted, context) for directory in services.logs.describe()
        ]
    )


async def _result(
    services: Needs,
    directory: DirectoryDescription,
    wanted: set[TopicPartition] | None,
    context: RequestContext,
) -> DescribeLogDirsResult:
    if directory.error is not None:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(directory.path))
    found = [
        partition
        async for partition in context.paced(directory.partitions)
        if wanted is None or partition.topic_partition in wanted
    ]
    return DescribeLogDirsResult(
        log_dir=str(directory.path),
        topics=await _topics(services, found, context),
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
    )


async def _topics(
    services: Needs, found: Iterable[PartitionSize], context: RequestContext
) -> list[DescribeLogDirsTopic]:
    topics: dict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
    async for entry in context.paced(found):
        topics[entry.topic_partition.topic].append(
            DescribeLogDirsPartition(
                partition_index=entry.topic_partition.partition,
                partition_size=entry.size_bytes,
                offset_lag=max(0, _wanted_end(services, entry) - entry.log_end_offset),
                is_future_key=entry.is_future,
            )
        )
    return [DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in topics.items()]


def _wanted_end(services: Needs, partition: PartitionSize) -> int:
    """Return the end of a log without a lag: the high watermark; of a future log the current one's end."""
    hosted = services.replicas.hosted(partition.topic_partition)
    if hosted is None:
        return partition.log_end_offset
    return hosted.log.log_end_offset if partition.is_future else hosted.high_watermark
