"""JoinGroup: new members, members that join again, and static members that return under a new id."""

from __future__ import annotations

from ottla.broker.groups.classic.events import (
    UNKNOWN_MEMBER_ID,
    GroupState,
    Join,
    JoinResult,
    Reason,
    Replacement,
    Wait,
)
from ottla.broker.groups.classic.group_metadata import GroupMetadata
from ottla.broker.groups.classic.members import GroupMember
from ottla.broker.groups.classic.rebalance import Rebalance
from ottla.broker.groups.classic.validation import has_room_for, supports, validate_member
from ottla.protocol.errors import ErrorCode


class Joins:
    """Admits members to a group, and begins the rebalance that each of them needs."""

    def __init__(self, group: GroupMetadata, rebalance: Rebalance) -> None:
        self._group = group
        self._rebalance = rebalance

    def join(self, join: Join) -> None:
        """Admit or refuse a member; the answer may have to wait for the rebalance."""
        group = self._group
        limits = group.limits
        if not limits.min_session_timeout_ms <= join.session_timeout_ms <= limits.max_session_timeout_ms:
            group.refuse_join(join, ErrorCode.INVALID_SESSION_TIMEOUT, join.member_id)
        elif not has_room_for(group, join):
            if member := group.members.get(join.member_id):
                group.drop(member, ErrorCode.GROUP_MAX_SIZE_REACHED)
            group.forget_pending(join.member_id)
            group.refuse_join(join, ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif join.member_id == UNKNOWN_MEMBER_ID:
            self._join_without_id(join)
        else:
            self._join_with_id(join)
        self._rebalance.complete_join_if_all_joined()

    def _join_without_id(self, join: Join) -> None:
        group = self._group
        if group.state is GroupState.DEAD:
            group.refuse_join(join, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not supports(group, join):
            group.refuse_join(join, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif join.instance_id is not None:
            old = group.members.static_member_id(join.instance_id)
            if old is None:
                self._add_and_rebalance(join, join.new_member_id)
            else:
                self._replace_static(join, group.members[old])
        elif join.require_known_member_id:
            # A client that never joins with the id costs only this entry (KIP-394).
            group.pending_members.add(join.new_member_id)
            group.deadlines.set(
                (Wait.PENDING_MEMBER, join.new_member_id), group.now_ms + join.session_timeout_ms
            )
            group.refuse_join(join, ErrorCode.MEMBER_ID_REQUIRED, join.new_member_id)
        else:
            self._add_and_rebalance(join, join.new_member_id)

    def _join_with_id(self, join: Join) -> None:
        group = self._group
        if group.state is GroupState.DEAD:
            group.refuse_join(join, ErrorCode.COORDINATOR_NOT_AVAILABLE, join.member_id)
        elif not supports(group, join):
            group.refuse_join(join, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, join.member_id)
        elif join.member_id in group.pending_members and join.instance_id is None:
            self._add_and_rebalance(join, join.member_id)
        elif (error := validate_member(group, join.member_id, join.instance_id)) is not ErrorCode.NONE:
            group.refuse_join(join, error, join.member_id)
        else:
            self._rejoin(join, group.members[join.member_id])

    def _rejoin(self, join: Join, member: GroupMember) -> None:
        group = self._group
        same = member.protocols == join.protocols
        leads = member.member_id == group.leader_id
        if group.state is GroupState.EMPTY:
            group.refuse_join(join, ErrorCode.UNKNOWN_MEMBER_ID)
        elif same and group.state is GroupState.COMPLETING_REBALANCE:
            # The response to its first join was lost.
            group.reply(join.token, group.join_result(member.member_id, tell_members=leads))
        elif same and not leads and group.state is GroupState.STABLE:
            group.reply(join.token, group.join_result(member.member_id, tell_members=False))
        else:
            # A leader that joins a stable group again wants a new assignment, for new partitions perhaps.
            self._update(member, join)
            self._rebalance.prepare()

    def _add_and_rebalance(self, join: Join, member_id: str) -> None:
        group = self._group
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
        if not len(group.members):
            group.protocol_type = join.protocol_type
        if group.state is GroupState.PREPARING_REBALANCE and group.generation == 0:
            self._rebalance.new_member_added = True
        group.forget_pending(member_id)
        group.members.add(member)
        group.leader_id = group.leader_id or member_id
        group.expect_heartbeat(member)
        self._rebalance.prepare()

    def _update(self, member: GroupMember, join: Join) -> None:
        group = self._group
        group.members.set_protocols(member, join.protocols)
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.session_timeout_ms = join.session_timeout_ms
        replaced = group.members.set_join(member, join.token)
        if replaced is not None:
            group.reply(
                replaced, JoinResult(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
            )

    # ---- static members that return under a new id (KIP-345)

    def _replace_static(self, join: Join, member: GroupMember) -> None:
        group = self._group
        replacement = Replacement(
            instance_id=member.instance_id or "",
            new_member_id=join.new_member_id,
            old_member_id=member.member_id,
            old_leader_id=group.leader_id,
            old_protocols=member.protocols,
            old_rebalance_timeout_ms=member.rebalance_timeout_ms,
            old_session_timeout_ms=member.session_timeout_ms,
            may_skip_assignment=join.may_skip_assignment,
        )
        old_topics = group.subscribed_topics
        self._rename(member, join.new_member_id)
        self._update(member, join)
        group.expect_heartbeat(member)
        if group.state is GroupState.STABLE:
            keeps_protocol = group.members.elect_protocol() == group.protocol_name
            group.update_subscriptions()
            if keeps_protocol and group.subscribed_topics == old_topics:
                # No rebalance is needed. The new id must be in the log before the member gets it: otherwise
                # the next coordinator would fence a live member.
                group.persist(Reason.STATIC_MEMBER_REPLACED, group.snapshot(), replacement)
                return
        self._rebalance.prepare()

    def _rename(self, member: GroupMember, member_id: str) -> None:
        group = self._group
        old = member.member_id
        group.answer_waiting(member, ErrorCode.FENCED_INSTANCE_ID)
        group.deadlines.cancel((Wait.SESSION, old))
        group.pending_syncs.discard(old)
        group.members.replace(member, member_id)
        if group.leader_id == old:
            group.leader_id = member_id

    def replaced(self, replacement: Replacement, error: ErrorCode, generation: int) -> None:
        """Answer the static member whose new id was written, or undo the replacement if the write failed."""
        group = self._group
        member = group.members.get(replacement.new_member_id)
        if member is None or member.join is None:
            return
        if group.state is not GroupState.STABLE or group.generation != generation:
            return  # a rebalance has begun since; its end answers the join
        if error is ErrorCode.NONE:
            if replacement.may_skip_assignment:
                group.answer_join(member, skip_assignment=member.member_id == group.leader_id)
            else:
                # The old leader's id: as leader it would compute an assignment that no member asks for.
                group.answer_join(member, leader_id=replacement.old_leader_id or "")
            group.expect_heartbeat(member)
            return
        token = group.members.set_join(member, None)
        assert token is not None
        group.reply(token, JoinResult(error=error))
        group.members.set_protocols(member, replacement.old_protocols)
        member.rebalance_timeout_ms = replacement.old_rebalance_timeout_ms
        member.session_timeout_ms = replacement.old_session_timeout_ms
        self._rename(member, replacement.old_member_id)
        group.update_subscriptions()
        group.expect_heartbeat(member)
