"""A streams group as its coordinator hosts it: heartbeats, leaving, deadlines, commits, and its lifetime."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.coordinators.timers import Deadlines
from ottla.broker.groups.early_heartbeats import GroupMotion
from ottla.broker.groups.kinds import (
    ExpiryRule,
    GroupKind,
    KindRecord,
    Loaded,
    NotWritten,
    Reply,
    StepOutcome,
    TimePassed,
    WorkFailed,
)
from ottla.broker.groups.streams.arrivals import require_instance
from ottla.broker.groups.streams.events import (
    AssignmentPart,
    GroupDeadlines,
    Heartbeat,
    HeartbeatResult,
    Leave,
    Wait,
)
from ottla.broker.groups.streams.heartbeats import HeartbeatStep, ask_for_shutdown
from ottla.broker.groups.streams.members import (
    LEAVE_GROUP_EPOCH,
    LEAVE_GROUP_STATIC_EPOCH,
    MemberState,
    StreamsMember,
)
from ottla.broker.groups.streams.records import (
    assignment_record,
    current_record,
    group_record,
    group_tombstones,
    member_tombstones,
)
from ottla.broker.groups.streams.settings import StreamsSettings, Topics, settings_of
from ottla.broker.groups.streams.state import StreamsGroupData, StreamsGroupState
from ottla.broker.groups.streams.target_assignment import assign, changed_targets, may_assign
from ottla.broker.groups.streams.tasks import NOTHING_HELD, ActiveTasks, HeldTasks
from ottla.broker.runtime.loop_budget import SLICE
from ottla.protocol.errors import ErrorCode, GroupIdNotFound, UnknownMemberId
from ottla.protocol.messages.streams_groups import StreamsGroupHeartbeatResponse
from ottla.protocol.stored_groups import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupMemberMetadataKey,
)
from ottla.zookeeper.frozen_classes import replace

if TYPE_CHECKING:
    from ottla.broker.groups.kinds import GroupSurroundings
    from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

PROTOCOL_TYPE: Final = "streams"
MEMBERS_COMMIT_FROM: Final = 9
"""The first version of OffsetCommit that carries a member epoch."""
RETRY_MS: Final = 1_000
"""How long a deadline waits whose records the log refused."""


def new_group(group_id: str, surroundings: GroupSurroundings) -> StreamsGroup:
    """Make a group without members."""
    return StreamsGroup(
        group_id,
        lambda: settings_of(surroundings.config, surroundings.group_settings(group_id)),
        Topics(surroundings.metadata),
        GroupMotion(surroundings.early()),
    )


class StreamsGroup:
    """One streams group. Only `replay` changes what the log stores of it."""

    kind: Final = GroupKind.STREAMS
    protocol_type: Final = PROTOCOL_TYPE

    def __init__(
        self, group_id: str, settings: Callable[[], StreamsSettings], topics: Topics, motion: GroupMotion
    ) -> None:
        """`settings` returns the present ones."""
        self.group_id = group_id
        self.data = StreamsGroupData(group_id)
        self._settings = settings
        self._topics = topics
        self._motion = motion
        self._deadlines: GroupDeadlines = Deadlines()
        self._fired: list[tuple[Wait, str]] = []
        """The deadlines of the last step, until its records are in the log."""

    # ---- reading

    @property
    def state(self) -> StreamsGroupState:
        """The present state."""
        return self.data.state

    @property
    def member_count(self) -> int:
        """The number of members."""
        return len(self.data.members)

    @property
    def is_empty(self) -> bool:
        """Whether the group has no member, so that it may be deleted."""
        return not self.data.members

    @property
    def is_unused(self) -> bool:
        """Whether the log has no record of the group."""
        return self.is_empty and not self.data.is_stored

    @property
    def may_expire(self) -> bool:
        """Whether the group goes once it has no offset any more."""
        return self.is_empty

    @property
    def wake_at_ms(self) -> float | None:
        """When `TimePassed` is due; None when the group waits for no deadline."""
        return self._deadlines.next_ms()

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members may consume `topic`."""
        return topic in self._subscribed_topics()

    def _subscribed_topics(self) -> frozenset[str]:
        topology = self.data.topology
        if self.is_empty or topology is None:
            return frozenset()
        return frozenset(name for part in topology.subtopologies.values() for name in part.topics_read)

    def topics_changed(self, names: Iterable[str]) -> None:
        """Compare the topics again with the next heartbeat, if the topology needs one of these."""
        changed, topology = frozenset(names), self.data.topology
        self._topics.forget(changed)
        if topology is not None and not topology.required_topics.isdisjoint(changed):
            self.data.topics_are_known = False

    def expiry_rule(self) -> ExpiryRule:
        """Return how offsets expire: from their commit on, but those of topics that the members read."""
        return ExpiryRule(None, self._subscribed_topics())

    def tombstones(self) -> list[KindRecord]:
        """Return the records that delete the group from the log."""
        return group_tombstones(self.group_id, self.data.members) if self.data.is_stored else []

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
        """Return whether this member may commit offsets of these partitions now.

        With an epoch of the past it may if it has had the tasks since then (KIP-1251).
        """
        if epoch < 0 and self.is_empty:
            return ErrorCode.NONE  # of an administrator
        if transactional and epoch == -1 and not member_id and instance_id is None:
            return ErrorCode.NONE  # the producer does not say which member it is of
        member = self.data.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not transactional and version < MEMBERS_COMMIT_FROM:
            return ErrorCode.UNSUPPORTED_VERSION
        if epoch == member.epoch:
            return ErrorCode.NONE
        if epoch > member.epoch or not self._has_had(member, partitions, since=epoch):
            return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def _has_had(self, member: StreamsMember, partitions: Collection[TopicPartition], *, since: int) -> bool:
        if self.data.topology is None:
            return False
        reader = self.data.topology.subtopology_of_topic
        for topic, number in partitions:
            name = reader.get(topic, "")
            epochs = member.assigned.active.get(name, {})
            if number not in epochs:
                epochs = member.pending_revocation.active.get(name, {})
            if epochs.get(number, since + 1) > since:
                return False
        return True

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Return whether this member may fetch offsets now."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = self.data.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member.epoch == member_epoch else ErrorCode.STALE_MEMBER_EPOCH

    def check_offset_delete(self) -> ErrorCode:
        """Return NONE: offsets of topics that no member reads may be deleted."""
        return ErrorCode.NONE

    # ---- changing

    def replay(self, record: KindRecord) -> None:
        """Apply one record of the log, which ends the deadlines that it makes void.

        A step ends none: the log may refuse its records, and the member is as it was.
        """
        self.data.replay(record)
        match record.key:
            case StreamsGroupMemberMetadataKey(member_id=member_id) if record.value is None:
                for wait in (Wait.SESSION, Wait.REBALANCE):
                    self._deadlines.cancel((wait, member_id))
            case StreamsGroupCurrentMemberAssignmentKey(member_id=member_id):
                member = self.data.members.get(member_id)
                if member is None or not _still_revokes(member):
                    self._deadlines.cancel((Wait.REBALANCE, member_id))

    def step(self, event: Any, now_ms: float, wall_ms: int) -> StepOutcome:
        """Process one event, and return what the caller must do. Raises KafkaError to refuse a request."""
        outcome = StepOutcome()
        fired, self._fired = self._fired, []
        match event:
            case Heartbeat():
                outcome.replies.append(Reply(event.token, self._heartbeat(event, now_ms, wall_ms, outcome)))
            case Leave():
                outcome.replies.append(Reply(event.token, self._leave(event, outcome)))
            case TimePassed():
                self._time_passed(now_ms, wall_ms, outcome)
            case NotWritten():
                self._not_written(fired, now_ms)
            case Loaded():
                self._loaded(now_ms, wall_ms)
            case AssignmentPart():
                self._assigned(event, wall_ms, outcome)
            case WorkFailed():
                self.data.assigning = None
            case _:  # the group is not hosted here any more
                self._deadlines = Deadlines()
        return outcome

    def _heartbeat(
        self, heartbeat: Heartbeat, now_ms: float, wall_ms: int, outcome: StepOutcome
    ) -> HeartbeatResult:
        settings = self._settings()

        def interval_ms_of(member: StreamsMember, epoch: int) -> int:
            return self._motion.interval_ms(
                settings.heartbeat_interval_ms,
                now_ms,
                stored_epoch=self.data.facts.epoch,
                epoch=epoch,
                waits=member.waits_for(epoch),
            )

        return HeartbeatStep(
            self.data,
            heartbeat,
            settings=settings,
            topics=self._topics,
            interval_ms_of=interval_ms_of,
            deadlines=self._deadlines,
            now_ms=now_ms,
            wall_ms=wall_ms,
            outcome=outcome,
        ).run()

    # ---- leaving

    def _leave(self, leave: Leave, outcome: StepOutcome) -> HeartbeatResult:
        if not self.data.is_stored:
            raise GroupIdNotFound(f"Streams group {self.group_id} not found.")
        if leave.shutdown_application:
            ask_for_shutdown(self.data, leave.member_id)
        member = self._leaving(leave)
        if leave.instance_id is not None and leave.epoch == LEAVE_GROUP_STATIC_EPOCH:
            away = replace(
                member,
                epoch=LEAVE_GROUP_STATIC_EPOCH,
                pending_revocation=NOTHING_HELD,
                assigned=_without_history(member.assigned),
            )
            outcome.records.append(current_record(self.group_id, away))
        else:
            self._remove([member], outcome)
        log.info("member left", extra={"group": self.group_id, "member": member.id, "epoch": leave.epoch})
        response = StreamsGroupHeartbeatResponse(
            member_id=leave.member_id, member_epoch=leave.epoch, status=[]
        )
        return HeartbeatResult(response)

    def _leaving(self, leave: Leave) -> StreamsMember:
        if leave.instance_id is None:
            known = self.data.members.get(leave.member_id)
            if known is None:
                raise UnknownMemberId(f"Member {leave.member_id} is not a member of group {self.group_id}.")
            return known
        known = self.data.static_member(leave.instance_id)
        if known is None:
            raise UnknownMemberId(f"Instance id {leave.instance_id} is unknown.")
        require_instance(known, leave.member_id, leave.instance_id)
        return known

    def _remove(self, members: Sequence[StreamsMember], outcome: StepOutcome) -> None:
        """Take members out, and raise the group epoch; an empty group has nothing left to be assigned."""
        group = self.data
        for member in members:
            outcome.records += member_tombstones(self.group_id, member.id)
        facts = replace(group.facts, epoch=group.facts.epoch + len(members))
        outcome.records.append(group_record(self.group_id, facts))
        if len(members) == len(group.members):
            group.assigning = None
            outcome.records.append(assignment_record(self.group_id, facts.epoch, 0))

    # ---- deadlines, loading and unloading

    def _time_passed(self, now_ms: float, wall_ms: int, outcome: StepOutcome) -> None:
        self._fired = self._deadlines.due(now_ms, SLICE)
        fenced: dict[str, StreamsMember] = {}
        for wait, member_id in self._fired:
            member = self.data.members.get(member_id)
            match wait:
                case Wait.SESSION:
                    if member is not None:
                        fenced[member_id] = member
                case Wait.REBALANCE:
                    if member is not None and _still_revokes(member):
                        fenced[member_id] = member
                case Wait.INITIAL_REBALANCE:
                    self._assign_first(wall_ms, outcome)
        if fenced:
            log.info("members fenced", extra={"group": self.group_id, "members": sorted(fenced)})
            self._remove(list(fenced.values()), outcome)

    def _assign_first(self, wall_ms: int, outcome: StepOutcome) -> None:
        """Make the assignment that the initial rebalance delay has put off."""
        group, settings = self.data, self._settings()
        if (
            group.members
            and group.configured is not None
            and group.facts.epoch > group.assignment_epoch
            and group.assigning is None
            and may_assign(group, settings, wall_ms)
        ):
            epoch = group.facts.epoch
            assign(
                group,
                epoch,
                group.configured,
                settings,
                wall_ms,
                outcome,
                members=group.members,
                target=group.target,
            )

    def _assigned(self, part: AssignmentPart, wall_ms: int, outcome: StepOutcome) -> None:
        """Write a part of an assignment that was made in steps; members that have left need no task.

        One is void that another has followed, or that everyone has left.
        """
        group = self.data
        if part.number != group.assigning:
            return
        made = {member_id: tasks for member_id, tasks in part.tasks.items() if member_id in group.members}
        outcome.records += changed_targets(self.group_id, made, group.target)
        if part.epoch is not None:
            group.assigning = None
            outcome.records.append(assignment_record(self.group_id, part.epoch, wall_ms))

    def _not_written(self, fired: Iterable[tuple[Wait, str]], now_ms: float) -> None:
        self.data.topics_are_known, self.data.assigning = False, None
        self.data.endpoints.clear()
        for key in fired:
            self._deadlines.set(key, now_ms + RETRY_MS)

    def _loaded(self, now_ms: float, wall_ms: int) -> None:
        # Members that know the endpoints of the predecessor in an epoch must not take them for those of now.
        self.data.endpoint_epoch = wall_ms % 2**30
        session_ms = self._settings().session_timeout_ms
        for member in self.data.members.values():
            self._deadlines.set((Wait.SESSION, member.id), now_ms + session_ms)
            if member.state is MemberState.UNREVOKED_TASKS:
                key = (Wait.REBALANCE, member.id)
                self._deadlines.set(key, now_ms + max(0, member.rebalance_timeout_ms))


def _still_revokes(member: StreamsMember) -> bool:
    """Whether the member is in the state that its rebalance timeout is for."""
    return member.state is MemberState.UNREVOKED_TASKS and member.epoch > LEAVE_GROUP_EPOCH


def _without_history(held: HeldTasks) -> HeldTasks:
    """Return tasks whose commits are accepted with any epoch: the instance comes back with a new one."""
    active: ActiveTasks = {name: dict.fromkeys(epochs, 0) for name, epochs in held.active.items()}
    return replace(held, active=active)
