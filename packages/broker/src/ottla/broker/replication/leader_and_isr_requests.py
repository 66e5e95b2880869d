"""LeaderAndIsr and StopReplica: from requests to assignments, and from results to responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from ottla.broker.replication.partition import Assignment
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.control_requests import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaPartitionError,
    StopReplicaResponse,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.protocol.messages.control_requests import (
        LeaderAndIsrPartitionState,
        LeaderAndIsrRequest,
        StopReplicaRequest,
    )

NO_ID = UUID(int=0)
NO_EPOCH = -1
Assigned: TypeAlias = tuple[TopicPartition, UUID | None, Assignment]
Stopped: TypeAlias = tuple[TopicPartition, int, bool]


def assignments_of(request: LeaderAndIsrRequest) -> list[Assigned]:
    """Return the assignments in a LeaderAndIsr request of any version."""
    flat = [
        (TopicPartition(state.topic_name, state.partition_index), None, _assignment(state))
        for state in request.ungrouped_partition_states
    ]
    grouped = [
        (
            TopicPartition(topic.topic_name, state.partition_index),
            topic.topic_id if topic.topic_id != NO_ID else None,
            _assignment(state),
        )
        for topic in request.topic_states
        for state in topic.partition_states
    ]
    return [*flat, *grouped]


def _assignment(state: LeaderAndIsrPartitionState) -> Assignment:
    return Assignment(
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        isr=tuple(state.isr),
        replicas=tuple(state.replicas),
        adding_replicas=tuple(state.adding_replicas),
        removing_replicas=tuple(state.removing_replicas),
        is_new=state.is_new,
    )


def leader_and_isr_response(
    assigned: Sequence[Assigned], answers: Mapping[TopicPartition, ErrorCode]
) -> LeaderAndIsrResponse:
    """Answer by topic id where the request named ids (version 5), by name otherwise."""
    by_id: dict[UUID, list[LeaderAndIsrPartitionError]] = {}
    flat: list[LeaderAndIsrPartitionError] = []
    for topic_partition, topic_id, _ in assigned:
        error = LeaderAndIsrPartitionError(
            topic_name=topic_partition.topic,
            partition_index=topic_partition.partition,
            error_code=int(answers[topic_partition]),
        )
        flat.append(error)
        by_id.setdefault(topic_id or NO_ID, []).append(error)
    topics = [
        LeaderAndIsrTopicError(topic_id=topic_id, partition_errors=errors)
        for topic_id, errors in by_id.items()
    ]
    if set(by_id) - {NO_ID}:
        return LeaderAndIsrResponse(topics=topics)
    return LeaderAndIsrResponse(partition_errors=flat)


def stops_of(request: StopReplicaRequest) -> list[Stopped]:
    """Return the partitions that a StopReplica request of any version stops."""
    delete = request.delete_partitions
    flat = [
        (TopicPartition(state.topic_name, state.partition_index), NO_EPOCH, delete)
        for state in request.ungrouped_partitions
    ]
    by_topic = [
        (TopicPartition(topic.name, index), NO_EPOCH, delete)
        for topic in request.topics
        for index in topic.partition_indexes
    ]
    states = [
        (TopicPartition(topic.topic_name, state.partition_index), state.leader_epoch, state.delete_partition)
        for topic in request.topic_states
        for state in topic.partition_states
    ]
    return [*flat, *by_topic, *states]


def stop_replica_response(answers: Mapping[TopicPartition, ErrorCode]) -> StopReplicaResponse:
    """Answer a StopReplica request."""
    return StopReplicaResponse(
        partition_errors=[
            StopReplicaPartitionError(
                topic_name=partition.topic, partition_index=partition.partition, error_code=int(code)
            )
            for partition, code in answers.items()
        ]
    )
