"""OffsetDelete: delete a group's offsets of topics that it no longer reads (KIP-496)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.api.offset_commit import refuse
from ottla.broker.requests.authorization import refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import READ_TOPICS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator


class Needs(Protocol):
    """The parts of the broker that OffsetDelete uses."""

    groups: GroupCoordinator
    metadata: MetadataCache


async def handle(
    services: Needs, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    """Delete offsets; topics with subscribed members get GROUP_SUBSCRIBED_TO_TOPIC."""
    refused = await refused_names(context, READ_TOPICS, (topic.name for topic in request.topics))
    asked = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        if topic.name not in refused
        async for partition in context.paced(topic.partitions)
    ]
    known = [entry async for entry in context.paced(asked) if services.metadata.partition(entry) is not None]
    error, results = await services.groups.offsets.delete(request.group_id, known)
    if error is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=error)
    if refused:
        await refuse(results, request.topics, refused, context)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=results.get(
                            TopicPartition(topic.name, partition.partition_index), unknown
                        ),
                    )
                    async for partition in context.paced(topic.partitions)
                ],
            )
            for topic in request.topics
        ]
    )
