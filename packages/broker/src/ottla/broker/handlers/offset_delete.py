"""OffsetDelete: forget a group's offsets of topics it no longer reads (KIP-496)."""

from __future__ import annotations

from ottla.broker.handlers.services import RequestContext, Services
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.topics import TopicPartition


async def handle(
    services: Services, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    """Forget offsets; topics that members are subscribed to get GROUP_SUBSCRIBED_TO_TOPIC."""
    asked = [
        TopicPartition(topic.name, one.partition_index)
        for topic in request.topics
        for one in topic.partitions
    ]
    known = [one for one in asked if services.metadata.partition(one) is not None]
    error, results = await services.groups.delete_offsets(request.group_id, known)
    if error is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=error)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=one.partition_index,
                        error_code=results.get(TopicPartition(topic.name, one.partition_index), unknown),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
