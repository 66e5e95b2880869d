"""A rebalance: from PreparingRebalance, when members join again, to Stable, when each has its assignment."""

from __future__ import annotations

from typing import Final

from ottla.broker.groups.classic.events import (
    PREVIOUS_STATES,
    SHORTEST_SECOND_WAIT_MS,
    GroupState,
    Persist,
    Reason,
    Sync,
    SyncResult,
    Wait,
)
from ottla.broker.groups.classic.group_metadata import GroupMetadata
from ottla.broker.groups.classic.validation import validate_sync
from ottla.protocol.errors import ErrorCode

_REBALANCE: Final = (Wait.REBALANCE, "")
_SYNCS: Final = (Wait.SYNCS, "")


class Rebalance:
    """Takes the members of a group to a new generation: collects joins, elects, distributes assignments."""

    def __init__(self, group: GroupMetadata) -> None:
        self.new_member_added = False
        """Whether a member was added during the initial delay, which then may be extended (KIP-134)."""
        self._group = group
        self._initial_delay_left_ms: float | None = None
        self._assigning: Persist | None = None

    # ---- collecting joins

    def prepare(self) -> None:
        """Enter PreparingRebalance, where every member must join again, unless it is the present state."""
        group = self._group
        if group.state not in PREVIOUS_STATES[GroupState.PREPARING_REBALANCE]:
            return
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._reset_assignments(ErrorCode.REBALANCE_IN_PROGRESS)
        group.deadlines.cancel(_SYNCS)
        group.pending_syncs.clear()
        if group.state is GroupState.EMPTY:
            delay_ms = group.limits.initial_rebalance_delay_ms
            self._initial_delay_left_ms = max(group.members.rebalance_timeout_ms - delay_ms, 0)
            group.deadlines.set(_REBALANCE, group.now_ms + delay_ms)
        else:
            self._initial_delay_left_ms = None
            group.deadlines.set(_REBALANCE, group.now_ms + group.members.rebalance_timeout_ms)
        group.enter(GroupState.PREPARING_REBALANCE)
        self.complete_join_if_all_joined()

    def complete_join_if_all_joined(self) -> None:
        """Begin the next generation once every member has joined and no member id is pending."""
        group = self._group
        if group.state is not GroupState.PREPARING_REBALANCE or self._initial_delay_left_ms is not None:
            return
        if group.members.awaiting_join == len(group.members) and not group.pending_members:
            self._complete_join()

    def joins_timed_out(self) -> None:
        """Begin the next generation with the members that joined; the initial delay may be extended first."""
        group = self._group
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        left_ms = self._initial_delay_left_ms
        if left_ms and self.new_member_added:
            self.new_member_added = False
            delay_ms = min(group.limits.initial_rebalance_delay_ms, left_ms)
            self._initial_delay_left_ms = max(left_ms - delay_ms, 0)
            group.deadlines.set(_REBALANCE, group.now_ms + delay_ms)
            return
        self._initial_delay_left_ms = None
        self._complete_join()

    def _complete_join(self) -> None:
        group = self._group
        for member in group.members:
            if member.join is None and not member.is_static:
                group.drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if len(group.members) and not self._elect_leader():
            # Only static members are left, and none has joined again: wait until their sessions end.
            again_ms = max(group.members.rebalance_timeout_ms, SHORTEST_SECOND_WAIT_MS)
            group.deadlines.set(_REBALANCE, group.now_ms + again_ms)
            return
        group.deadlines.cancel(_REBALANCE)
        self._initial_delay_left_ms = None
        self.new_member_added = False
        group.generation += 1
        if len(group.members):
            self._begin_generation()
        else:
            group.protocol_name = None
            group.enter(GroupState.EMPTY)
            group.update_subscriptions()
            group.persist(Reason.EMPTIED, group.snapshot())

    def _elect_leader(self) -> bool:
        group = self._group
        leader = group.members.get(group.leader) if group.leader_id is not None else None
        if leader is None or leader.join is None:
            leader = next((member for member in group.members if member.join is not None), None)
            if leader is None:
                return False
            group.leader_id = leader.member_id
        return True

    def _begin_generation(self) -> None:
        group = self._group
        group.protocol_name = group.members.elect_protocol()
        group.enter(GroupState.COMPLETING_REBALANCE)
        group.update_subscriptions()
        for member in group.members:
            member.is_new = False
            if member.join is not None:
                group.pending_syncs.add(member.member_id)
            group.expect_heartbeat(member)
        group.answer_joins()
        group.deadlines.set(_SYNCS, group.now_ms + group.members.rebalance_timeout_ms)

    # ---- assigning

    def sync(self, sync: Sync) -> None:
        """Answer SyncGroup, now or when the leader's assignment is in the log."""
        group = self._group
        error = validate_sync(group, sync)
        if error is not ErrorCode.NONE:
            group.reply(sync.token, SyncResult(error=error))
            return
        member = group.members[sync.member_id]
        group.pending_syncs.discard(member.member_id)
        if group.state is GroupState.STABLE:
            group.reply(sync.token, group.sync_result(member.assignment, ErrorCode.NONE))
            group.expect_heartbeat(member)
            return
        replaced, member.sync = member.sync, sync.token
        if replaced is not None:
            group.reply(replaced, SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS))
        if member.member_id == group.leader_id and self._assigning is None:
            # One assignment is written for each generation: a repeated sync waits for the first one.
            self._assigning = group.persist(Reason.ASSIGNED, group.snapshot(sync.assignments))
            group.outcome.rebalanced += 1

    def assigned(self, persist: Persist, error: ErrorCode) -> None:
        """Distribute the assignment that was written, or rebalance again if the write failed."""
        group = self._group
        if self._assigning is not persist:
            return  # another rebalance has begun since
        self._assigning = None
        if error is not ErrorCode.NONE:
            self._reset_assignments(error)
            self.prepare()
            return
        for stored in persist.snapshot.members:
            if member := group.members.get(stored.member_id):
                member.assignment = stored.assignment
        group.answer_syncs()
        group.enter(GroupState.STABLE)

    def _reset_assignments(self, error: ErrorCode) -> None:
        self._assigning = None
        for member in self._group.members:
            member.assignment = b""
        group = self._group
        for member in group.members:
            if member.sync is not None:
                token, member.sync = member.sync, None
                group.reply(token, group.sync_result(b"", error))
                group.expect_heartbeat(member)

    def syncs_timed_out(self) -> None:
        """Remove members that never asked for their assignment."""
        group = self._group
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        absent = [member for member in group.members if member.member_id in group.pending_syncs]
        for member in absent:
            group.drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if absent:
            self.prepare()

    def abandon(self) -> None:
        """Forget the assignment that is being written: the group is Dead."""
        self._assigning = None
