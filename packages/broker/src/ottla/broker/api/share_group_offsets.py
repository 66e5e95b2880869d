"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets: where share groups begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from ottla.broker.api.share_group_heartbeat import OFF
from ottla.broker.cluster.features import SHARE
from ottla.broker.groups.kinds import GroupKind
from ottla.broker.groups.share.group import OffsetsChange, OffsetsDeleted, ShareGroup, StateInitialized
from ottla.broker.requests.authorization import refused_names
from ottla.broker.requests.permissions import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    DESCRIBE_TOPICS,
    READ_GROUPS,
    READ_TOPICS,
)
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.broker.share.state import UNINITIALIZED, SharePartitionKey, ShareState
from ottla.protocol.errors import (
    GroupAuthorizationFailed,
    KafkaError,
    NonEmptyGroup,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from ottla.protocol.messages import share_groups as wire
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.api.consumer_group_heartbeat import Levels
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator
    from ottla.broker.groups.kinds import HostableGroup
    from ottla.broker.replication.replicas import Replicas
    from ottla.broker.requests.context import RequestContext
    from ottla.broker.requests.permissions import Permission
    from ottla.broker.share.parts import ShareParts

_NO_ID = UUID(int=0)


class Needs(Protocol):
    """The parts of the broker that these APIs use."""

    groups: GroupCoordinator
    metadata: MetadataCache
    replicas: Replicas

    @property
    def features(self) -> Levels:
        """The feature levels of the cluster."""
        ...

    @property
    def share(self) -> Callable[[], ShareParts]:
        """Returns the parts for share groups."""
        ...


def _group(services: Needs, group_id: str, permission: Permission, context: RequestContext) -> ShareGroup:
    """Return a group. Raises KafkaError."""
    if services.features.level(SHARE) == 0:
        raise UnsupportedVersion(OFF)
    if not context.allows(permission, Resource(ResourceType.GROUP, group_id)):
        raise GroupAuthorizationFailed
    group = services.groups.find(group_id, GroupKind.SHARE).group
    assert isinstance(group, ShareGroup)
    return group


# ---- describe


async def describe(
    services: Needs, request: wire.DescribeShareGroupOffsetsRequest, context: RequestContext
) -> wire.DescribeShareGroupOffsetsResponse:
    """Return the first offset that each group has not finished, and how much is left behind it."""
    return wire.DescribeShareGroupOffsetsResponse(
        groups=[
            await _described(services, asked.group_id, asked.topics, context)
            async for asked in context.paced(request.groups)
        ]
    )


async def _described(
    services: Needs,
    group_id: str,
    topics: list[wire.DescribeShareGroupOffsetsRequestTopic] | None,
    context: RequestContext,
) -> wire.DescribeShareGroupOffsetsResponseGroup:
    answer = wire.DescribeShareGroupOffsetsResponseGroup(group_id=group_id)
    try:
        group = _group(services, group_id, DESCRIBE_GROUPS, context)
    except KafkaError as error:
        answer.error_code, answer.error_message = int(error.code), str(error) or None
        return answer
    wanted: dict[str, Iterable[int]] = (
        {topic.topic_name: topic.partitions for topic in topics}
        if topics is not None
        else {
            name: sorted(numbers)
            for topic_id, numbers in group.initialized.items()
            if (name := group.topics.name_of(topic_id)) is not None
        }
    )
    refused = await refused_names(context, DESCRIBE_TOPICS, wanted)
    for name, numbers in wanted.items():
        if topics is None and name in refused:
            continue
        topic_id = _NO_ID if name in refused else group.topics.id_of(name) or _NO_ID
        partitions = [
            await _described_partition(
                services, SharePartitionKey(group_id, topic_id, number), name, name in refused
            )
            async for number in context.paced(numbers)
        ]
        answer.topics.append(
            wire.DescribeShareGroupOffsetsResponseTopic(
                topic_name=name, topic_id=topic_id, partitions=partitions
            )
        )
    return answer


async def _described_partition(
    services: Needs, key: SharePartitionKey, topic: str, is_refused: bool
) -> wire.DescribeShareGroupOffsetsResponsePartition:
    described = wire.DescribeShareGroupOffsetsResponsePartition(
        partition_index=key.partition, start_offset=UNINITIALIZED, lag=-1
    )
    try:
        if is_refused:
            raise TopicAuthorizationFailed
        if key.topic_id == _NO_ID or not 0 <= key.partition < services.metadata.partition_count(topic):
            raise UnknownTopicOrPartition
        state = await services.share().persister.summary(key)
    except KafkaError as error:
        described.error_code, described.error_message = int(error.code), str(error) or None
        return described
    described.start_offset, described.leader_epoch = state.start_offset, state.leader_epoch
    described.lag = _lag(services, TopicPartition(topic, key.partition), state)
    return described


def _lag(services: Needs, topic_partition: TopicPartition, state: ShareState) -> int:
    """Return how many records wait for the group; -1 where the partition is led by another broker."""
    hosted = services.replicas.hosted(topic_partition)
    if state.start_offset == UNINITIALIZED or state.delivery_complete_count < 0 or hosted is None:
        return -1
    return max(0, hosted.high_watermark - state.start_offset - state.delivery_complete_count)


# ---- alter


async def alter(
    services: Needs, request: wire.AlterShareGroupOffsetsRequest, context: RequestContext
) -> wire.AlterShareGroupOffsetsResponse:
    """Begin partitions of an empty group at other offsets."""
    try:
        group = _group(services, request.group_id, READ_GROUPS, context)
        if not group.is_empty:
            raise NonEmptyGroup(f"The group {request.group_id} has members.")
        refused = await refused_names(context, READ_TOPICS, (topic.topic_name for topic in request.topics))
        state_epoch = await services.groups.request(request.group_id, GroupKind.SHARE, OffsetsChange())
    except KafkaError as error:
        return wire.AlterShareGroupOffsetsResponse(
            error_code=int(error.code), error_message=str(error) or None
        )
    response = wire.AlterShareGroupOffsetsResponse()
    begun: dict[UUID, set[int]] = {}
    for topic in request.topics:
        topic_id = group.topics.id_of(topic.topic_name) or _NO_ID
        results = []
        async for asked in context.paced(topic.partitions):
            key = SharePartitionKey(request.group_id, topic_id, asked.partition_index)
            error_of = await _set_offset(
                services, key, topic.topic_name, state_epoch, asked.start_offset, topic.topic_name in refused
            )
            if error_of is None:
                begun.setdefault(topic_id, set()).add(asked.partition_index)
            results.append(
                wire.AlterShareGroupOffsetsResponsePartition(
                    partition_index=asked.partition_index, **_failure(error_of)
                )
            )
        response.responses.append(
            wire.AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, topic_id=topic_id, partitions=results
            )
        )
    if begun:
        await _record_begun(services, request.group_id, begun)
    return response


async def _record_begun(services: Needs, group_id: str, begun: Mapping[UUID, set[int]]) -> None:
    event = StateInitialized({topic: frozenset(numbers) for topic, numbers in begun.items()})
    try:
        await services.groups.request(group_id, GroupKind.SHARE, event)
    except KafkaError:
        return  # the next member that joins initializes them, and finds the offsets that were set


async def _set_offset(
    services: Needs, key: SharePartitionKey, topic: str, state_epoch: int, offset: int, is_refused: bool
) -> KafkaError | None:
    try:
        if is_refused:
            raise TopicAuthorizationFailed
        if key.topic_id == _NO_ID or not 0 <= key.partition < services.metadata.partition_count(topic):
            raise UnknownTopicOrPartition
        await services.share().persister.initialize(key, state_epoch, offset)
    except KafkaError as error:
        return error
    return None


def _failure(error: KafkaError | None) -> dict[str, Any]:
    return {} if error is None else {"error_code": int(error.code), "error_message": str(error) or None}


# ---- delete


async def delete(
    services: Needs, request: wire.DeleteShareGroupOffsetsRequest, context: RequestContext
) -> wire.DeleteShareGroupOffsetsResponse:
    """Delete the state of topics from an empty group."""
    try:
        group = _group(services, request.group_id, DELETE_GROUPS, context)
        if not group.is_empty:
            raise NonEmptyGroup(f"The group {request.group_id} has members.")
        refused = await refused_names(context, READ_TOPICS, (topic.topic_name for topic in request.topics))
    except KafkaError as error:
        return wire.DeleteShareGroupOffsetsResponse(
            error_code=int(error.code), error_message=str(error) or None
        )
    response, deleted = wire.DeleteShareGroupOffsetsResponse(), set[UUID]()
    for topic in request.topics:
        topic_id = group.topics.id_of(topic.topic_name) or _NO_ID
        error_of = await _delete_topic(services, group, topic_id, topic.topic_name in refused)
        if error_of is None:
            deleted.add(topic_id)
        response.responses.append(
            wire.DeleteShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, topic_id=topic_id, **_failure(error_of)
            )
        )
    if deleted:
        try:
            await services.groups.request(
                request.group_id, GroupKind.SHARE, OffsetsDeleted(frozenset(deleted))
            )
        except KafkaError as error:
            response.error_code, response.error_message = int(error.code), str(error) or None
    return response


async def _delete_topic(
    services: Needs, group: ShareGroup, topic_id: UUID, is_refused: bool
) -> KafkaError | None:
    try:
        if is_refused:
            raise TopicAuthorizationFailed
        if topic_id == _NO_ID:
            raise UnknownTopicOrPartition
        await delete_state(services, group, [topic_id])
    except KafkaError as error:
        return error
    return None


async def delete_state(services: Needs, group: ShareGroup, topics: Iterable[UUID]) -> None:
    """Delete the state of a group's partitions. Raises KafkaError."""
    persister = services.share().persister
    for topic_id in topics:
        numbers = group.initialized.get(topic_id, frozenset()) | group.initializing.get(topic_id, frozenset())
        for number in sorted(numbers):
            try:
                await persister.delete(SharePartitionKey(group.group_id, topic_id, number))
            except UnknownTopicOrPartition:
                continue  # the topic is deleted, and its state goes with it


async def delete_all_state(services: Needs, group: HostableGroup) -> None:
    """Delete the state of all partitions of a share group. Raises KafkaError."""
    assert isinstance(group, ShareGroup)
    await delete_state(services, group, [*group.initialized, *group.initializing])
