"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets: where share groups begin."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from ottla.broker.api.share_group_heartbeat import OFF
from ottla.broker.cluster.features import SHARE
from ottla.broker.groups.kinds import GroupKind
from ottla.broker.groups.share.events import OffsetsChange, OffsetsDeleted, StateInitialized
from ottla.broker.groups.share.group import ShareGroup
from ottla.broker.requests.authorization import refused_names
from ottla.broker.requests.permissions import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    DESCRIBE_TOPICS,
    READ_GROUPS,
    READ_TOPICS,
)
from ottla.broker.runtime.loop_budget import slices
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.broker.share.state import UNINITIALIZED, SharePartitionKey, ShareState
from ottla.protocol.errors import (
    GroupAuthorizationFailed,
    GroupIdNotFound,
    InvalidGroupId,
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


def _check(services: Needs, group_id: str, permission: Permission, context: RequestContext) -> None:
    """Check that there are share groups, and that the client may ask for this one. Raises KafkaError."""
    if services.features.level(SHARE) == 0:
        raise UnsupportedVersion(OFF)
    if not context.allows(permission, Resource(ResourceType.GROUP, group_id)):
        raise GroupAuthorizationFailed


def _group(services: Needs, group_id: str) -> ShareGroup:
    """Return a group. Raises KafkaError."""
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
    """Return start offsets and lags of partitions; those of a group that does not exist are unknown."""
    answer = wire.DescribeShareGroupOffsetsResponseGroup(group_id=group_id)
    try:
        _check(services, group_id, DESCRIBE_GROUPS, context)
        wanted = _begun(services, group_id) if topics is None else _asked(topics)
    except KafkaError as error:
        answer.error_code, answer.error_message = int(error.code), str(error) or None
        return answer
    refused = await refused_names(context, DESCRIBE_TOPICS, wanted)
    keys: dict[TopicPartition, SharePartitionKey] = {}
    for name, numbers in wanted.items():
        if topics is None and name in refused:
            continue
        topic_id = _NO_ID if name in refused else services.metadata.topic_id(name)
        described = wire.DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id)
        async for number in context.paced(numbers):
            described.partitions.append(
                wire.DescribeShareGroupOffsetsResponsePartition(
                    partition_index=number, start_offset=UNINITIALIZED, lag=-1,
                    **_failure(TopicAuthorizationFailed() if name in refused else None),
                )
            )  # fmt: skip
            if topic_id != _NO_ID and 0 <= number < services.metadata.partition_count(name):
                keys[TopicPartition(name, number)] = SharePartitionKey(group_id, topic_id, number)
        answer.topics.append(described)
    await _add_states(services, answer, await _summaries(services, keys, context))
    return answer


def _asked(topics: Iterable[wire.DescribeShareGroupOffsetsRequestTopic]) -> dict[str, Iterable[int]]:
    return {topic.topic_name: topic.partitions for topic in topics}


def _begun(services: Needs, group_id: str) -> dict[str, Iterable[int]]:
    """Return the partitions of which a group has a state. Raises KafkaError on other brokers than its own."""
    try:
        group = _group(services, group_id)
    except (GroupIdNotFound, InvalidGroupId):
        return {}
    return {
        name: sorted(numbers)
        for topic_id, numbers in group.partitions.initialized.items()
        if (name := group.topics.name_of(topic_id)) is not None
    }


async def _summaries(
    services: Needs, keys: Mapping[TopicPartition, SharePartitionKey], context: RequestContext
) -> dict[TopicPartition, ShareState]:
    """Return the states of the partitions that have one; one wait for coordinators that are away."""
    states: dict[TopicPartition, ShareState] = {}
    persister = services.share().persister

    async def read(of: TopicPartition, key: SharePartitionKey) -> None:
        with suppress(KafkaError):
            states[of] = await persister.summary(key)

    async with asyncio.TaskGroup() as tasks:
        async for of, key in context.paced(keys.items()):
            tasks.create_task(read(of, key))
    return states


async def _add_states(
    services: Needs,
    answer: wire.DescribeShareGroupOffsetsResponseGroup,
    states: Mapping[TopicPartition, ShareState],
) -> None:
    """Set the start offsets and lags of the partitions that have a state.

    The lag is not known where this broker, by rules, may not ask another one for it: the client may.
    """
    ends = await _ends(services, [of for of, state in states.items() if _has_lag(state)])
    for topic in answer.topics:
        for described in topic.partitions:
            of = TopicPartition(topic.topic_name, described.partition_index)
            state, end = states.get(of), ends.get(of)
            if state is None:
                continue
            if isinstance(end, TopicAuthorizationFailed):
                end = None
            if isinstance(end, KafkaError):
                described.start_offset, described.error_code = 0, int(end.code)
                described.error_message = str(end) or None
                continue
            described.start_offset, described.leader_epoch = state.start_offset, state.leader_epoch
            if end is not None:
                described.lag = end - state.start_offset - state.delivery_complete_count


def _has_lag(state: ShareState) -> bool:
    return state.start_offset != UNINITIALIZED and state.delivery_complete_count >= 0


async def _ends(
    services: Needs, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | KafkaError]:
    """Return the high watermarks of partitions: those of other leaders come from them."""
    found: dict[TopicPartition, int | KafkaError] = {}
    elsewhere = []
    for partition in partitions:
        hosted = services.replicas.hosted(partition)
        if hosted is not None and hosted.leads:
            found[partition] = hosted.high_watermark
        else:
            elsewhere.append(partition)
    return found | dict(await services.share().persister.ends(elsewhere)) if elsewhere else found


# ---- alter


async def alter(
    services: Needs, request: wire.AlterShareGroupOffsetsRequest, context: RequestContext
) -> wire.AlterShareGroupOffsetsResponse:
    """Begin partitions at other offsets, of an empty group or of one that was never used."""
    try:
        _check(services, request.group_id, READ_GROUPS, context)
        refused = await refused_names(context, READ_TOPICS, (topic.topic_name for topic in request.topics))
        wanted = {
            topic.topic_name: frozenset(
                asked.partition_index
                for asked in topic.partitions
                if 0 <= asked.partition_index < services.metadata.partition_count(topic.topic_name)
            )
            for topic in request.topics
            if topic.topic_name not in refused
        }
        state_epoch = await _begin_offsets(services, request.group_id, wanted)
    except KafkaError as error:
        return wire.AlterShareGroupOffsetsResponse(
            error_code=int(error.code), error_message=str(error) or None
        )
    topics, begun = await _set_offsets(services, request, context, state_epoch, refused)
    response = wire.AlterShareGroupOffsetsResponse(responses=topics)
    if begun:
        event = StateInitialized({of: frozenset(some) for of, some in begun.items()})
        try:
            await services.groups.request(request.group_id, GroupKind.SHARE, event)
        except KafkaError as error:  # the next member that joins would begin them at other offsets
            response.error_code, response.error_message = int(error.code), str(error) or None
    return response


async def _set_offsets(
    services: Needs,
    request: wire.AlterShareGroupOffsetsRequest,
    context: RequestContext,
    state_epoch: int,
    refused: Container[str],
) -> tuple[list[wire.AlterShareGroupOffsetsResponseTopic], Mapping[UUID, set[int]]]:
    """Begin all partitions, with one wait for coordinators; return the results, and which have begun."""
    responses = []
    begun: dict[UUID, set[int]] = defaultdict(set)

    async def begin(
        topic: wire.AlterShareGroupOffsetsRequestTopic,
        asked: wire.AlterShareGroupOffsetsRequestPartition,
        result: wire.AlterShareGroupOffsetsResponsePartition,
    ) -> None:
        name, topic_id = topic.topic_name, services.metadata.topic_id(topic.topic_name)
        key = SharePartitionKey(request.group_id, topic_id, asked.partition_index)
        error = await _set_offset(services, key, name, state_epoch, asked.start_offset, name in refused)
        if error is None:
            begun[topic_id].add(asked.partition_index)
        else:
            result.error_code, result.error_message = int(error.code), str(error) or None

    async with asyncio.TaskGroup() as tasks:
        for topic in request.topics:
            results = []
            async for asked in context.paced(topic.partitions):
                result = wire.AlterShareGroupOffsetsResponsePartition(partition_index=asked.partition_index)
                results.append(result)
                tasks.create_task(begin(topic, asked, result))
            topic_id = services.metadata.topic_id(topic.topic_name)
            responses.append(
                wire.AlterShareGroupOffsetsResponseTopic(
                    topic_name=topic.topic_name, topic_id=topic_id, partitions=results
                )
            )
    return responses, begun


async def _begin_offsets(services: Needs, group_id: str, wanted: Mapping[str, frozenset[int]]) -> int:
    """Record whose state begins, and return its epoch; a group is made with its first partition.

    Raises KafkaError.
    """
    partitions = {services.metadata.topic_id(name): numbers for name, numbers in wanted.items() if numbers}
    change = OffsetsChange(partitions)
    if not partitions:
        try:
            _group(services, group_id)
        except GroupIdNotFound:
            return 0
    epoch: int = await services.groups.request(group_id, GroupKind.SHARE, change, creates=True)
    return epoch


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
    """Delete the state of topics from an empty group; those of which there is none come last."""
    try:
        _check(services, request.group_id, DELETE_GROUPS, context)
        group = _group(services, request.group_id)
        if not group.is_empty:
            raise NonEmptyGroup(f"The group {request.group_id} has members.")
        refused = await refused_names(context, READ_TOPICS, (topic.topic_name for topic in request.topics))
    except KafkaError as error:
        return wire.DeleteShareGroupOffsetsResponse(
            error_code=int(error.code), error_message=str(error) or None
        )
    deleted: dict[UUID, wire.DeleteShareGroupOffsetsResponseTopic] = {}
    failed: list[wire.DeleteShareGroupOffsetsResponseTopic] = []
    async with asyncio.TaskGroup() as tasks:  # one wait for coordinators that are away
        ends = []
        async for topic in context.paced(request.topics):
            topic_id = services.metadata.topic_id(topic.topic_name)
            ends.append(
                tasks.create_task(_delete_topic(services, group, topic_id, topic.topic_name in refused))
            )
    for topic, end in zip(request.topics, ends, strict=True):
        topic_id, error_of = services.metadata.topic_id(topic.topic_name), end.result()
        result = wire.DeleteShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, **_failure(error_of))
        if error_of is None:
            result.topic_id = topic_id
            deleted[topic_id] = result
        else:
            failed.append(result)
    response = wire.DeleteShareGroupOffsetsResponse(responses=[*deleted.values(), *failed])
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
        if topic_id not in group.partitions.initialized and topic_id not in group.partitions.initializing:
            raise UnknownTopicOrPartition("There is no offset information to delete.")
        await delete_state(services, group, [topic_id])
    except KafkaError as error:
        return error
    return None


async def delete_state(services: Needs, group: ShareGroup, topics: Iterable[UUID]) -> None:
    """Delete the state of a group's partitions, with one wait for coordinators. Raises KafkaError."""
    persister = services.share().persister

    async def delete(key: SharePartitionKey) -> KafkaError | None:
        try:
            await persister.delete(key)
        except UnknownTopicOrPartition:
            return None  # the topic is deleted, and its state goes with it
        except KafkaError as error:
            return error
        return None

    keys = [
        SharePartitionKey(group.group_id, topic_id, number)
        for topic_id in dict.fromkeys(topics)
        for number in sorted(group.partitions.known(topic_id))
    ]
    ends = []
    async with asyncio.TaskGroup() as tasks:
        for some in slices(keys):
            ends += [tasks.create_task(delete(key)) for key in some]
            await asyncio.sleep(0)
    for end in ends:
        if (error := end.result()) is not None:
            raise error


async def delete_all_state(services: Needs, group: HostableGroup) -> None:
    """Delete the state of all partitions of a share group. Raises KafkaError."""
    assert isinstance(group, ShareGroup)
    await delete_state(services, group, [*group.partitions.initialized, *group.partitions.initializing])
