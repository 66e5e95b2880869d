"""OffsetCommit: commit a group's offsets. Version 0 writes to ZooKeeper, the others to the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol

from ottla.broker.groups.offsets.committed_offsets import CommittedOffset
from ottla.broker.groups.offsets.zookeeper_offsets import write_offset
from ottla.broker.requests.authorization import refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import READ_GROUPS, READ_TOPICS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator
    from ottla.broker.runtime.environment import Environment
    from ottla.zookeeper.session import Session

DEFAULT = -1
FIRST_BY_ID = 10

LATEST_MS = 2**63 - 1
"""The latest expiration that a record can hold; an unlimited retention ends here."""


class NamedPartition(Protocol):
    """A partition in a request about offsets."""

    partition_index: int


class NamedTopic(Protocol):
    """A topic in a request about offsets."""

    name: str

    @property
    def partitions(self) -> Sequence[NamedPartition]:
        """Those that the request names."""
        ...


class Needs(Protocol):
    """The parts of the broker that OffsetCommit uses."""

    config: BrokerConfig
    environment: Environment
    groups: GroupCoordinator
    metadata: MetadataCache
    zookeeper: Session


async def handle(
    services: Needs, request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse:
    """Commit offsets of partitions that exist; the others get UNKNOWN_TOPIC_OR_PARTITION."""
    if not context.allows(READ_GROUPS, Resource(ResourceType.GROUP, request.group_id)):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return await _response(request, {}, context, others=error)
    if context.api_version >= FIRST_BY_ID:
        for topic in request.topics:
            topic.name = services.metadata.topic_name(topic.topic_id) or ""
    named = [topic.name for topic in request.topics if topic.name]
    refused = await refused_names(context, READ_TOPICS, named)
    asked = {
        TopicPartition(topic.name, partition.partition_index): partition
        for topic in request.topics
        if topic.name and topic.name not in refused
        async for partition in context.paced(topic.partitions)
    }
    known = {
        topic_partition: partition
        async for topic_partition, partition in context.paced(asked.items())
        if services.metadata.partition(topic_partition) is not None
    }
    if context.api_version == 0:
        results = await _commit_to_zookeeper(services, request.group_id, known, context)
    elif known:
        results = await _commit(services, request, known, context)
    else:
        results = {}
    if refused:
        await refuse(results, request.topics, refused, context)
    others = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if context.api_version:
        others = services.groups.offsets.error_of_unknown_topics(request.group_id)
    return await _response(request, results, context, others=others)


async def refuse(
    results: dict[TopicPartition, ErrorCode],
    topics: Iterable[NamedTopic],
    refused: AbstractSet[str],
    context: RequestContext,
) -> None:
    """Give the partitions of refused topics their error."""
    for topic in topics:
        if topic.name in refused:
            async for partition in context.paced(topic.partitions):
                entry = TopicPartition(topic.name, partition.partition_index)
                results[entry] = ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def _commit(
    services: Needs,
    request: OffsetCommitRequest,
    partitions: Mapping[TopicPartition, OffsetCommitRequestPartition],
    context: RequestContext,
) -> dict[TopicPartition, ErrorCode]:
    now_ms = services.environment.clock.now_ms()
    retention_ms = request.retention_time_ms
    expires_ms = None if retention_ms == DEFAULT else min(now_ms + retention_ms, LATEST_MS)
    offsets = {
        topic_partition: CommittedOffset(
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.committed_metadata or "",
            commit_timestamp_ms=now_ms
            if partition.commit_timestamp == DEFAULT
            else partition.commit_timestamp,
            expire_timestamp_ms=expires_ms,
            topic_id=services.metadata.topic_id(topic_partition.topic),
        )
        async for topic_partition, partition in context.paced(partitions.items())
    }
    results: dict[TopicPartition, ErrorCode] = await services.groups.offsets.commit(
        request.group_id,
        offsets,
        member_id=request.member_id,
        generation=request.generation_id_or_member_epoch,
        instance_id=request.group_instance_id,
        version=context.api_version,
    )
    return results


async def _commit_to_zookeeper(
    services: Needs,
    group_id: str,
    partitions: Mapping[TopicPartition, OffsetCommitRequestPartition],
    context: RequestContext,
) -> dict[TopicPartition, ErrorCode]:
    results: dict[TopicPartition, ErrorCode] = {}
    async for topic_partition, partition in context.paced(partitions.items()):
        results[topic_partition] = ErrorCode.NONE
        if len(partition.committed_metadata or "") > services.config.offset_metadata_max_bytes:
            results[topic_partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            continue
        try:
            await write_offset(services.zookeeper, group_id, topic_partition, partition.committed_offset)
        except KafkaError as error:
            results[topic_partition] = error.code
    return results


async def _response(
    request: OffsetCommitRequest,
    results: Mapping[TopicPartition, ErrorCode],
    context: RequestContext,
    *,
    others: ErrorCode,
) -> OffsetCommitResponse:
    by_id = context.api_version >= FIRST_BY_ID
    is_unknown = others is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown_ids = ErrorCode.UNKNOWN_TOPIC_ID if is_unknown else others
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=unknown_ids
                        if by_id and not topic.name
                        else results.get(TopicPartition(topic.name, partition.partition_index), others),
                    )
                    async for partition in context.paced(topic.partitions)
                ],
            )
            for topic in request.topics
        ]
    )
