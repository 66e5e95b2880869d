"""A classic consumer group: an event and the time in, answers and records out, nothing else touched.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
      ^            |     ^                  |               |
      +------------+     +------------------+---------------+          any -> Dead

PreparingRebalance collects joins, CompletingRebalance waits for the leader's assignment, which is
in the log before anybody hears of it. The rules are those of Kafka 2.8's coordinator (KIP-62,
KIP-134, KIP-345, KIP-389, KIP-394). Two things differ on purpose: a request that a repeated one
replaced is answered instead of forgotten, and members that never ask for their assignment are
removed after the rebalance timeout, as newer coordinators do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never

from ottla.broker.groups.checks import has_room_for, supports, why_not_commit, why_not_current, why_not_sync
from ottla.broker.groups.deadlines import Deadlines
from ottla.broker.groups.events import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    Event,
    GroupSnapshot,
    GroupState,
    Heartbeat,
    HeartbeatResult,
    Join,
    JoinResult,
    Leave,
    LeaveResult,
    Loaded,
    MemberIdentity,
    Outcome,
    Persist,
    Persisted,
    Reason,
    Removed,
    Replacement,
    Reply,
    Sync,
    SyncResult,
    TimePassed,
    Token,
    Unloaded,
)
from ottla.broker.groups.roster import Member, Roster
from ottla.broker.groups.rules import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    PREVIOUS_STATES,
    SHORTEST_SECOND_WAIT_MS,
    GroupLimits,
    Wait,
)
from ottla.broker.groups.subscriptions import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from ottla.protocol.errors import ErrorCode

_REBALANCE: Final = (Wait.REBALANCE, "")
_SYNCS: Final = (Wait.SYNCS, "")


class Group:
    """One group. `step` is the only way to change it; times are monotonic, `wall_ms` is for the log."""

    def __init__(self, group_id: str, limits: GroupLimits, wall_ms: int = -1) -> None:
        self.group_id = group_id
        self.limits = limits
        self.state = GroupState.EMPTY
        self.state_since_ms = wall_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members = Roster()
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
    def restore(cls, snapshot: GroupSnapshot, limits: GroupLimits) -> Group:
        """Make the group that the log describes: stable, or empty without members."""
        group = cls(snapshot.group_id, limits)
        group.state = GroupState.STABLE if snapshot.members else GroupState.EMPTY
        group.state_since_ms = snapshot.state_since_ms
        group.generation = snapshot.generation
        group.protocol_type = snapshot.protocol_type or None
        group.protocol_name = snapshot.protocol_name
        group.leader_id = snapshot.leader_id
        for one in snapshot.members:
            member = Member(
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

    def step(self, event: Event, now_ms: float, wall_ms: int) -> Outcome:
        """Take one event in and return what is to be done about it."""
        self._now_ms, self._wall_ms, self._outcome = now_ms, wall_ms, Outcome()
        match event:
            case Join():
                self._join(event)
            case Sync():
                self._sync(event)
            case Heartbeat():
                self._reply(event.token, HeartbeatResult(self._heartbeat(event)))
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
            case _:
                assert_never(event)
        outcome, self._outcome = self._outcome, Outcome()
        outcome.wake_at_ms = self.wake_at_ms
        return outcome

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

    def check_commit(
        self,
        member_id: str,
        generation: int,
        instance_id: str | None,
        now_ms: float,
        *,
        transactional: bool = False,
    ) -> ErrorCode:
        """Tell whether this member may commit offsets now; a commit also counts as a heartbeat."""
        error = why_not_commit(self, member_id, generation, instance_id, transactional=transactional)
        if error is not ErrorCode.NONE or self.state is GroupState.EMPTY:
            return error
        if self.state is GroupState.COMPLETING_REBALANCE and not transactional:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if member := self.members.get(member_id):
            self._now_ms = now_ms
            self._expect_heartbeat(member)
        return ErrorCode.NONE

    # ---- joining

    def _join(self, join: Join) -> None:
        limits = self.limits
        if not limits.min_session_timeout_ms <= join.session_timeout_ms <= limits.max_session_timeout_ms:
            self._refuse_join(join, ErrorCode.INVALID_SESSION_TIMEOUT, join.member_id)
        elif not has_room_for(self, join.member_id):
            if member := self.members.get(join.member_id):
                self._drop(member, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._forget_pending(join.member_id)
            self._refuse_join(join, ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif join.member_id == UNKNOWN_MEMBER_ID:
            self._join_without_id(join)
        else:
            self._join_with_id(join)
        self._complete_join_if_all_are_there()

    def _join_without_id(self, join: Join) -> None:
        if self.state is GroupState.DEAD:
            self._refuse_join(join, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not supports(self, join):
            self._refuse_join(join, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif join.instance_id is not None:
            old = self.members.static_member_id(join.instance_id)
            if old is None:
                self._add_and_rebalance(join, join.new_member_id)
            else:
                self._replace_static(join, self.members[old])
        elif join.require_known_member_id:
            # A client that never comes back with the id costs nothing but this entry (KIP-394).
            self.pending_members.add(join.new_member_id)
            self._deadlines.set(
                (Wait.PENDING_MEMBER, join.new_member_id), self._now_ms + join.session_timeout_ms
            )
            self._refuse_join(join, ErrorCode.MEMBER_ID_REQUIRED, join.new_member_id)
        else:
            self._add_and_rebalance(join, join.new_member_id)

    def _join_with_id(self, join: Join) -> None:
        if self.state is GroupState.DEAD:
            self._refuse_join(join, ErrorCode.COORDINATOR_NOT_AVAILABLE, join.member_id)
        elif not supports(self, join):
            self._refuse_join(join, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, join.member_id)
        elif join.member_id in self.pending_members and join.instance_id is None:
            self._add_and_rebalance(join, join.member_id)
        elif (error := why_not_current(self, join.member_id, join.instance_id)) is not ErrorCode.NONE:
            self._refuse_join(join, error, join.member_id)
        else:
            self._rejoin(join, self.members[join.member_id])

    def _rejoin(self, join: Join, member: Member) -> None:
        same = member.protocols == join.protocols
        leads = member.member_id == self.leader_id
        if self.state is GroupState.EMPTY:
            self._refuse_join(join, ErrorCode.UNKNOWN_MEMBER_ID)
        elif same and self.state is GroupState.COMPLETING_REBALANCE:
            # The answer to its first join was lost.
            self._reply(join.token, self._joined(member, tell_members=leads))
        elif same and not leads and self.state is GroupState.STABLE:
            self._reply(join.token, self._joined(member, tell_members=False))
        else:
            # A leader that joins a stable group has seen a reason to assign anew, new partitions say.
            self._update(member, join)
            self._prepare_rebalance()

    def _add_and_rebalance(self, join: Join, member_id: str) -> None:
        member = Member(
            member_id=member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            session_timeout_ms=join.session_timeout_ms,
            protocols=join.protocols,
            join=join.token,
            is_new=True,
        )
        if not len(self.members):
            self.protocol_type = join.protocol_type
        if self.state is GroupState.PREPARING_REBALANCE and self.generation == 0:
            self._new_member_added = True
        self._forget_pending(member_id)
        self.members.add(member)
        self.leader_id = self.leader_id or member_id
        self._expect_heartbeat(member)
        self._prepare_rebalance()

    def _update(self, member: Member, join: Join) -> None:
        self.members.set_protocols(member, join.protocols)
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.session_timeout_ms = join.session_timeout_ms
        replaced = self.members.set_join(member, join.token)
        if replaced is not None:
            self._reply(
                replaced, JoinResult(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
            )

    def _replace_static(self, join: Join, member: Member) -> None:
        replacement = Replacement(
            instance_id=member.instance_id or "",
            new_member_id=join.new_member_id,
            old_member_id=member.member_id,
            old_leader_id=self.leader_id,
            old_protocols=member.protocols,
            old_rebalance_timeout_ms=member.rebalance_timeout_ms,
            old_session_timeout_ms=member.session_timeout_ms,
        )
        old_topics = self.subscribed_topics
        self._rename(member, join.new_member_id)
        self._update(member, join)
        self._expect_heartbeat(member)
        if self.state is GroupState.STABLE:
            keeps_protocol = self.members.elect_protocol() == self.protocol_name
            self._note_subscriptions()
            if keeps_protocol and self.subscribed_topics == old_topics:
                # Nobody is disturbed. The new id must be in the log before the member hears of it: the next
                # coordinator would fence a member that lives.
                self._persist(Reason.STATIC_MEMBER_REPLACED, self.snapshot(), replacement)
                return
        self._prepare_rebalance()

    def _rename(self, member: Member, member_id: str) -> None:
        old = member.member_id
        self._answer_waiting(member, ErrorCode.FENCED_INSTANCE_ID)
        self._deadlines.cancel((Wait.SESSION, old))
        self._pending_syncs.discard(old)
        self.members.replace(member, member_id)
        if self.leader_id == old:
            self.leader_id = member_id

    def _replaced(self, replacement: Replacement, error: ErrorCode, generation: int) -> None:
        member = self.members.get(replacement.new_member_id)
        if member is None or member.join is None:
            return
        if self.state is not GroupState.STABLE or self.generation != generation:
            return  # a rebalance began meanwhile; its end answers the join
        if error is ErrorCode.NONE:
            # It is told of the old leader: told of itself, it would assign, and nobody would listen.
            self._answer_join(member, leader_id=replacement.old_leader_id or "")
            self._expect_heartbeat(member)
            return
        token = self.members.set_join(member, None)
        assert token is not None
        self._reply(token, JoinResult(error=error))
        self.members.set_protocols(member, replacement.old_protocols)
        member.rebalance_timeout_ms = replacement.old_rebalance_timeout_ms
        member.session_timeout_ms = replacement.old_session_timeout_ms
        self._rename(member, replacement.old_member_id)
        self._note_subscriptions()
        self._expect_heartbeat(member)

    # ---- rebalancing

    def _prepare_rebalance(self) -> None:
        """Ask everybody to join again, unless that is going on already."""
        if self.state not in PREVIOUS_STATES[GroupState.PREPARING_REBALANCE]:
            return
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._reset_assignments(ErrorCode.REBALANCE_IN_PROGRESS)
        self._deadlines.cancel(_SYNCS)
        self._pending_syncs.clear()
        if self.state is GroupState.EMPTY:
            delay_ms = self.limits.initial_rebalance_delay_ms
            self._initial_delay_left_ms = max(self.members.rebalance_timeout_ms - delay_ms, 0)
            self._deadlines.set(_REBALANCE, self._now_ms + delay_ms)
        else:
            self._initial_delay_left_ms = None
            self._deadlines.set(_REBALANCE, self._now_ms + self.members.rebalance_timeout_ms)
        self._enter(GroupState.PREPARING_REBALANCE)
        self._complete_join_if_all_are_there()

    def _complete_join_if_all_are_there(self) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE or self._initial_delay_left_ms is not None:
            return
        if self.members.awaiting_join == len(self.members) and not self.pending_members:
            self._complete_join()

    def _rebalance_time_is_over(self) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        left_ms = self._initial_delay_left_ms
        if left_ms and self._new_member_added:
            self._new_member_added = False
            delay_ms = min(self.limits.initial_rebalance_delay_ms, left_ms)
            self._initial_delay_left_ms = max(left_ms - delay_ms, 0)
            self._deadlines.set(_REBALANCE, self._now_ms + delay_ms)
            return
        self._initial_delay_left_ms = None
        self._complete_join()

    def _complete_join(self) -> None:
        for member in self.members:
            if member.join is None and not member.is_static:
                self._drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if len(self.members) and not self._elect_leader():
            # Only static members are left and none came back: wait until their sessions end.
            again_ms = max(self.members.rebalance_timeout_ms, SHORTEST_SECOND_WAIT_MS)
            self._deadlines.set(_REBALANCE, self._now_ms + again_ms)
            return
        self._deadlines.cancel(_REBALANCE)
        self._initial_delay_left_ms = None
        self._new_member_added = False
        self.generation += 1
        if len(self.members):
            self._begin_generation()
        else:
            self.protocol_name = None
            self._enter(GroupState.EMPTY)
            self._note_subscriptions()
            self._persist(Reason.EMPTIED, self.snapshot())

    def _elect_leader(self) -> bool:
        leader = self.members.get(self.leader) if self.leader_id is not None else None
        if leader is None or leader.join is None:
            leader = next((member for member in self.members if member.join is not None), None)
            if leader is None:
                return False
            self.leader_id = leader.member_id
        return True

    def _begin_generation(self) -> None:
        self.protocol_name = self.members.elect_protocol()
        self._enter(GroupState.COMPLETING_REBALANCE)
        self._note_subscriptions()
        for member in self.members:
            member.is_new = False
            if member.join is not None:
                self._answer_join(member)
                self._pending_syncs.add(member.member_id)
            self._expect_heartbeat(member)
        self._deadlines.set(_SYNCS, self._now_ms + self.members.rebalance_timeout_ms)

    # ---- assigning

    def _sync(self, sync: Sync) -> None:
        error = why_not_sync(self, sync)
        if error is not ErrorCode.NONE:
            self._reply(sync.token, SyncResult(error=error))
            return
        member = self.members[sync.member_id]
        self._pending_syncs.discard(member.member_id)
        if self.state is GroupState.STABLE:
            self._reply(sync.token, self._synced(member, ErrorCode.NONE))
            self._expect_heartbeat(member)
            return
        replaced, member.sync = member.sync, sync.token
        if replaced is not None:
            self._reply(replaced, SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS))
        if member.member_id == self.leader_id and self._assigning is None:
            # Only one assignment is ever written for a generation: a repeated sync waits for the first.
            self._assigning = self._persist(Reason.ASSIGNED, self.snapshot(sync.assignments))
            self._outcome.rebalanced += 1

    def _persisted(self, event: Persisted) -> None:
        persist = event.persist
        match persist.reason:
            case Reason.ASSIGNED:
                self._assigned(persist, event.error)
            case Reason.STATIC_MEMBER_REPLACED:
                assert persist.replacement is not None
                self._replaced(persist.replacement, event.error, persist.snapshot.generation)
            case Reason.EMPTIED:
                pass

    def _assigned(self, persist: Persist, error: ErrorCode) -> None:
        if self._assigning is not persist:
            return  # another rebalance began meanwhile
        self._assigning = None
        if error is not ErrorCode.NONE:
            self._reset_assignments(error)
            self._prepare_rebalance()
            return
        for one in persist.snapshot.members:
            if member := self.members.get(one.member_id):
                member.assignment = one.assignment
        self._answer_syncs(ErrorCode.NONE)
        self._enter(GroupState.STABLE)

    def _reset_assignments(self, error: ErrorCode) -> None:
        self._assigning = None
        for member in self.members:
            member.assignment = b""
        self._answer_syncs(error)

    def _answer_syncs(self, error: ErrorCode) -> None:
        for member in self.members:
            if member.sync is not None:
                token, member.sync = member.sync, None
                self._reply(token, self._synced(member, error))
                self._expect_heartbeat(member)

    def _syncs_time_is_over(self) -> None:
        if self.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        absent = [member for member in self.members if member.member_id in self._pending_syncs]
        for member in absent:
            self._drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if absent:
            self._prepare_rebalance()

    # ---- living and leaving

    def _heartbeat(self, heartbeat: Heartbeat) -> ErrorCode:
        error = why_not_current(self, heartbeat.member_id, heartbeat.instance_id, heartbeat.generation)
        if error is not ErrorCode.NONE:
            return error
        self._expect_heartbeat(self.members[heartbeat.member_id])
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _expect_heartbeat(self, member: Member) -> None:
        timeout_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self._deadlines.set((Wait.SESSION, member.member_id), self._now_ms + timeout_ms)

    def _leave(self, leave: Leave) -> None:
        if self.state is GroupState.DEAD:
            self._reply(leave.token, LeaveResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        left = tuple((identity, self._leave_one(identity)) for identity in leave.members)
        self._reply(leave.token, LeaveResult(ErrorCode.NONE, left))

    def _leave_one(self, identity: MemberIdentity) -> ErrorCode:
        member_id = identity.member_id
        if member_id == UNKNOWN_MEMBER_ID:
            current = self.members.static_member_id(identity.instance_id) if identity.instance_id else None
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            self._remove(self.members[current])
            return ErrorCode.NONE
        if member_id in self.pending_members:
            self._forget_pending(member_id)
            self._complete_join_if_all_are_there()
            return ErrorCode.NONE
        error = why_not_current(self, member_id, identity.instance_id)
        if error is ErrorCode.NONE:
            self._remove(self.members[member_id])
        return error

    def _remove(self, member: Member) -> None:
        self._drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._prepare_rebalance()
        self._complete_join_if_all_are_there()

    def _drop(self, member: Member, error: ErrorCode) -> None:
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

    # ---- time, beginning and end

    def _time_passed(self) -> None:
        for wait, member_id in self._deadlines.due(self._now_ms):
            match wait:
                case Wait.SESSION:
                    self._session_ended(member_id)
                case Wait.PENDING_MEMBER:
                    self._forget_pending(member_id)
                    self._complete_join_if_all_are_there()
                case Wait.REBALANCE:
                    self._rebalance_time_is_over()
                case Wait.SYNCS:
                    self._syncs_time_is_over()

    def _session_ended(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is None:
            return
        waits_for_us = member.join is not None or member.sync is not None
        if member.is_new or not waits_for_us:
            self._remove(member)

    def _loaded(self) -> None:
        for member in self.members:
            self._expect_heartbeat(member)
        if len(self.members) > self.limits.max_size:
            self._prepare_rebalance()

    def _end(self, error: ErrorCode) -> None:
        for member in self.members:
            self._answer_waiting(member, error)
        self._deadlines = Deadlines()
        self._assigning = None
        self._enter(GroupState.DEAD)

    # ---- small parts

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

    def _reply(self, token: Token, result: JoinResult | SyncResult | HeartbeatResult | LeaveResult) -> None:
        self._outcome.replies.append(Reply(token, result))

    def _refuse_join(self, join: Join, error: ErrorCode, member_id: str = UNKNOWN_MEMBER_ID) -> None:
        self._reply(join.token, JoinResult(error=error, member_id=member_id))

    def _answer_join(self, member: Member, leader_id: str | None = None) -> None:
        token = self.members.set_join(member, None)
        assert token is not None
        leads = leader_id is None and member.member_id == self.leader_id
        self._reply(token, self._joined(member, tell_members=leads, leader_id=leader_id))

    def _joined(self, member: Member, *, tell_members: bool, leader_id: str | None = None) -> JoinResult:
        return JoinResult(
            error=ErrorCode.NONE,
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=self.leader if leader_id is None else leader_id,
            members=self.members.joined(self.protocol_name) if tell_members else (),
        )

    def _synced(self, member: Member, error: ErrorCode) -> SyncResult:
        if error is not ErrorCode.NONE:
            return SyncResult(error=error)
        return SyncResult(
            error=error,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def _answer_waiting(self, member: Member, error: ErrorCode) -> None:
        join = self.members.set_join(member, None)
        if join is not None:
            lost = error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED)
            member_id = UNKNOWN_MEMBER_ID if lost else member.member_id
            self._reply(join, JoinResult(error=error, member_id=member_id, generation=NO_GENERATION))
        sync, member.sync = member.sync, None
        if sync is not None:
            self._reply(sync, SyncResult(error=error))
