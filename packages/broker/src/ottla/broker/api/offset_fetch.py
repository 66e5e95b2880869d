"""OffsetFetch: return a group's committed offsets. Version 0 reads ZooKeeper, the others the coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from ottla.broker.cluster.metadata import NO_ID
from ottla.broker.groups.offsets.committed_offsets import NO_OFFSET, CommittedOffset
from ottla.broker.groups.offsets.zookeeper_offsets import read_offset
from ottla.broker.requests.authorization import refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DESCRIBE_GROUPS, DESCRIBE_TOPICS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator
    from ottla.zookeeper.session import Session

GROUP_ERROR_FROM = 2
SEVERAL_GROUPS_FROM = 8
FIRST_BY_ID = 10

Topics: TypeAlias = Sequence[OffsetFetchRequestTopic] | Sequence[OffsetFetchRequestTopics]
Fetched = Mapping[TopicPartition, CommittedOffset | ErrorCode | None]


class Member(NamedTuple):
    """The member that asks, if it is one of a group with epochs."""

    member_id: str | None = None
    epoch: int = -1


ANYBODY: Final = Member()


class Needs(Protocol):
    """The parts of the broker that OffsetFetch uses."""

    groups: GroupCoordinator
    metadata: MetadataCache
    zookeeper: Session


async def handle(
    services: Needs, request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse:
    """Return committed offsets, of all partitions if no topics are named; -1 for a partition without one."""
    if context.api_version >= SEVERAL_GROUPS_FROM:
        return await _several(services, request, context)
    if not _may_describe(request.group_id, context):
        return await _failed(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, context)
    if context.api_version == 0:
        return await _response(await _fetch_from_zookeeper(services, request, context), context)
    stable = request.require_stable
    refused = await _refused(services, [request.group_id], stable)
    error, fetched = await _fetch_visible(
        services, request.group_id, request.topics, stable, refused, context
    )
    if error is not ErrorCode.NONE:
        return await _failed(request, error, context)
    return await _response(fetched, context)


def _may_describe(group_id: str, context: RequestContext) -> bool:
    return context.allows(DESCRIBE_GROUPS, Resource(ResourceType.GROUP, group_id))


async def _failed(
    request: OffsetFetchRequest, error: ErrorCode, context: RequestContext
) -> OffsetFetchResponse:
    """Fail for the whole group, and for each partition that is named.

    The oldest versions have error codes at the partitions only. aiokafka reads only these in later versions:
    no partitions are no offsets to it, and it would read again from the beginning.
    """
    partitions = await _partitions(request.topics or (), context)
    response = await _response(dict.fromkeys(partitions, error), context)
    if context.api_version >= GROUP_ERROR_FROM:
        response.error_code = error
    return response


async def _several(
    services: Needs, request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse:
    """Respond for several groups (KIP-709)."""
    stable = request.require_stable
    hidden = await refused_names(context, DESCRIBE_GROUPS, (group.group_id for group in request.groups))
    shown = [group.group_id for group in request.groups if group.group_id not in hidden]
    refused = {
        **await _refused(services, shown, stable),
        **dict.fromkeys(hidden, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    }
    return OffsetFetchResponse(
        groups=[await _group(services, group, stable, refused, context) for group in request.groups]
    )


async def _group(
    services: Needs,
    asked: OffsetFetchRequestGroup,
    require_stable: bool,
    refused: Mapping[str, ErrorCode],
    context: RequestContext,
) -> OffsetFetchResponseGroup:
    by_id = context.api_version >= FIRST_BY_ID
    ids = _named(services, asked) if by_id else {}
    wanted = asked.topics if asked.topics is None else [topic for topic in asked.topics if topic.name]
    error, fetched = await _fetch_visible(
        services, asked.group_id, wanted, require_stable, refused, context, _member(asked)
    )
    if error is not ErrorCode.NONE:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error)
    topics: dict[str, OffsetFetchResponseTopics] = {}
    async for topic_partition, offset in context.paced(fetched.items()):
        name, index = topic_partition
        if name not in topics:
            topic_id = ids.get(name) or services.metadata.topic_id(name)
            topics[name] = OffsetFetchResponseTopics(name=name, topic_id=topic_id)
        if by_id and _is_of_another(offset, topics[name].topic_id):
            offset = None
        topics[name].partitions.append(OffsetFetchResponsePartitions(**_fields(index, offset)))
    # A topic without an id cannot be named in the answer.
    found = [topic for topic in topics.values() if not by_id or topic.topic_id != NO_ID]
    unknown = [_unknown(topic) for topic in asked.topics or () if not topic.name]
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=[*found, *unknown])


def _named(services: Needs, asked: OffsetFetchRequestGroup) -> dict[str, UUID]:
    """Give the topics of a request their names; return the ids of those that are known."""
    for topic in asked.topics or ():
        topic.name = services.metadata.topic_name(topic.topic_id) or ""
    return {topic.name: topic.topic_id for topic in asked.topics or () if topic.name}


def _is_of_another(offset: CommittedOffset | ErrorCode | None, topic_id: UUID) -> bool:
    """Whether the offset was committed for a topic of the same name that is deleted since."""
    return isinstance(offset, CommittedOffset) and offset.topic_id not in (NO_ID, topic_id)


def _unknown(topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    error = ErrorCode.UNKNOWN_TOPIC_ID
    return OffsetFetchResponseTopics(
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(**_fields(index, error)) for index in topic.partition_indexes
        ],
    )


async def _refused(
    services: Needs, group_ids: Sequence[str], require_stable: bool
) -> Mapping[str, ErrorCode]:
    """Return the groups whose offsets are not given out, because another broker may coordinate them."""
    if not require_stable:
        return {}
    confirmed = await services.groups.offsets.confirm_coordinators(group_ids)
    return {group_id: error for group_id, error in confirmed.items() if error is not ErrorCode.NONE}


async def _fetch_visible(
    services: Needs,
    group_id: str,
    topics: Topics | None,
    require_stable: bool,
    refused: Mapping[str, ErrorCode],
    context: RequestContext,
    member: Member = ANYBODY,
) -> tuple[ErrorCode, Fetched]:
    """Return the offsets that the client may see; topics that it names and may not describe have an error."""
    if group_id in refused:
        return refused[group_id], {}
    if topics is None:
        error, fetched = _fetch(services, group_id, None, require_stable, member)
        return error, await _visible(fetched, context)
    partitions, hidden = await _shown_and_hidden(topics, context)
    error, fetched = _fetch(services, group_id, partitions, require_stable, member)
    if not hidden or error is not ErrorCode.NONE:
        return error, fetched
    return error, {**fetched, **hidden}


async def _visible(fetched: Fetched, context: RequestContext) -> Fetched:
    """Leave topics out that the client did not name and may not describe."""
    hidden = await refused_names(context, DESCRIBE_TOPICS, (entry.topic for entry in fetched))
    if not hidden:
        return fetched
    return {entry: found for entry, found in fetched.items() if entry.topic not in hidden}


async def _shown_and_hidden(
    topics: Topics, context: RequestContext
) -> tuple[list[TopicPartition], dict[TopicPartition, ErrorCode]]:
    partitions = await _partitions(topics, context)
    refused = await refused_names(context, DESCRIBE_TOPICS, (topic.name for topic in topics))
    if not refused:
        return partitions, {}
    shown = [entry async for entry in context.paced(partitions) if entry.topic not in refused]
    hidden = [entry async for entry in context.paced(partitions) if entry.topic in refused]
    return shown, dict.fromkeys(hidden, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _fetch(
    services: Needs,
    group_id: str,
    partitions: Sequence[TopicPartition] | None,
    require_stable: bool,
    member: Member,
) -> tuple[ErrorCode, Fetched]:
    return services.groups.offsets.fetch(
        group_id,
        partitions,
        require_stable=require_stable,
        member_id=member.member_id,
        member_epoch=member.epoch,
    )


def _member(asked: OffsetFetchRequestGroup) -> Member:
    return Member(asked.member_id, asked.member_epoch)


async def _partitions(topics: Topics, context: RequestContext) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, index)
        for topic in topics
        async for index in context.paced(topic.partition_indexes)
    ]


async def _fetch_from_zookeeper(
    services: Needs, request: OffsetFetchRequest, context: RequestContext
) -> Fetched:
    fetched: dict[TopicPartition, CommittedOffset | ErrorCode | None] = {}
    shown, hidden = await _shown_and_hidden(request.topics or (), context)
    async for topic in context.paced(shown):
        try:
            fetched[topic] = await _offset_in_zookeeper(services, request.group_id, topic)
        except KafkaError as error:
            fetched[topic] = error.code
    return {**fetched, **hidden}


async def _offset_in_zookeeper(
    services: Needs, group_id: str, partition: TopicPartition
) -> CommittedOffset | ErrorCode:
    if services.metadata.partition(partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    offset = await read_offset(services.zookeeper, group_id, partition)
    # Clients of 0.8 start at auto.offset.reset on this error, and fail on an offset of -1.
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if offset is None else CommittedOffset(offset=offset)


async def _response(fetched: Fetched, context: RequestContext) -> OffsetFetchResponse:
    topics: dict[str, list[OffsetFetchResponsePartition]] = {}
    async for topic_partition, offset in context.paced(fetched.items()):
        topics.setdefault(topic_partition.topic, []).append(
            OffsetFetchResponsePartition(**_fields(topic_partition.partition, offset))
        )
    return OffsetFetchResponse(topics=_topics(topics.items()))


def _topics(
    topics: Iterable[tuple[str, list[OffsetFetchResponsePartition]]],
) -> list[OffsetFetchResponseTopic]:
    return [OffsetFetchResponseTopic(name=name, partitions=partitions) for name, partitions in topics]


def _fields(index: int, found: CommittedOffset | ErrorCode | None) -> dict[str, Any]:
    if isinstance(found, CommittedOffset):
        return {
            "partition_index": index,
            "committed_offset": found.offset,
            "committed_leader_epoch": found.leader_epoch,
            "metadata": found.metadata,
        }
    return {
        "partition_index": index,
        "committed_offset": NO_OFFSET,
        "metadata": "",
        "error_code": ErrorCode.NONE if found is None else found,
    }
