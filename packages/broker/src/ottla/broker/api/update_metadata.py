"""UpdateMetadata: take the live brokers and the leaders from the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.cluster.metadata import LEADER_DURING_DELETION, NO_ID
from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.control_requests import UpdateMetadataRequest, UpdateMetadataResponse
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.cluster.configs import Configs
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.cluster.topics import Topics
    from ottla.broker.controller.controller import Controller
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator
    from ottla.broker.replication.replicas import Replicas


class Needs(Protocol):
    """The parts of the broker that UpdateMetadata uses."""

    configs: Configs
    controller: Controller
    groups: GroupCoordinator
    metadata: MetadataCache
    replicas: Replicas
    topics: Topics


async def handle(
    services: Needs, request: UpdateMetadataRequest, context: RequestContext
) -> UpdateMetadataResponse:
    """Apply a request that arrived over the network."""
    return await apply(services, request)


async def apply(services: Needs, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
    """Update the metadata cache. Stale controller epochs and stale broker epochs are refused.

    Clients that see a topic here can have its settings described, so these are read first.
    """
    metadata = services.metadata
    if error := _refusal(services, request):
        return UpdateMetadataResponse(error_code=error)
    named = _named(request)
    await services.configs.ensure_topics(named)
    missed = await _missed_deletions(services, request)
    if error := _refusal(services, request):  # of a controller that was replaced meanwhile
        return UpdateMetadataResponse(error_code=error)
    if left := _left_replicas(services, request):
        await services.replicas.stop(left)
        if error := _refusal(services, request):
            return UpdateMetadataResponse(error_code=error)
    replaced = [name for name, topic_id in named.items() if _is_replaced(metadata.topic_id(name), topic_id)]
    deleted = [
        *metadata.update(request),
        *(topic_partition for name in missed for topic_partition in metadata.forget(name)),
    ]
    for topic in {partition.topic for partition in deleted}:
        services.configs.forget_topic(topic)
    if deleted:
        services.groups.partitions_deleted(deleted)
    services.groups.topics_published(named, replaced)
    return UpdateMetadataResponse()


def _is_replaced(before: UUID, topic_id: UUID) -> bool:
    return before != topic_id and NO_ID not in (before, topic_id)


def _refusal(services: Needs, request: UpdateMetadataRequest) -> ErrorCode | None:
    if request.is_kraft_controller:  # of a migration that this broker does not take part in (KIP-866)
        return ErrorCode.INVALID_REQUEST
    if services.controller.is_stale_broker_epoch(request.broker_epoch):
        return ErrorCode.STALE_BROKER_EPOCH
    if request.controller_epoch < services.metadata.controller_epoch:
        return ErrorCode.STALE_CONTROLLER_EPOCH
    return None


def _left_replicas(services: Needs, request: UpdateMetadataRequest) -> list[tuple[TopicPartition, int, bool]]:
    """The partitions with a role here whose later assignment is without this broker.

    They were moved while the broker was away, and no request has reached it: it would go on leading or
    following in an earlier epoch. Their logs stay, as only StopReplica deletes.
    """
    replicas = services.replicas
    states = [(asked.topic_name, asked) for asked in request.ungrouped_partition_states]
    states += [
        (topic.topic_name, asked) for topic in request.topic_states for asked in topic.partition_states
    ]
    left = []
    for topic, state in states:
        if replicas.broker_id in state.replicas or state.leader == LEADER_DURING_DELETION:
            continue
        partition = TopicPartition(topic, state.partition_index)
        hosted = replicas.hosted(partition)
        if hosted is not None and hosted.leader_epoch < state.leader_epoch:
            # With its epoch: the stop may have to wait behind a later role.
            left.append((partition, state.leader_epoch, False))
    return left


def _named(request: UpdateMetadataRequest) -> dict[str, UUID]:
    """The topics of a request that are not being deleted, with their ids."""
    named = {
        state.topic_name: NO_ID
        for state in request.ungrouped_partition_states
        if state.leader != LEADER_DURING_DELETION
    }
    for topic in request.topic_states:
        if any(state.leader != LEADER_DURING_DELETION for state in topic.partition_states):
            named[topic.topic_name] = topic.topic_id
    return named


async def _missed_deletions(services: Needs, request: UpdateMetadataRequest) -> list[str]:
    """The known topics that do not exist any more; asked for after each point where a deletion can be missed.

    A deletion is told once, to the brokers that are registered, and by one controller.
    """
    metadata = services.metadata
    told_by = (request.controller_epoch, request.broker_epoch)
    if metadata.told_by == told_by:
        return []
    before = {topic.name: topic.id for topic in metadata.topics()}
    if before:
        existing = await services.topics.existing()
        if existing is None:
            return []  # asked again with the next request
        before = {name: topic_id for name, topic_id in before.items() if name not in existing}
    metadata.told_by = told_by
    return [name for name, topic_id in before.items() if metadata.topic_id(name) == topic_id]
