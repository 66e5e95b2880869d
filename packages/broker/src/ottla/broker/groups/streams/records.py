"""The records of streams groups in `__consumer_offsets`, made from a group's state and read back into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from ottla.broker.groups.kinds import KindRecord, tombstones_of_member
from ottla.broker.groups.streams.members import Endpoint, MemberState, StreamsMember
from ottla.broker.groups.streams.tasks import ActiveTasks, HeldTasks, Tasks, TaskSets, task_sets
from ottla.broker.groups.streams.topology import Topology, restored, stored
from ottla.protocol.messages.streams_group_describe import Endpoint as StoredEndpoint
from ottla.protocol.messages.streams_group_describe import KeyValue, TaskIds
from ottla.protocol.stored_groups import (
    AssignedTaskIds,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)
from ottla.zookeeper.frozen_classes import frozen, replace

V = TypeVar("V")

NO_EPOCH = -1


@frozen(kw_only=True)
class GroupFacts:
    """The facts about a group that its metadata record stores."""

    epoch: int = 1
    metadata_hash: int = 0
    validated_topology_epoch: int = NO_EPOCH
    assignment_configs: tuple[tuple[str, str], ...] = ()
    """The settings of the last assignment, sorted by key."""
    stored_description_epoch: int = NO_EPOCH
    failed_description_epoch: int = NO_EPOCH


# ---- writing


def group_record(group_id: str, facts: GroupFacts) -> KindRecord:
    """Return the record of a group's epoch and what it was made of."""
    value = StreamsGroupMetadataValue(
        epoch=facts.epoch,
        metadata_hash=facts.metadata_hash,
        validated_topology_epoch=facts.validated_topology_epoch,
        last_assignment_configs=_stored_pairs(facts.assignment_configs),
        stored_description_topology_epoch=facts.stored_description_epoch,
        failed_description_topology_epoch=facts.failed_description_epoch,
    )
    return KindRecord(group_id, StreamsGroupMetadataKey(group_id=group_id), value)


def topology_record(group_id: str, topology: Topology) -> KindRecord:
    """Return the record of a group's topology."""
    value = StreamsGroupTopologyValue(epoch=topology.epoch, subtopologies=stored(topology))
    return KindRecord(group_id, StreamsGroupTopologyKey(group_id=group_id), value)


def member_record(group_id: str, member: StreamsMember) -> KindRecord:
    """Return the record of what a member said of itself."""
    endpoint = member.user_endpoint
    value = StreamsGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=endpoint and StoredEndpoint(host=endpoint.host, port=endpoint.port),
        client_tags=_stored_pairs(member.client_tags),
    )
    return KindRecord(group_id, StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member.id), value)


def assignment_record(group_id: str, epoch: int, timestamp_ms: int) -> KindRecord:
    """Return the record of the epoch that the target assignment is for, and of the time it was made."""
    value = StreamsGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=timestamp_ms
    )
    return KindRecord(group_id, StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def target_record(group_id: str, member_id: str, target: Tasks) -> KindRecord:
    """Return the record of the tasks that a member shall have."""
    value = StreamsGroupTargetAssignmentMemberValue(
        active_tasks=task_ids(target.active),
        standby_tasks=task_ids(target.standby),
        warmup_tasks=task_ids(target.warmup),
    )
    key = StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return KindRecord(group_id, key, value)


def current_record(group_id: str, member: StreamsMember) -> KindRecord:
    """Return the record of the tasks that a member has, and of those that it must give up."""
    held, pending = member.assigned, member.pending_revocation
    value = StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        active_tasks=_stored_active(held.active),
        standby_tasks=_stored_sets(held.standby),
        warmup_tasks=_stored_sets(held.warmup),
        active_tasks_pending_revocation=_stored_active(pending.active),
        standby_tasks_pending_revocation=_stored_sets(pending.standby),
        warmup_tasks_pending_revocation=_stored_sets(pending.warmup),
    )
    key = StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.id)
    return KindRecord(group_id, key, value)


def member_tombstones(group_id: str, member_id: str) -> list[KindRecord]:
    """Return the records that take a member out."""
    return tombstones_of_member(
        group_id,
        member_id,
        StreamsGroupCurrentMemberAssignmentKey,
        StreamsGroupTargetAssignmentMemberKey,
        StreamsGroupMemberMetadataKey,
    )


def group_tombstones(group_id: str, member_ids: Iterable[str]) -> list[KindRecord]:
    """Return the records that delete a group."""
    members = [record for member_id in member_ids for record in member_tombstones(group_id, member_id)]
    return members + [
        KindRecord(group_id, key(group_id=group_id), None)
        for key in (
            StreamsGroupTargetAssignmentMetadataKey,
            StreamsGroupMetadataKey,
            StreamsGroupTopologyKey,
        )
    ]


def task_ids(sets: TaskSets) -> list[TaskIds]:
    """Return tasks as messages name them, sorted."""
    return [TaskIds(subtopology_id=name, partitions=sorted(sets[name])) for name in sorted(sets)]


def _stored_pairs(pairs: Iterable[tuple[str, str]]) -> list[KeyValue]:
    return [KeyValue(key=key, value=value) for key, value in pairs]


def _stored_sets(sets: TaskSets) -> list[AssignedTaskIds]:
    return [
        AssignedTaskIds(subtopology_id=name, partitions=sorted(sets[name]), assignment_epochs=[])
        for name in sorted(sets)
    ]


def _stored_active(active: ActiveTasks) -> list[AssignedTaskIds]:
    return [
        AssignedTaskIds(
            subtopology_id=name,
            partitions=(partitions := sorted(active[name])),
            assignment_epochs=[active[name][partition] for partition in partitions],
        )
        for name in sorted(active)
    ]


# ---- reading


def read_facts(value: StreamsGroupMetadataValue) -> GroupFacts:
    """Return the facts of a group's metadata record."""
    return GroupFacts(
        epoch=value.epoch,
        metadata_hash=value.metadata_hash,
        validated_topology_epoch=value.validated_topology_epoch,
        assignment_configs=_pairs(value.last_assignment_configs or ()),
        stored_description_epoch=value.stored_description_topology_epoch,
        failed_description_epoch=value.failed_description_topology_epoch,
    )


def read_topology(value: StreamsGroupTopologyValue) -> Topology:
    """Return the topology of a record."""
    return restored(value.epoch, value.subtopologies)


def with_metadata(member: StreamsMember, value: StreamsGroupMemberMetadataValue) -> StreamsMember:
    """Return the member with what its record says it said of itself."""
    endpoint = value.user_endpoint
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topology_epoch=value.topology_epoch,
        process_id=value.process_id,
        user_endpoint=endpoint and Endpoint(endpoint.host, endpoint.port),
        client_tags=_pairs(value.client_tags),
    )


def with_tasks(member: StreamsMember, value: StreamsGroupCurrentMemberAssignmentValue) -> StreamsMember:
    """Return the member with the tasks of its record."""
    epoch = value.member_epoch
    return replace(
        member,
        epoch=epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state) if value.state in _STATES else MemberState.UNKNOWN,
        assigned=HeldTasks(
            _active(value.active_tasks, epoch), task_sets(value.standby_tasks), task_sets(value.warmup_tasks)
        ),
        pending_revocation=HeldTasks(
            _active(value.active_tasks_pending_revocation, epoch),
            task_sets(value.standby_tasks_pending_revocation),
            task_sets(value.warmup_tasks_pending_revocation),
        ),
    )


def without_tasks(member: StreamsMember) -> StreamsMember:
    """Return the member after the tombstone of its tasks."""
    return replace(
        member, epoch=NO_EPOCH, previous_epoch=NO_EPOCH, assigned=HeldTasks(), pending_revocation=HeldTasks()
    )


def read_target(value: StreamsGroupTargetAssignmentMemberValue) -> Tasks:
    """Return the tasks of a target record."""
    return Tasks(task_sets(value.active_tasks), task_sets(value.standby_tasks), task_sets(value.warmup_tasks))


_STATES = frozenset(MemberState)


def _pairs(stored_pairs: Iterable[KeyValue]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((pair.key, pair.value) for pair in stored_pairs))


def _active(named: Sequence[AssignedTaskIds], default_epoch: int) -> Mapping[str, Mapping[int, int]]:
    """Return active tasks; where there is not one epoch for each, they have that of the member."""
    active: dict[str, dict[int, int]] = {}
    for tasks in named:
        epochs = tasks.assignment_epochs or ()
        if len(epochs) != len(tasks.partitions):
            epochs = [default_epoch] * len(tasks.partitions)
        if tasks.partitions:
            active[tasks.subtopology_id] = dict(zip(tasks.partitions, epochs, strict=True))
    return active
