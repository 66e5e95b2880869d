"""A classic consumer group as a pure state machine: an event and the time in, replies and records out.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
      ^            |     ^                  |               |
      +------------+     +------------------+---------------+          any -> Dead

PreparingRebalance collects joins. CompletingRebalance waits for the leader's assignment, which is written to
the log before any member gets it. The rules are those of Kafka 2.8's coordinator (KIP-62, KIP-134, KIP-345,
KIP-389, KIP-394), with two intended differences: a request that a repeated one replaces is answered instead
of dropped, and members that never ask for their assignment are removed after the rebalance timeout, as newer
coordinators do.

`Group` dispatches events; `Joins` admits members, `Rebalance` takes them to the next generation, both on one
`GroupMetadata`.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from typing import Self, assert_never

from ottla.broker.groups.classic.events import (
    UNKNOWN_MEMBER_ID,
    Event,
    GroupSnapshot,
    GroupState,
    Heartbeat,
    HeartbeatResult,
    Join,
    Leave,
    LeaveResult,
    MemberIdentity,
    Outcome,
    Persisted,
    Reason,
    Sync,
    Wait,
)
from ottla.broker.groups.classic.group_metadata import CONSUMER_PROTOCOL_TYPE, GroupMetadata
from ottla.broker.groups.classic.join_group import Joins
from ottla.broker.groups.classic.members import GroupMember, Members
from ottla.broker.groups.classic.rebalance import Rebalance
from ottla.broker.groups.classic.validation import validate_commit, validate_member
from ottla.broker.groups.kinds import (
    ExpiryRule,
    GroupKind,
    GroupLimits,
    KindRecord,
    Loaded,
    NotWritten,
    Removed,
    Succeeded,
    TimePassed,
    Unloaded,
)
from ottla.broker.groups.records import GroupRecord
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition


class Group:
    """One group. Only `step` changes it. Times are monotonic, except `wall_ms`, which goes into the log."""

    kind = GroupKind.CLASSIC

    def __init__(self, group_id: str, limits: GroupLimits, wall_ms: int = -1) -> None:
        """Make an empty group, which has been empty since `wall_ms`."""
        self._compose(GroupMetadata(group_id, limits, wall_ms))

    @classmethod
    def restore(cls, snapshot: GroupSnapshot, limits: GroupLimits) -> Self:
        """Make the group that the log describes: Stable, or Empty without members."""
        group = cls.__new__(cls)
        group._compose(GroupMetadata.restore(snapshot, limits))
        return group

    def _compose(self, metadata: GroupMetadata) -> None:
        self._metadata = metadata
        self._rebalance = Rebalance(metadata)
        self._joins = Joins(metadata, self._rebalance)

    # ---- reading

    @property
    def group_id(self) -> str:
        """The id of the group."""
        return self._metadata.group_id

    @property
    def state(self) -> GroupState:
        """The present state."""
        return self._metadata.state

    @property
    def state_since_ms(self) -> int:
        """The wall-clock time of the last change of state; -1 when the log does not say."""
        return self._metadata.state_since_ms

    @property
    def generation(self) -> int:
        """The number of the present generation; 0 before the first one."""
        return self._metadata.generation

    @property
    def protocol_type(self) -> str | None:
        """The protocol type, mostly `consumer`; None before the first member."""
        return self._metadata.protocol_type

    @property
    def protocol_name(self) -> str | None:
        """The assignor of the present generation."""
        return self._metadata.protocol_name

    @property
    def leader_id(self) -> str | None:
        """The member id of the leader, None without one."""
        return self._metadata.leader_id

    @property
    def members(self) -> Members:
        """The members; for reading only."""
        return self._metadata.members

    @property
    def pending_members(self) -> set[str]:
        """Member ids that were given out and have not joined yet (KIP-394); for reading only."""
        return self._metadata.pending_members

    @property
    def member_count(self) -> int:
        """The number of members."""
        return len(self._metadata.members)

    @property
    def is_empty(self) -> bool:
        """Whether the group has no member, so that it may be deleted."""
        return self._metadata.state is GroupState.EMPTY

    @property
    def is_unused(self) -> bool:
        """Whether the group has no member, had no generation, and gave out no member id."""
        return self.may_expire and self._metadata.generation == 0

    @property
    def may_expire(self) -> bool:
        """Whether the group goes once it has no offset any more."""
        return self._metadata.state is GroupState.EMPTY and not self._metadata.pending_members

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics of all members together; None when that is not known."""
        return self._metadata.subscribed_topics

    @property
    def wake_at_ms(self) -> float | None:
        """When `TimePassed` is due; None when the group waits for no deadline."""
        return self._metadata.wake_at_ms

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members may consume `topic`; true when that is not known."""
        return self._metadata.is_subscribed_to(topic)

    def topics_changed(self, names: Set[str]) -> None:
        """Do nothing: members watch the topics themselves."""

    def snapshot(self) -> GroupSnapshot:
        """The group as the log stores it."""
        return self._metadata.snapshot()

    def tombstones(self) -> list[GroupRecord]:
        """Return the record that deletes the group from the log; none if only simple consumers used it."""
        return [GroupRecord(self.group_id, None)] if self.generation > 0 else []

    def replay(self, record: KindRecord) -> None:
        """Skip a record: a classic group has none but its snapshot, which it applies when that is written."""

    def expiry_rule(self) -> ExpiryRule | None:
        """Return how the offsets of the group expire now; None when they do not (KIP-211).

        The offsets of an empty group age together, from the time it became empty. In a Stable consumer group
        an offset ages from its commit once no member subscribes to its topic. Offsets of simple consumers age
        from their commit.
        """
        if self.protocol_type is None:
            return ExpiryRule(None)
        if self.state is GroupState.EMPTY:
            return ExpiryRule(self.state_since_ms if self.state_since_ms >= 0 else None)
        if self.state is not GroupState.STABLE or self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        topics = self.subscribed_topics
        return None if topics is None else ExpiryRule(None, topics)

    def check_commit(
        self,
        member_id: str,
        generation: int,
        instance_id: str | None,
        now_ms: float,
        *,
        transactional: bool = False,
        version: int = 0,
        partitions: Collection[TopicPartition] = (),
    ) -> ErrorCode:
        """Return whether this member may commit offsets now, of any partitions.

        A plain commit counts as a heartbeat; a transactional one is the producer's, and does not.
        """
        group = self._metadata
        error = validate_commit(group, member_id, generation, instance_id, transactional=transactional)
        if error is not ErrorCode.NONE or group.state is GroupState.EMPTY or transactional:
            return error
        if group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if member := group.members.get(member_id):
            group.now_ms = now_ms
            group.expect_heartbeat(member)
        return ErrorCode.NONE

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Return NONE: anyone may fetch the offsets of a classic group, as long as it is there."""
        return ErrorCode.GROUP_ID_NOT_FOUND if self.state is GroupState.DEAD else ErrorCode.NONE

    def check_offset_delete(self) -> ErrorCode:
        """Return whether offsets of topics that no member is subscribed to may be deleted."""
        is_known = self.is_empty or self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return ErrorCode.NONE if is_known else ErrorCode.NON_EMPTY_GROUP

    # ---- changing

    def step(self, event: Event, now_ms: float, wall_ms: int) -> Outcome:
        """Process one event, and return what the caller must do."""
        group = self._metadata
        outcome = group.begin_step(now_ms, wall_ms)
        match event:
            case Join():
                self._joins.join(event)
            case Sync():
                self._rebalance.sync(event)
            case Heartbeat():
                group.reply(event.token, HeartbeatResult(self._heartbeat(event)))
            case Leave():
                self._leave(event)
            case TimePassed():
                self._time_passed()
            case Persisted():
                self._persisted(event)
            case Loaded():
                self._loaded()
            case Unloaded():
                self._end(ErrorCode.NOT_COORDINATOR)
            case Removed():
                self._end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            case Succeeded():
                self._end(ErrorCode.REBALANCE_IN_PROGRESS)
            case NotWritten():
                pass  # the group of another kind that was to take its place is refused
            case _:
                assert_never(event)
        group.outcome = Outcome()  # keeps no request alive that has been answered
        return outcome

    # ---- heartbeats and leaving

    def _heartbeat(self, heartbeat: Heartbeat) -> ErrorCode:
        group = self._metadata
        error = validate_member(group, heartbeat.member_id, heartbeat.instance_id, heartbeat.generation)
        if error is not ErrorCode.NONE:
            return error
        group.expect_heartbeat(group.members[heartbeat.member_id])
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _leave(self, leave: Leave) -> None:
        if self._metadata.state is GroupState.DEAD:
            self._metadata.reply(leave.token, LeaveResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        left = tuple((identity, self._leave_one(identity)) for identity in leave.members)
        self._metadata.reply(leave.token, LeaveResult(ErrorCode.NONE, left))

    def _leave_one(self, identity: MemberIdentity) -> ErrorCode:
        member_id = identity.member_id
        if member_id == UNKNOWN_MEMBER_ID:
            instance_id = identity.instance_id
            current = self._metadata.members.static_member_id(instance_id) if instance_id else None
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            self._remove(self._metadata.members[current])
            return ErrorCode.NONE
        if member_id in self._metadata.pending_members:
            self._metadata.forget_pending(member_id)
            self._rebalance.complete_join_if_all_joined()
            return ErrorCode.NONE
        error = validate_member(self._metadata, member_id, identity.instance_id)
        if error is ErrorCode.NONE:
            self._remove(self._metadata.members[member_id])
        return error

    def _remove(self, member: GroupMember) -> None:
        self._metadata.drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._rebalance.prepare()
        self._rebalance.complete_join_if_all_joined()

    # ---- deadlines, loading and unloading

    def _time_passed(self) -> None:
        deadlines = self._metadata.deadlines
        for wait, member_id in deadlines.due(self._metadata.now_ms):
            if deadlines.get((wait, member_id)) is not None:
                continue  # one before it restarted it: the end of a leader's session answers waiting syncs
            match wait:
                case Wait.SESSION:
                    self._session_ended(member_id)
                case Wait.PENDING_MEMBER:
                    self._metadata.forget_pending(member_id)
                    self._rebalance.complete_join_if_all_joined()
                case Wait.REBALANCE:
                    self._rebalance.joins_timed_out()
                case Wait.SYNCS:
                    self._rebalance.syncs_timed_out()

    def _session_ended(self, member_id: str) -> None:
        member = self._metadata.members.get(member_id)
        if member is None:
            return
        awaits_answer = member.join is not None or member.sync is not None
        if member.is_new or not awaits_answer:
            self._remove(member)

    def _persisted(self, event: Persisted) -> None:
        persist = event.persist
        match persist.reason:
            case Reason.ASSIGNED:
                self._rebalance.assigned(persist, event.error)
            case Reason.STATIC_MEMBER_REPLACED:
                assert persist.replacement is not None
                self._joins.replaced(persist.replacement, event.error, persist.snapshot.generation)
            case Reason.EMPTIED:
                pass

    def _loaded(self) -> None:
        group = self._metadata
        for member in group.members:
            group.expect_heartbeat(member)
        # Without a leader are the members that came from another protocol, until their first rebalance ends.
        has_no_leader = group.leader_id is None and len(group.members) > 0
        if has_no_leader or len(group.members) > group.limits.max_size:
            self._rebalance.prepare()

    def _end(self, error: ErrorCode) -> None:
        for member in self._metadata.members:
            self._metadata.answer_waiting(member, error)
        self._metadata.forget_deadlines()
        self._rebalance.abandon()
        self._metadata.enter(GroupState.DEAD)
