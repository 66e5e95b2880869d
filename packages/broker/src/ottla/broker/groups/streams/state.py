"""The state of a streams group: what its records say, which only replay changes, and what no record says.

Empty        no member
NotReady     the topics are not as the topology needs them
Assigning    the group epoch is ahead of the target assignment
Reconciling  a member has not got to its target
Stable       every member has its target
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Final

from ottla.broker.groups.assigned.topics import add
from ottla.broker.groups.kinds import KindRecord
from ottla.broker.groups.streams.members import Holders, MemberState, StreamsMember
from ottla.broker.groups.streams.records import (
    GroupFacts,
    read_facts,
    read_target,
    read_topology,
    with_metadata,
    with_tasks,
    without_tasks,
)
from ottla.broker.groups.streams.sticky_assignor import TaskOffsets
from ottla.broker.groups.streams.tasks import Tasks
from ottla.broker.groups.streams.topic_configuration import ConfiguredTopology
from ottla.broker.groups.streams.topology import UNKNOWN_EPOCH, Topology
from ottla.protocol.errors import InvalidRequest
from ottla.protocol.messages.streams_group_describe import TaskOffset
from ottla.protocol.messages.streams_groups import EndpointToPartitions
from ottla.protocol.stored_groups import (
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
from ottla.zookeeper.frozen_classes import frozen

FIRST_EPOCH: Final = 1
"""The group epoch and the assignment epoch of a group that no member has joined yet."""


class StreamsGroupState(Enum):
    """The states of a streams group, by the names that clients see."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@frozen
class MemberOffsets:
    """The offsets that a member last reported of its tasks, and the ends of their changelogs."""

    offsets: TaskOffsets
    end_offsets: TaskOffsets


NO_MEMBER_OFFSETS: Final = MemberOffsets({}, {})


def reported(offsets: Iterable[TaskOffset]) -> TaskOffsets:
    """Return the offsets of a heartbeat. Raises InvalidRequest where it names a task twice."""
    by_name: dict[str, dict[int, int]] = {}
    for task in offsets:
        of_name = by_name.setdefault(task.subtopology_id, {})
        if task.partition in of_name:
            raise InvalidRequest(
                f"Task offsets contain a duplicate entry for subtopology {task.subtopology_id} "
                f"and partition {task.partition}."
            )
        of_name[task.partition] = task.offset
    return by_name


class StreamsGroupData:
    """The data of one group. The fields of the second part are lost with the coordinator, as in Kafka."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.facts = GroupFacts(epoch=FIRST_EPOCH)
        self.topology: Topology | None = None
        self.members: dict[str, StreamsMember] = {}
        self.static_members: dict[str, str] = {}
        """Member id by instance id."""
        self.target: dict[str, Tasks] = {}
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp_ms = 0
        self.holders = Holders()
        self._stable_in: Counter[int] = Counter()
        """How many members have the tasks of their target, by their epoch."""
        self.is_stored = False
        """Whether the log has a record of the group."""

        self.configured: ConfiguredTopology | None = None
        self.task_offsets: dict[str, MemberOffsets] = {}
        self.shutdown_member_id: str | None = None
        """The member that asked for the shutdown of the application."""
        self.endpoint_epoch = 0
        self.endpoints: dict[str, EndpointToPartitions | None] = {}
        """The tasks that members with an endpoint answer queries for, by member id, as far as known."""
        self.topics_are_known = False
        """Whether the topics have not changed since they were last compared."""
        self.assigning: int | None = None
        """The number of the target assignment that is being made in more than a turn of the loop."""
        self._assignments_begun = 0

    # ---- reading

    @property
    def state(self) -> StreamsGroupState:
        """The present state."""
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.facts.validated_topology_epoch:
            return StreamsGroupState.NOT_READY
        if self.facts.epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        if self._stable_in[self.assignment_epoch] == len(self.members):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    @property
    def topology_epoch(self) -> int:
        """The epoch of the topology; -1 without one."""
        return UNKNOWN_EPOCH if self.topology is None else self.topology.epoch

    def static_member(self, instance_id: str) -> StreamsMember | None:
        """Return the member of a static instance, or None."""
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def begin_assignment(self) -> int:
        """Number a target assignment that is made in more than a turn of the loop; another one is void."""
        self._assignments_begun += 1
        self.assigning = self._assignments_begun
        return self.assigning

    def configure(self, configured: ConfiguredTopology) -> None:
        """Take over the topology as the topics of the cluster allow it."""
        self.configured = configured
        self.endpoints.clear()

    # ---- replaying

    def replay(self, record: KindRecord) -> None:
        """Apply one record of the log."""
        match record.key:
            case StreamsGroupMetadataKey():
                self._replay_facts(record)
            case StreamsGroupTopologyKey():
                value = record.value
                is_set = isinstance(value, StreamsGroupTopologyValue)
                self.topology = read_topology(value) if is_set else None  # type: ignore[arg-type]
            case StreamsGroupTargetAssignmentMetadataKey():
                self._replay_assignment(record)
            case StreamsGroupMemberMetadataKey(member_id=member_id):
                self._replay_member(member_id, record)
            case StreamsGroupTargetAssignmentMemberKey(member_id=member_id):
                if isinstance(record.value, StreamsGroupTargetAssignmentMemberValue):
                    self.target[member_id] = read_target(record.value)
                else:
                    self.target.pop(member_id, None)
            case StreamsGroupCurrentMemberAssignmentKey(member_id=member_id):
                self._replay_tasks(member_id, record)

    def _replay_facts(self, record: KindRecord) -> None:
        if isinstance(record.value, StreamsGroupMetadataValue):
            self.facts = read_facts(record.value)
            self.is_stored = True
        else:
            self.facts = GroupFacts(epoch=FIRST_EPOCH)
            self.is_stored = False

    def _replay_assignment(self, record: KindRecord) -> None:
        if isinstance(record.value, StreamsGroupTargetAssignmentMetadataValue):
            self.assignment_epoch = record.value.assignment_epoch
            self.assignment_timestamp_ms = record.value.assignment_timestamp
        else:
            self.assignment_epoch, self.assignment_timestamp_ms = FIRST_EPOCH, 0

    def _replay_member(self, member_id: str, record: KindRecord) -> None:
        if isinstance(record.value, StreamsGroupMemberMetadataValue):
            self._update(with_metadata(self._member(member_id), record.value))
        else:
            self._remove(member_id)

    def _replay_tasks(self, member_id: str, record: KindRecord) -> None:
        if isinstance(record.value, StreamsGroupCurrentMemberAssignmentValue):
            self._update(with_tasks(self._member(member_id), record.value))
        elif member_id in self.members:
            self._update(without_tasks(self.members[member_id]))

    def _member(self, member_id: str) -> StreamsMember:
        return self.members.get(member_id) or StreamsMember(id=member_id)

    def _update(self, member: StreamsMember) -> None:
        self._forget_holder(self.members.get(member.id))
        self.members[member.id] = member
        self._count(member, 1)
        self.holders.add(member)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.id
        self.endpoints.pop(member.id, None)

    def _count(self, member: StreamsMember, by: int) -> None:
        if member.state is MemberState.STABLE:
            add(self._stable_in, (member.epoch,), by)

    def _remove(self, member_id: str) -> None:
        self._forget_holder(self.members.pop(member_id, None))
        self.endpoints.pop(member_id, None)
        self.task_offsets.pop(member_id, None)
        if not self.members:
            self.shutdown_member_id = None

    def _forget_holder(self, member: StreamsMember | None) -> None:
        if member is None:
            return
        self._count(member, -1)
        self.holders.remove(member)
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.id:
            del self.static_members[member.instance_id]
