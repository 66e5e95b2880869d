"""The data of one group: members, state, generation, deadlines; and the outcome of the step in progress."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Self

from ottla.broker.coordinators.timers import Deadlines
from ottla.broker.groups.classic.events import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    NO_GENERATION,
    PREVIOUS_STATES,
    UNKNOWN_MEMBER_ID,
    GroupSnapshot,
    GroupState,
    HeartbeatResult,
    Join,
    JoinResult,
    LeaveResult,
    MemberJoined,
    MemberSynced,
    Outcome,
    Persist,
    Reason,
    Replacement,
    SyncResult,
    Wait,
)
from ottla.broker.groups.classic.members import GroupMember, Members
from ottla.broker.groups.kinds import GroupLimits, Reply, Token
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.stored_messages import ConsumerProtocolSubscription

CONSUMER_PROTOCOL_TYPE: Final = "consumer"


class GroupMetadata:
    """One group's data, with the small changes that joins, rebalances and heartbeats have in common.

    It belongs to a `Group`, which begins a step before anything here is changed.
    """

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
        self._subscriptions: Collection[bytes] | None = None
        """The different subscriptions of the present generation's members; None when they are not known."""
        self._topics_of: Collection[bytes] | None = None
        self._topics: frozenset[str] | None = None
        """The topics of `_topics_of`."""
        self.pending_syncs: set[str] = set()
        self.deadlines: Deadlines[tuple[Wait, str]] = Deadlines()
        self.now_ms = 0.0
        self.wall_ms = wall_ms
        self.outcome = Outcome()

    @classmethod
    def restore(cls, snapshot: GroupSnapshot, limits: GroupLimits) -> Self:
        """Make the group that the log describes: Stable, or Empty without members."""
        group = cls(snapshot.group_id, limits)
        group.state = GroupState.STABLE if snapshot.members else GroupState.EMPTY
        group.state_since_ms = snapshot.state_since_ms
        group.generation = snapshot.generation
        group.protocol_type = snapshot.protocol_type or None
        group.protocol_name = snapshot.protocol_name
        group.leader_id = snapshot.leader_id
        for stored in snapshot.members:
            member = GroupMember(
                member_id=stored.member_id,
                instance_id=stored.instance_id,
                client_id=stored.client_id,
                client_host=stored.client_host,
                rebalance_timeout_ms=stored.rebalance_timeout_ms,
                session_timeout_ms=stored.session_timeout_ms,
                protocols=((snapshot.protocol_name or "", stored.subscription),),
                assignment=stored.assignment,
            )
            group.members.add(member)
        group.update_subscriptions()
        return group

    def snapshot(self, assignments: Mapping[str, bytes] | None = None) -> GroupSnapshot:
        """The group as the log stores it, with these assignments instead of the present ones."""
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

    # ---- steps

    def begin_step(self, now_ms: float, wall_ms: int) -> Outcome:
        """Begin a step at this time; replies and writes are added to the returned outcome."""
        self.now_ms, self.wall_ms, self.outcome = now_ms, wall_ms, Outcome()
        return self.outcome

    # ---- reading

    @property
    def leader(self) -> str:
        """The member id of the leader, empty without one."""
        return self.leader_id or ""

    @property
    def wake_at_ms(self) -> float | None:
        """When `TimePassed` is due; None without a deadline."""
        return self.deadlines.next_ms()

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics of all members; None when that is not known.

        Few ask for them, so they are read from the subscriptions when they are asked for.
        """
        if self._topics_of is not self._subscriptions:
            self._topics_of = self._subscriptions
            self._topics = None if self._topics_of is None else subscribed_topics(self._topics_of)
        return self._topics

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members may consume `topic`; true when that is not known."""
        return self.subscribed_topics is None or topic in self.subscribed_topics

    # ---- members

    def expect_heartbeat(self, member: GroupMember) -> None:
        """Restart the member's session: its next heartbeat is due within the session timeout."""
        timeout_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self.deadlines.set((Wait.SESSION, member.member_id), self.now_ms + timeout_ms)

    def drop(self, member: GroupMember, error: ErrorCode) -> None:
        """Remove a member and answer its waiting requests with `error`; the caller begins the rebalance."""
        self.answer_waiting(member, error)
        self.members.remove(member)
        self.deadlines.cancel((Wait.SESSION, member.member_id))
        self.pending_syncs.discard(member.member_id)
        if self.leader_id == member.member_id:
            self.leader_id = self.members.first()

    def forget_pending(self, member_id: str) -> None:
        """Forget a member id that was given out and has not joined (KIP-394)."""
        self.pending_members.discard(member_id)
        self.deadlines.cancel((Wait.PENDING_MEMBER, member_id))

    def forget_deadlines(self) -> None:
        """Cancel every deadline."""
        self.deadlines = Deadlines()

    # ---- state

    def enter(self, state: GroupState) -> None:
        """Enter a state that the present one leads to."""
        assert self.state in PREVIOUS_STATES[state], f"{self.group_id}: {self.state} -> {state}"
        self.state, self.state_since_ms = state, self.wall_ms

    def update_subscriptions(self) -> None:
        """Take the subscriptions of the present members."""
        is_consumer = self.protocol_type == CONSUMER_PROTOCOL_TYPE
        self._subscriptions = (
            {member.metadata(self.protocol_name) for member in self.members} if is_consumer else None
        )

    def persist(
        self, reason: Reason, snapshot: GroupSnapshot, replacement: Replacement | None = None
    ) -> Persist:
        """Write a snapshot; `Persisted` reports the result."""
        persist = Persist(reason=reason, snapshot=snapshot, replacement=replacement)
        self.outcome.persist.append(persist)
        return persist

    # ---- answers

    def reply(self, token: Token, result: JoinResult | SyncResult | HeartbeatResult | LeaveResult) -> None:
        """Answer the request of that token."""
        self.outcome.replies.append(Reply(token, result))

    def refuse_join(self, join: Join, error: ErrorCode, member_id: str = UNKNOWN_MEMBER_ID) -> None:
        """Answer a join with an error."""
        self.reply(join.token, JoinResult(error=error, member_id=member_id))

    def answer_join(
        self, member: GroupMember, leader_id: str | None = None, *, skip_assignment: bool = False
    ) -> None:
        """Answer the member's waiting join; a given `leader_id` is sent instead of the present leader."""
        token = self.members.set_join(member, None)
        assert token is not None
        leads = leader_id is None and member.member_id == self.leader_id
        self.reply(
            token,
            self.join_result(
                member.member_id, tell_members=leads, leader_id=leader_id, skip_assignment=skip_assignment
            ),
        )

    def answer_joins(self) -> None:
        """Answer the waiting joins of all members, which begin a generation."""
        replies, generation = self.outcome.replies, self.join_result("", tell_members=False)
        for member in self.members:
            if member.member_id == self.leader_id and member.join is not None:
                self.answer_join(member)
            elif (token := self.members.set_join(member, None)) is not None:
                replies.append(MemberJoined(token, member.member_id, generation))

    def answer_syncs(self) -> None:
        """Answer the waiting syncs of all members with their assignments, and restart their sessions."""
        replies, generation = self.outcome.replies, self.sync_result(b"", ErrorCode.NONE)
        for member in self.members:
            if member.sync is not None:
                replies.append(MemberSynced(member.sync, member.assignment, generation))
                member.sync = None
                self.expect_heartbeat(member)

    def join_result(
        self,
        member_id: str,
        *,
        tell_members: bool,
        leader_id: str | None = None,
        skip_assignment: bool = False,
    ) -> JoinResult:
        """Build the answer to a successful join; only the leader gets the members."""
        return JoinResult(
            error=ErrorCode.NONE,
            member_id=member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=self.leader if leader_id is None else leader_id,
            members=self.members.joined(self.protocol_name) if tell_members else (),
            skip_assignment=skip_assignment,
        )

    def sync_result(self, assignment: bytes, error: ErrorCode) -> SyncResult:
        """Build the answer to a sync: a member's assignment, or `error`."""
        if error is not ErrorCode.NONE:
            return SyncResult(error=error)
        return SyncResult(
            error=error,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=assignment,
        )

    def answer_waiting(self, member: GroupMember, error: ErrorCode) -> None:
        """Answer the member's waiting join and sync with `error`."""
        join = self.members.set_join(member, None)
        if join is not None:
            lost = error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED)
            member_id = UNKNOWN_MEMBER_ID if lost else member.member_id
            self.reply(join, JoinResult(error=error, member_id=member_id, generation=NO_GENERATION))
        sync, member.sync = member.sync, None
        if sync is not None:
            self.reply(sync, SyncResult(error=error))


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of subscriptions in the metadata of JoinGroup; None when one cannot be decoded.

    A group may use the consumer protocol type with metadata of its own format: its topics are then not known.
    """
    topics: set[str] = set()
    for subscription in subscriptions:
        try:
            topics.update(ConsumerProtocolSubscription.from_bytes(subscription).topics)
        except MalformedMessage:
            return None
    return frozenset(topics)
