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

from typing import assert_never

from ottla.broker.coordinators.deadlines import Deadlines
from ottla.broker.groups.events import (
    UNKNOWN_MEMBER_ID,
    Event,
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
    Persisted,
    Reason,
    Removed,
    Replacement,
    Sync,
    TimePassed,
    Unloaded,
)
from ottla.broker.groups.members import GroupMember
from ottla.broker.groups.rebalance import Rebalancing
from ottla.broker.groups.states import Wait
from ottla.broker.groups.validation import has_room_for, supports, why_not_commit, why_not_current
from ottla.protocol.errors import ErrorCode


class Group(Rebalancing):
    """One group. `step` is the only way to change it; times are monotonic, `wall_ms` is for the log."""

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

    def _rejoin(self, join: Join, member: GroupMember) -> None:
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
        member = GroupMember(
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

    def _update(self, member: GroupMember, join: Join) -> None:
        self.members.set_protocols(member, join.protocols)
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.session_timeout_ms = join.session_timeout_ms
        replaced = self.members.set_join(member, join.token)
        if replaced is not None:
            self._reply(
                replaced, JoinResult(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
            )

    # ---- a static member that comes back under a new id

    def _replace_static(self, join: Join, member: GroupMember) -> None:
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

    def _rename(self, member: GroupMember, member_id: str) -> None:
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

    # ---- living and leaving

    def _heartbeat(self, heartbeat: Heartbeat) -> ErrorCode:
        error = why_not_current(self, heartbeat.member_id, heartbeat.instance_id, heartbeat.generation)
        if error is not ErrorCode.NONE:
            return error
        self._expect_heartbeat(self.members[heartbeat.member_id])
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

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

    def _remove(self, member: GroupMember) -> None:
        self._drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._prepare_rebalance()
        self._complete_join_if_all_are_there()

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
