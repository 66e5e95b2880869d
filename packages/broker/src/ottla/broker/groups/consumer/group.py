"""A consumer group of the consumer protocol (KIP-848): its state, which only records change, and deadlines.

The coordinator assigns partitions; members take part by heartbeats. Three epochs rise with what changes:

    group epoch        members, subscriptions or their topics have changed
    assignment epoch   the group epoch for which the target assignment was made
    member epoch       the assignment epoch to which the member has come

`heartbeats.py` decides on requests, `reconciliation.py` on the way of a member to its target,
`classic_members.py` on requests of the classic protocol. They return records and change nothing but
deadlines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.coordinators.timers import Deadlines
from ottla.broker.groups.assigned.assignors import AssignmentPart
from ottla.broker.groups.classic.events import Heartbeat, Join, Leave, Sync
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.consumer.expressions import ExpressionsResolved
from ottla.broker.groups.consumer.heartbeats import ConsumerHeartbeat, Heartbeats
from ottla.broker.groups.consumer.members import ConsumerMember, MemberState, Wait
from ottla.broker.groups.consumer.stored_group import StoredConsumerGroup
from ottla.broker.groups.consumer.subscriptions import Subscriptions, assignor_of
from ottla.broker.groups.consumer.target_assignments import ASSIGN, TargetAssignments
from ottla.broker.groups.kinds import (
    GroupKind,
    KindRecord,
    Loaded,
    NotWritten,
    Removed,
    StepOutcome,
    Succeeded,
    TimePassed,
    Unloaded,
    WorkFailed,
)
from ottla.broker.runtime.loop_budget import SLICE
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.groups.kinds import GroupSurroundings, HostableGroup
    from ottla.protocol.topics import TopicPartition

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
RETRY_MS: Final = 500
_EPOCHS_FROM: Final = 9
"""The first version of OffsetCommit that members of this protocol may use."""
_TOPICS_FOR_ONE: Final = 16
"""Topics that cost as much as one member when it is removed."""


class ConsumerGroup(StoredConsumerGroup):
    """One group. `replay` changes the stored part, `step` nothing but deadlines."""

    kind = GroupKind.CONSUMER
    protocol_type = CONSUMER_PROTOCOL_TYPE

    def __init__(self, group_id: str, surroundings: GroupSurroundings) -> None:
        super().__init__(group_id, surroundings)
        self._due: list[tuple[Wait, str]] = []
        self._subscriptions = Subscriptions(self)
        self._targets = TargetAssignments(self)
        self._heartbeats = Heartbeats(self, self._subscriptions, self._targets)

    @property
    def assignor(self) -> str:
        """The assignor that makes the target assignments."""
        return assignor_of(self)

    # ---- offsets

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
        """Return whether this member may commit offsets now.

        In an older epoch it may, of partitions that it has had since then (KIP-1251).
        """
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        if transactional and epoch < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not transactional and member.classic is None and version < _EPOCHS_FROM:
            return ErrorCode.UNSUPPORTED_VERSION
        if epoch == member.epoch or (epoch < member.epoch and self._has_since(member, epoch, partitions)):
            return ErrorCode.NONE
        return _stale(member)

    def _has_since(self, member: ConsumerMember, epoch: int, partitions: Iterable[TopicPartition]) -> bool:
        for partition in partitions:
            topic_id = self.topics.id_of(partition.topic)
            since = None if topic_id is None else member.assigned_epoch(topic_id, partition.partition)
            if since is None or epoch < since:
                return False
        return True

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Return whether this member may fetch offsets now."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_epoch == member.epoch else _stale(member)

    def check_offset_delete(self) -> ErrorCode:
        """Return NONE: offsets of topics that no member reads may always be deleted."""
        return ErrorCode.NONE

    # ---- steps

    def step(self, event: Any, now_ms: float, wall_ms: int) -> StepOutcome:
        """Process one event, and return what the caller must do. Raises KafkaError to refuse a request."""
        match event:
            case ConsumerHeartbeat():
                return self._heartbeats.heartbeat(event, now_ms, wall_ms)
            case Join() | Sync() | Heartbeat() | Leave():
                return self._classic_request(event, now_ms, wall_ms)
            case ExpressionsResolved():
                return self._subscriptions.resolved(event)
            case AssignmentPart():
                return self._targets.assigned(event, wall_ms)
            case TimePassed():
                return self._time_passed(now_ms, wall_ms)
            case WorkFailed(name=name):
                self._work_failed(name)
            case NotWritten():
                self.resolved_version = None
                for key in self._due:
                    self.deadlines.set(key, now_ms + RETRY_MS)
            case Loaded():
                self._loaded(now_ms)
            case Unloaded() | Removed() | Succeeded():
                self.deadlines = Deadlines()
        return StepOutcome()

    def _work_failed(self, name: str) -> None:
        if name == ASSIGN:
            self.assigns = False
        else:
            self.resolves = False

    def _classic_request(
        self, event: Join | Sync | Heartbeat | Leave, now_ms: float, wall_ms: int
    ) -> StepOutcome:
        from ottla.broker.groups.consumer.classic_members import ClassicMembers

        return ClassicMembers(self, self._heartbeats, self._subscriptions, self._targets).request(
            event, now_ms, wall_ms
        )

    def _time_passed(self, now_ms: float, wall_ms: int) -> StepOutcome:
        """Remove members whose time is over; of many, or of some that read much, the others stay due."""
        self._due, cost = [], 0
        fenced: dict[str, ConsumerMember] = {}
        while cost < SLICE and (due := self.deadlines.due(now_ms, 1)):
            self._due += due
            ((wait, member_id),) = due
            member = self.members.get(member_id)
            cost += 1
            if member is None:
                continue
            if wait is not Wait.REBALANCE or self.revokes_in.get(member_id) == member.epoch:
                fenced[member_id] = member
                cost += (len(member.topics) + len(member.assigned)) // _TOPICS_FOR_ONE
        return self._heartbeats.fence(fenced.values(), now_ms, wall_ms) if fenced else StepOutcome()

    def _loaded(self, now_ms: float) -> None:
        for member in self.members.values():
            self._heartbeats.expect(member, now_ms)
            if member.classic is not None:
                continue  # a heartbeat begins the time in which it must join
            self.unconfirmed.add(member.member_id)  # an answer of the last coordinator may be lost
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                self.expect_revocation(member, now_ms)

    def topics_changed(self, names: Set[str]) -> None:
        """Compare the topics with the next heartbeat, if members read one of these."""
        if self.readers.read_one_of(names):
            self.topics.forget_hashes(names)
            self.checked_epoch = None


def _stale(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def new_group(group_id: str, surroundings: GroupSurroundings) -> ConsumerGroup:
    """Make an empty group."""
    return ConsumerGroup(group_id, surroundings)


def successor_of(
    classic: HostableGroup, surroundings: GroupSurroundings
) -> tuple[ConsumerGroup, list[KindRecord]]:
    """Make the consumer group that a classic group becomes, and its records. Raises GroupIdNotFound."""
    from ottla.broker.groups.consumer.migration import refuse_upgrade, upgrade_records

    assert isinstance(classic, Group)
    config = surroundings.config
    refuse_upgrade(classic, config.group_consumer_migration_policy.lower(), config.group_consumer_max_size)
    group = ConsumerGroup(classic.group_id, surroundings)
    records = upgrade_records(classic, group.topics)
    for record in records:
        group.replay(record)
    return group, records
