"""What a group is: its members, its state, what it waits for, and how it says things."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from ottla.broker.coordinators.deadlines import Deadlines
from ottla.broker.groups.events import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    GroupSnapshot,
    GroupState,
    HeartbeatResult,
    Join,
    JoinResult,
    LeaveResult,
    Outcome,
    Persist,
    Reason,
    Replacement,
    Reply,
    SyncResult,
    Token,
)
from ottla.broker.groups.members import GroupMember, Members
from ottla.broker.groups.states import NEW_MEMBER_JOIN_TIMEOUT_MS, PREVIOUS_STATES, GroupLimits, Wait
from ottla.broker.groups.subscriptions import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from ottla.protocol.errors import ErrorCode


class Membership:
    """The facts of one group and the small steps that all of its rules are made of."""

    def __init__(self, group_id: str, limits: GroupLimits, wall_ms: int = -1) -> None:
        self.group_id = group_id
        self.limits = limits
        self.state = GroupState.EMPTY
        self.state_since_ms = wall_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members = Members()
        self.pending_members: set[str] = set()
        self.subscribed_topics: frozenset[str] | None = None
        self._pending_syncs: set[str] = set()
        self._new_member_added = False
        self._initial_delay_left_ms: float | None = None
        self._assigning: Persist | None = None
        self._deadlines: Deadlines[tuple[Wait, str]] = Deadlines()
        self._now_ms = 0.0
        self._wall_ms = wall_ms
        self._outcome = Outcome()

    @classmethod
    def restore(cls, snapshot: GroupSnapshot, limits: GroupLimits) -> Self:
        """Make the group that the log describes: stable, or empty without members."""
        group = cls(snapshot.group_id, limits)
        group.state = GroupState.STABLE if snapshot.members else GroupState.EMPTY
        group.state_since_ms = snapshot.state_since_ms
        group.generation = snapshot.generation
        group.protocol_type = snapshot.protocol_type or None
        group.protocol_name = snapshot.protocol_name
        group.leader_id = snapshot.leader_id
        for one in snapshot.members:
            member = GroupMember(
                member_id=one.member_id,
                instance_id=one.instance_id,
                client_id=one.client_id,
                client_host=one.client_host,
                rebalance_timeout_ms=one.rebalance_timeout_ms,
                session_timeout_ms=one.session_timeout_ms,
                protocols=((snapshot.protocol_name or "", one.subscription),),
                assignment=one.assignment,
            )
            group.members.add(member)
        group._note_subscriptions()
        return group

    def snapshot(self, assignments: Mapping[str, bytes] | None = None) -> GroupSnapshot:
        """The group as the log keeps it, with these assignments instead of the present ones."""
        return GroupSnapshot(
            group_id=self.group_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=self.leader_id,
            state_since_ms=self.state_since_ms,
            members=tuple(
                member.snapshot(
                    self.protocol_name,
                    member.assignment if assignments is None else assignments.get(member.member_id, b""),
                )
                for member in self.members
            ),
        )

    # ---- asking

    @property
    def leader(self) -> str:
        """The member id of the leader, empty without one."""
        return self.leader_id or ""

    @property
    def wake_at_ms(self) -> float | None:
        """When `TimePassed` is due; None when nothing is waited for."""
        return self._deadlines.next_ms()

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members may consume `topic`; true when nobody can tell."""
        return self.subscribed_topics is None or topic in self.subscribed_topics

    # ---- members

    def _expect_heartbeat(self, member: GroupMember) -> None:
        timeout_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self._deadlines.set((Wait.SESSION, member.member_id), self._now_ms + timeout_ms)

    def _drop(self, member: GroupMember, error: ErrorCode) -> None:
        """Take a member out and answer what it waits for; says nothing of a rebalance."""
        self._answer_waiting(member, error)
        self.members.remove(member)
        self._deadlines.cancel((Wait.SESSION, member.member_id))
        self._pending_syncs.discard(member.member_id)
        if self.leader_id == member.member_id:
            self.leader_id = self.members.first()

    def _forget_pending(self, member_id: str) -> None:
        self.pending_members.discard(member_id)
        self._deadlines.cancel((Wait.PENDING_MEMBER, member_id))

    # ---- state

    def _enter(self, state: GroupState) -> None:
        assert self.state in PREVIOUS_STATES[state], f"{self.group_id}: {self.state} -> {state}"
        self.state, self.state_since_ms = state, self._wall_ms

    def _note_subscriptions(self) -> None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            self.subscribed_topics = None
        elif not len(self.members):
            self.subscribed_topics = frozenset()
        else:
            self.subscribed_topics = subscribed_topics(
                member.metadata(self.protocol_name) for member in self.members
            )

    def _persist(
        self, reason: Reason, snapshot: GroupSnapshot, replacement: Replacement | None = None
    ) -> Persist:
        persist = Persist(reason=reason, snapshot=snapshot, replacement=replacement)
        self._outcome.persist.append(persist)
        return persist

    # ---- answers

    def _reply(self, token: Token, result: JoinResult | SyncResult | HeartbeatResult | LeaveResult) -> None:
        self._outcome.replies.append(Reply(token, result))

    def _refuse_join(self, join: Join, error: ErrorCode, member_id: str = UNKNOWN_MEMBER_ID) -> None:
        self._reply(join.token, JoinResult(error=error, member_id=member_id))

    def _answer_join(self, member: GroupMember, leader_id: str | None = None) -> None:
        token = self.members.set_join(member, None)
        assert token is not None
        leads = leader_id is None and member.member_id == self.leader_id
        self._reply(token, self._joined(member, tell_members=leads, leader_id=leader_id))

    def _joined(self, member: GroupMember, *, tell_members: bool, leader_id: str | None = None) -> JoinResult:
        return JoinResult(
            error=ErrorCode.NONE,
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=self.leader if leader_id is None else leader_id,
            members=self.members.joined(self.protocol_name) if tell_members else (),
        )

    def _synced(self, member: GroupMember, error: ErrorCode) -> SyncResult:
        if error is not ErrorCode.NONE:
            return SyncResult(error=error)
        return SyncResult(
            error=error,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def _answer_waiting(self, member: GroupMember, error: ErrorCode) -> None:
        join = self.members.set_join(member, None)
        if join is not None:
            lost = error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED)
            member_id = UNKNOWN_MEMBER_ID if lost else member.member_id
            self._reply(join, JoinResult(error=error, member_id=member_id, generation=NO_GENERATION))
        sync, member.sync = member.sync, None
        if sync is not None:
            self._reply(sync, SyncResult(error=error))
