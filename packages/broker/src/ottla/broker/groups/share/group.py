"""A share group (KIP-932): its members, their partitions, and the partitions whose state is initialized.

Members take part by heartbeats. A change of members, subscriptions or topics begins a group epoch; for it a
target assignment is made, which each member gets with its next heartbeat. Nothing is revoked before: several
members may read a partition. Only partitions whose state the share coordinator has begun are assigned:

    unknown -> initializing (a heartbeat asks for it) -> initialized -> assigned in the next epoch

`step` returns records and changes nothing but deadlines; `replay` of these records changes the group.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.coordinators.timers import Deadlines
from ottla.broker.groups.assigned.assignors import AssignmentPart, in_parts
from ottla.broker.groups.assigned.topics import GroupTopics, kept_once
from ottla.broker.groups.early_heartbeats import GroupMotion
from ottla.broker.groups.kinds import (
    ExpiryRule,
    GroupKind,
    KindRecord,
    Loaded,
    NotWritten,
    Removed,
    Reply,
    StepOutcome,
    TimePassed,
    Unloaded,
    Work,
    WorkFailed,
)
from ottla.broker.groups.share.assignor import Assignment
from ottla.broker.groups.share.events import (
    JOINING,
    LEAVING,
    OffsetsChange,
    OffsetsDeleted,
    ShareAnswer,
    ShareHeartbeat,
    StateInitialized,
)
from ottla.broker.groups.share.members import (
    NOTHING,
    ShareMember,
    assignment_record,
    epoch_record,
    member_record,
    member_tombstones,
    partitions_of,
    target_epoch_record,
    target_record,
)
from ottla.broker.groups.share.partition_states import PartitionStates
from ottla.broker.groups.share.settings import ShareGroupIntervals, intervals_of
from ottla.broker.groups.share.target_assignments import Coverage, changed_targets
from ottla.broker.runtime.loop_budget import LONG, SLICE, at_once
from ottla.protocol import stored_groups as stored
from ottla.protocol.errors import (
    ErrorCode,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    NonEmptyGroup,
    UnknownMemberId,
)
from ottla.zookeeper.frozen_classes import replace

if TYPE_CHECKING:
    from ottla.broker.groups.kinds import GroupSurroundings
    from ottla.protocol.topics import TopicPartition

FIRST_EPOCH: Final = 1
"""The epoch of a group that has begun none."""
RETRY_MS: Final = 500
MANY_PARTITIONS: Final = 1_000
"""Partitions from which on an assignment is made in steps."""


class ShareGroupState(Enum):
    """The states of a share group, by the names that clients see."""

    EMPTY = "Empty"
    STABLE = "Stable"


class ShareGroup:
    """One share group."""

    kind = GroupKind.SHARE
    protocol_type = "share"

    def __init__(self, group_id: str, surroundings: GroupSurroundings) -> None:
        self.group_id = group_id
        self.surroundings = surroundings
        self.topics = GroupTopics(surroundings.metadata)
        self.epoch = FIRST_EPOCH
        self.assignment_epoch = FIRST_EPOCH
        self.assigned_at_ms = 0
        self.metadata_hash = 0
        self._is_stored = False
        """Whether the log has an epoch of the group."""
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Assignment] = {}
        self._coverage = Coverage()
        self._is_covered: bool | None = None
        """Whether all that is initialized and read is a target; None once it may have changed."""
        self._assigns = False
        """Whether a target assignment is being made in steps."""
        self.partitions = PartitionStates(group_id, self.topics)
        self.deadlines: Deadlines[str] = Deadlines()
        self._due: list[str] = []
        self._motion = GroupMotion(surroundings.early())
        self._has_compared_topics = False

    # ---- facts

    @property
    def state(self) -> ShareGroupState:
        """The present state."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def member_count(self) -> int:
        """How many members the group has."""
        return len(self.members)

    @property
    def is_empty(self) -> bool:
        """Whether the group has no member, so that it may be deleted."""
        return not self.members

    @property
    def is_unused(self) -> bool:
        """Whether the log has no record of the group."""
        return not self._is_stored and not self.members and not self.partitions.is_stored

    @property
    def may_expire(self) -> bool:
        """Whether the group goes without offsets: it commits none, and stays."""
        return False

    @property
    def wake_at_ms(self) -> float | None:
        """When the session of a member may have ended."""
        return self.deadlines.next_ms()

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members may consume `topic`."""
        return topic in self._coverage.readers

    def expiry_rule(self) -> ExpiryRule | None:
        """Return None: there are no committed offsets."""
        return None

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        instance_id: str | None,
        now_ms: float,
        *,
        transactional: bool = False,
        version: int = 0,
        partitions: Collection[TopicPartition] = (),
    ) -> ErrorCode:
        """Refuse: a share group commits no offsets."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Refuse: a share group has no committed offsets."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_offset_delete(self) -> ErrorCode:
        """Refuse: a share group has no committed offsets."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    @property
    def settings(self) -> ShareGroupIntervals:
        """The settings of the group, which may change at any time."""
        return intervals_of(self.surroundings.config, self.surroundings.group_settings(self.group_id))

    # ---- steps

    def step(self, event: Any, now_ms: float, wall_ms: int) -> StepOutcome:
        """Process one event, and return what the caller must do. Raises KafkaError to refuse a request."""
        match event:
            case ShareHeartbeat():
                return self._heartbeat(event, now_ms, wall_ms)
            case StateInitialized():
                return self._state_initialized(event)
            case OffsetsChange():
                return self._change_offsets(event)
            case OffsetsDeleted():
                return self._offsets_deleted(event)
            case AssignmentPart():
                return self._assigned(event, wall_ms)
            case WorkFailed():
                self._assigns = False
            case TimePassed():
                self._due = self.deadlines.due(now_ms, SLICE)
                gone = [self.members[member_id] for member_id in self._due if member_id in self.members]
                return self._without(gone) if gone else StepOutcome()
            case NotWritten():
                self._has_compared_topics = False  # the epoch of changed topics may be lost
                for member_id in self._due:
                    self.deadlines.set(member_id, now_ms + RETRY_MS)
            case Loaded():
                session_timeout_ms = self.settings.session_timeout_ms
                for member_id in self.members:
                    self.deadlines.set(member_id, now_ms + session_timeout_ms)
            case Unloaded() | Removed():
                self.deadlines = Deadlines()
        return StepOutcome()

    def _heartbeat(self, event: ShareHeartbeat, now_ms: float, wall_ms: int) -> StepOutcome:
        if event.epoch == LEAVING:
            outcome = self._without([self._member(event.member_id)])
            outcome.replies.append(Reply(event.token, ShareAnswer(event.member_id, LEAVING)))
            return outcome
        member = self._joined(event)
        updated = _updated(member, event)
        outcome = StepOutcome()
        if updated != self.members.get(event.member_id):
            outcome.records.append(member_record(self.group_id, updated))
        has_changed = updated.topics != member.topics or event.member_id not in self.members
        epoch = self._begin_epoch(updated, has_changed, outcome)
        target_epoch, target = self._assign(updated, epoch, wall_ms, outcome)
        reconciled = self._reconciled(updated, target_epoch, target, has_changed)
        if reconciled != updated or event.member_id not in self.members:
            outcome.records.append(assignment_record(self.group_id, reconciled))
        self.deadlines.set(event.member_id, now_ms + self.settings.session_timeout_ms)
        to_initialize = self._to_initialize(updated, now_ms, outcome)
        shows = event.epoch == JOINING or event.topics is not None or reconciled.assigned != member.assigned
        answer = ShareAnswer(
            event.member_id,
            reconciled.epoch,
            self._motion.interval_ms(
                self.settings.heartbeat_interval_ms,
                now_ms,
                stored_epoch=self.epoch,
                epoch=epoch,
                waits=reconciled.epoch != epoch or bool(to_initialize),
            ),
            reconciled.assigned if shows else None,
            epoch,
            to_initialize,
        )
        outcome.replies.append(Reply(event.token, answer))
        return outcome

    def _joined(self, event: ShareHeartbeat) -> ShareMember:
        """Return the member of a heartbeat, a new one for an unknown one that joins. Raises KafkaError."""
        present = self.members.get(event.member_id)
        if present is None and event.epoch == JOINING:
            most = self.surroundings.config.group_share_max_size
            if len(self.members) >= most:
                raise GroupMaxSizeReached(
                    f"The share group has reached its maximum capacity of {most} members."
                )
            return ShareMember(member_id=event.member_id)
        member = self._member(event.member_id)
        if event.epoch in (JOINING, member.epoch, member.previous_epoch) and event.epoch <= member.epoch:
            return member
        raise FencedMemberEpoch(
            f"The share group member has another member epoch ({event.epoch}) than the one known by the "
            f"group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
        )

    def _member(self, member_id: str) -> ShareMember:
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def _begin_epoch(self, updated: ShareMember, has_changed: bool, outcome: StepOutcome) -> int:
        """Begin a group epoch where one is due; return the epoch."""
        is_due = has_changed or (self.assignment_epoch >= self.epoch and self._has_unassigned())
        if not is_due and self._has_compared_topics:
            return self.epoch
        metadata_hash = self.topics.hash_of(self._topics_with(updated))
        self._has_compared_topics = True
        if not is_due and metadata_hash == self.metadata_hash:
            return self.epoch
        outcome.records.append(epoch_record(self.group_id, self.epoch + 1, metadata_hash))
        outcome.rebalanced += 1
        return self.epoch + 1

    def _has_unassigned(self) -> bool:
        """Whether partitions are initialized that members subscribe to, and that are no target."""
        if self._is_covered is None:
            readers = self._coverage.readers
            self._is_covered = all(
                self.topics.name_of(topic) not in readers or self._coverage.is_target_of_any(topic, numbers)
                for topic, numbers in self.partitions.initialized.items()
            )
        return not self._is_covered

    def _topics_with(self, updated: ShareMember) -> set[str]:
        return self._coverage.topics_with(self.members.get(updated.member_id), updated)

    def _assign(
        self, updated: ShareMember, epoch: int, wall_ms: int, outcome: StepOutcome
    ) -> tuple[int, Assignment]:
        """Make the target assignment of a new epoch; return the present one of the member."""
        last = self.assignment_epoch, self.targets.get(updated.member_id, NOTHING)
        interval_ms = self.settings.assignment_interval_ms
        may_assign = not self.assigned_at_ms or wall_ms >= self.assigned_at_ms + interval_ms
        if epoch <= self.assignment_epoch or self._assigns or not may_assign:
            return last
        members = {**self.members, updated.member_id: updated}
        steps = changed_targets(members, self.topics, self.partitions.initialized, self.targets.copy())
        if len(members) > LONG or sum(map(len, self.partitions.initialized.values())) > MANY_PARTITIONS:
            self._assigns = True
            outcome.work.append(
                Work("assign-shares", lambda: steps, lambda changed: in_parts(changed, epoch))
            )
            return last
        changed = at_once(steps)
        outcome.records += [
            target_record(self.group_id, member_id, target) for member_id, target in changed.items()
        ]
        outcome.records.append(target_epoch_record(self.group_id, epoch, wall_ms))
        return epoch, changed.get(updated.member_id, last[1])

    def _assigned(self, part: AssignmentPart, wall_ms: int) -> StepOutcome:
        """Store a part of a target assignment; members that left meanwhile get none."""
        records = [
            target_record(self.group_id, member_id, target)
            for member_id, target in part.targets
            if member_id in self.members
        ]
        if part.epoch is not None:
            self._assigns = False
            if part.epoch > self.assignment_epoch:
                records.append(target_epoch_record(self.group_id, part.epoch, wall_ms))
        return StepOutcome(records)

    def _reconciled(
        self, member: ShareMember, target_epoch: int, target: Assignment, has_changed: bool
    ) -> ShareMember:
        if member.epoch == target_epoch and not has_changed:
            return member
        read = self.topics.ids_of(member.topics)
        assigned = {topic: numbers for topic, numbers in target.items() if topic in read}
        if member.epoch == target_epoch:
            return replace(member, assigned=assigned)
        return replace(member, epoch=target_epoch, previous_epoch=member.epoch, assigned=assigned)

    def _without(self, gone: Collection[ShareMember]) -> StepOutcome:
        """Remove members, and begin a group epoch."""
        outcome = StepOutcome(rebalanced=1)
        for member in gone:
            outcome.records += member_tombstones(self.group_id, member.member_id)
        left = {member.member_id for member in gone}
        names = self._coverage.topics_without(gone)
        outcome.records.append(epoch_record(self.group_id, self.epoch + 1, self.topics.hash_of(names)))
        if left.issuperset(self.members):
            outcome.records.append(target_epoch_record(self.group_id, self.epoch + 1, 0))
        return outcome

    # ---- the state of partitions

    def _to_initialize(self, updated: ShareMember, now_ms: float, outcome: StepOutcome) -> Assignment:
        """Return the partitions whose state has to begin, and record that it was asked for."""
        before = self.members.get(updated.member_id)
        if before is None or before.topics != updated.topics:
            missing = self.partitions.uninitialized(self._topics_with(updated))
        else:
            missing = self.partitions.uninitialized_of_members(self._coverage.readers)
        retry_ms = self.surroundings.config.group_share_initialize_retry_interval_ms
        wanted = self.partitions.ask_for(missing, now_ms, retry_ms)
        outcome.records += self.partitions.begin(wanted)
        return wanted

    def _state_initialized(self, event: StateInitialized) -> StepOutcome:
        self.partitions.answered(event.partitions)
        records = [] if event.has_failed else self.partitions.begun(event.partitions)
        return StepOutcome(records, [Reply(event.token, None)])

    # ---- offsets

    def _change_offsets(self, event: OffsetsChange) -> StepOutcome:
        """Record the partitions whose state begins. Raises NonEmptyGroup.

        The epoch has risen since the last member left, which fences the leaders that serve the former state.
        """
        self._check_empty()
        return StepOutcome(self.partitions.begin(event.partitions), [Reply(event.token, self.epoch)])

    def _offsets_deleted(self, event: OffsetsDeleted) -> StepOutcome:
        self._check_empty()
        return StepOutcome(self.partitions.deleted(event.topics), [Reply(event.token, None)])

    def _check_empty(self) -> None:
        if self.members:
            raise NonEmptyGroup(f"The group {self.group_id} has members.")

    # ---- topics and records

    def topics_changed(self, names: Set[str] | Collection[str]) -> None:
        """Compare the topics with the next heartbeat, if members read one of these."""
        if any(self.is_subscribed_to(name) for name in names):
            self.topics.forget_hashes(names)
            self._has_compared_topics = False
            self.partitions.readers_changed()
            self._is_covered = None

    def tombstones(self) -> list[KindRecord]:
        """Return the records that delete the group from the log."""
        records = [
            tombstone
            for member_id in self.members
            for tombstone in member_tombstones(self.group_id, member_id)
        ]
        records += self.partitions.tombstones()
        keys = (stored.ShareGroupTargetAssignmentMetadataKey, stored.ShareGroupMetadataKey)
        records += [KindRecord(self.group_id, key(group_id=self.group_id), None) for key in keys]
        return records

    def replay(self, record: KindRecord) -> None:
        """Apply one record of the log."""
        key: Any = record.key
        value: Any = record.value
        match key:
            case stored.ShareGroupMetadataKey():
                self._is_stored = value is not None
                self.epoch = FIRST_EPOCH if value is None else value.epoch
                self.metadata_hash = 0 if value is None else value.metadata_hash
            case stored.ShareGroupMemberMetadataKey():
                self._replay_member(key.member_id, value)
            case stored.ShareGroupTargetAssignmentMetadataKey():
                self.assignment_epoch = FIRST_EPOCH if value is None else value.assignment_epoch
                self.assigned_at_ms = 0 if value is None else value.assignment_timestamp
            case stored.ShareGroupTargetAssignmentMemberKey():
                before = self.targets.pop(key.member_id, NOTHING)
                if value is not None:
                    self.targets[key.member_id] = partitions_of(value.topic_partitions)
                self._coverage.assigned(before, self.targets.get(key.member_id, NOTHING))
                self._is_covered = None
            case stored.ShareGroupCurrentMemberAssignmentKey():
                self._replay_assignment(key.member_id, value)
            case stored.ShareGroupStatePartitionMetadataKey():
                self.partitions.replay(value)
                self._is_covered = None

    def _replay_member(self, member_id: str, value: Any) -> None:
        before = self.members.get(member_id)
        if value is None:
            self.members.pop(member_id, None)
            self.deadlines.cancel(member_id)
        else:
            self.members[member_id] = replace(
                before or ShareMember(member_id=member_id),
                rack_id=value.rack_id,
                client_id=value.client_id,
                client_host=value.client_host,
                topics=kept_once(value.subscribed_topic_names),
            )
        if self._coverage.read(before, self.members.get(member_id)):
            self.partitions.readers_changed()
            self._is_covered = None

    def _replay_assignment(self, member_id: str, value: Any) -> None:
        member = self.members.get(member_id) or ShareMember(member_id=member_id)
        if value is not None:
            self.members[member_id] = replace(
                member,
                epoch=value.member_epoch,
                previous_epoch=value.previous_member_epoch,
                assigned=partitions_of(value.assigned_partitions),
            )
        elif member_id in self.members:
            self.members[member_id] = replace(member, epoch=0, previous_epoch=0, assigned=NOTHING)


def _updated(member: ShareMember, event: ShareHeartbeat) -> ShareMember:
    """Return the member with what its heartbeat changes."""
    return replace(
        member,
        rack_id=member.rack_id if event.rack_id is None else event.rack_id,
        topics=member.topics if event.topics is None else event.topics,
        client_id=event.client_id,
        client_host=event.client_host,
    )


def new_group(group_id: str, surroundings: GroupSurroundings) -> ShareGroup:
    """Make an empty group."""
    return ShareGroup(group_id, surroundings)
