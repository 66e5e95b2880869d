"""AlterReplicaLogDirs: move replicas between the log directories of this broker."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import ALTER
from ottla.broker.security.authorizer import CLUSTER
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.replication.log_moves import LogMoves


class Needs(Protocol):
    """The parts of the broker that AlterReplicaLogDirs uses."""

    log_moves: LogMoves


async def handle(
    services: Needs, request: AlterReplicaLogDirsRequest, context: RequestContext
) -> AlterReplicaLogDirsResponse:
    """Begin the moves; DescribeLogDirs shows when they are done."""
    is_allowed = context.allows(ALTER, CLUSTER)
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = defaultdict(list)
    for directory in request.dirs:
        for topic in directory.topics:
            async for number in context.paced(topic.partitions):
                error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                if is_allowed:
                    error = _move(services, TopicPartition(topic.name, number), directory.path)
                results[topic.name].append(
                    AlterReplicaLogDirPartitionResult(partition_index=number, error_code=int(error))
                )
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            async for name, partitions in context.paced(results.items())
        ]
    )


def _move(services: Needs, topic_partition: TopicPartition, path: str) -> ErrorCode:
    try:
        services.log_moves.move(topic_partition, path)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
