"""DescribeTopicPartitions: topics and their partitions, a page at a time (KIP-966)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.api.metadata import describe_partition
from ottla.broker.requests.authorization import authorized_operations
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DESCRIBE_TOPICS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.topic_descriptions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from ottla.protocol.topics import INTERNAL_TOPICS, why_illegal_topic_name

if TYPE_CHECKING:
    from ottla.broker.api.metadata import Alive
    from ottla.broker.cluster.metadata import KnownTopic, MetadataCache

MOST_PARTITIONS: Final = 2000
"""How many partitions one page has at most, as Kafka's `max.request.partition.size.limit` by default."""


class Needs(Protocol):
    """The parts of the broker that DescribeTopicPartitions uses."""

    metadata: MetadataCache


async def handle(
    services: Needs, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    """Describe topics in the order of their names, from the cursor on; those that are refused come last."""
    first = "" if request.cursor is None else request.cursor.topic_name
    asked = {topic.name async for topic in context.paced(request.topics)}
    names = sorted(name for name in asked or services.metadata.topic_names if name >= first)
    if not _is_valid(request.cursor, names if asked else None):
        return _failed(request)
    shown = [
        name
        async for name in context.paced(names)
        if context.allows(DESCRIBE_TOPICS, Resource(ResourceType.TOPIC, name), is_asked_for=bool(asked))
    ]
    response = await _page(services, request, shown, context, is_named=bool(asked))
    for topic in response.topics:
        resource = Resource(ResourceType.TOPIC, topic.name or "")
        topic.topic_authorized_operations = authorized_operations(context, resource)
    if asked:
        response.topics += [_refused(name) for name in names if name not in set(shown)]
    return response


def _is_valid(cursor: Cursor | None, names: list[str] | None) -> bool:
    """Whether a cursor is at a partition of one of the topics that the request names, if it names any."""
    if cursor is None:
        return True
    return cursor.partition_index >= 0 and (names is None or cursor.topic_name in names)


def _failed(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """Refuse the request: there is no error for it as a whole."""
    error = ErrorCode.INVALID_REQUEST
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=error, name=topic.name)
            for topic in request.topics
        ]
    )


def _refused(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)


async def _page(
    services: Needs,
    request: DescribeTopicPartitionsRequest,
    names: list[str],
    context: RequestContext,
    *,
    is_named: bool,
) -> DescribeTopicPartitionsResponse:
    response = DescribeTopicPartitionsResponse()
    left = max(1, min(MOST_PARTITIONS, request.response_partition_limit))
    alive = services.metadata.alive
    async for name in context.paced(names):
        if not left:
            response.next_cursor = Cursor(topic_name=name)
            break
        topic = services.metadata.topic(name)
        if topic is None:
            if is_named:
                response.topics.append(_missing(name))
            continue
        cursor = request.cursor
        start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        described = _describe(alive, topic, start, left, context)
        response.topics.append(described)
        if start + left < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=start + left)
            break
        left -= len(described.partitions)
    return response


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    is_illegal = bool(why_illegal_topic_name(name))
    error = ErrorCode.INVALID_TOPIC_EXCEPTION if is_illegal else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return DescribeTopicPartitionsResponseTopic(
        error_code=error, name=name, is_internal=name in INTERNAL_TOPICS
    )


def _describe(
    alive: Alive, topic: KnownTopic, start: int, most: int, context: RequestContext
) -> DescribeTopicPartitionsResponseTopic:
    numbers = range(start, min(len(topic.partitions), start + most))
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _described(alive, topic, number, context) for number in numbers if number in topic.partitions
        ],
    )


def _described(
    alive: Alive, topic: KnownTopic, number: int, context: RequestContext
) -> DescribeTopicPartitionsResponsePartition:
    found = describe_partition(alive, topic.partitions[number], context.session.listener_name)
    return DescribeTopicPartitionsResponsePartition(
        error_code=found.error_code,
        partition_index=number,
        leader_id=found.leader_id,
        leader_epoch=found.leader_epoch,
        replica_nodes=found.replica_nodes,
        isr_nodes=found.isr_nodes,
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=found.offline_replicas,
    )
