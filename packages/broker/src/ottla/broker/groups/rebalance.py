"""A rebalance, from the first call to join again to the assignment that everybody has."""

from __future__ import annotations

from typing import Final

from ottla.broker.groups.events import (
    GroupState,
    Persist,
    Reason,
    Sync,
    SyncResult,
)
from ottla.broker.groups.membership import Membership
from ottla.broker.groups.states import PREVIOUS_STATES, SHORTEST_SECOND_WAIT_MS, Wait
from ottla.broker.groups.validation import why_not_sync
from ottla.protocol.errors import ErrorCode

_REBALANCE: Final = (Wait.REBALANCE, "")
_SYNCS: Final = (Wait.SYNCS, "")


class Rebalancing(Membership):
    """How the members of a group come to a new generation."""

    # ---- collecting joins

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
