"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

The coordinator assigns the partitions of such a member, too: its generation is its member epoch. It learns of
a new target by REBALANCE_IN_PROGRESS, joins with the partitions that it still has, and gets the rest with
SyncGroup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ottla.broker.groups.classic.events import (
    UNKNOWN_MEMBER_ID,
    Heartbeat,
    HeartbeatResult,
    Join,
    JoinResult,
    Leave,
    LeaveResult,
    MemberIdentity,
    Sync,
    SyncResult,
)
from ottla.broker.groups.consumer.members import (
    ClassicProtocols,
    ConsumerMember,
    MemberState,
    Wait,
    without_epochs,
)
from ottla.broker.groups.consumer.migration import DISABLED, assignment_bytes, downgraded, may_downgrade
from ottla.broker.groups.kinds import Reply, StepOutcome
from ottla.protocol.errors import (
    ErrorCode,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)
from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.stored_messages import ConsumerProtocolSubscription
from ottla.zookeeper.frozen_classes import replace

if TYPE_CHECKING:
    from ottla.broker.groups.consumer.heartbeats import Heartbeats
    from ottla.broker.groups.consumer.stored_group import StoredConsumerGroup
    from ottla.broker.groups.consumer.subscriptions import Subscriptions
    from ottla.broker.groups.consumer.target_assignments import TargetAssignments

_CONSUMER: Final = "consumer"


class ClassicMembers:
    """Decides on the requests of classic members of one group."""

    def __init__(
        self,
        group: StoredConsumerGroup,
        heartbeats: Heartbeats,
        subscriptions: Subscriptions,
        targets: TargetAssignments,
    ) -> None:
        self._group = group
        self._heartbeats = heartbeats
        self._subscriptions = subscriptions
        self._targets = targets

    def request(self, event: Join | Sync | Heartbeat | Leave, now_ms: float, wall_ms: int) -> StepOutcome:
        """Process a request. Raises KafkaError."""
        match event:
            case Join():
                return self._join(event, now_ms, wall_ms)
            case Sync():
                return self._sync(event, now_ms)
            case Heartbeat():
                return self._heartbeat(event, now_ms)
            case Leave():
                return self._leave(event, now_ms, wall_ms)

    # ---- JoinGroup

    def _join(self, join: Join, now_ms: float, wall_ms: int) -> StepOutcome:
        group, heartbeats = self._group, self._heartbeats
        self._check(join)
        is_unknown = join.member_id == UNKNOWN_MEMBER_ID
        member_id = join.new_member_id if is_unknown else join.member_id
        heartbeats.refuse_if_full(member_id, join.instance_id)
        self._check_protocols(join)
        if is_unknown and join.require_known_member_id:
            answer = JoinResult(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
            return StepOutcome(replies=[Reply(join.token, answer)])
        subscription = _subscription(join)
        outcome = StepOutcome()
        if join.instance_id is None:
            member = group.members.get(member_id) or ConsumerMember(member_id=member_id)
        else:
            member = heartbeats.find_static(member_id, join.instance_id, is_unknown, True, outcome.records)
        updated = _updated(member, join, subscription)
        # The heartbeats of members that read by expressions look for their topics.
        change = self._subscriptions.subscribe(member, updated, None, wall_ms, outcome)
        owned = self._ids_of(subscription)
        replaced = group.static_member(join.instance_id)
        if replaced is not None and replaced.classic is None and may_downgrade(group, [replaced], stays=True):
            return self._downgrade(join, updated, replaced, change.epoch, wall_ms)
        epoch, target = self._targets.assign(member, updated, change.epoch, wall_ms, outcome)
        updated = heartbeats.reconcile(
            updated, epoch, target, owned, change.has_new_subscription, now_ms, outcome
        )
        group.deadlines.cancel((Wait.JOIN, member_id))
        group.deadlines.set((Wait.SESSION, member_id), now_ms + join.session_timeout_ms)
        group.deadlines.set((Wait.SYNC, member_id), now_ms + join.rebalance_timeout_ms)
        outcome.replies.append(Reply(join.token, _joined(updated)))
        return outcome

    def _check(self, join: Join) -> None:
        limits, config = self._group.surroundings.limits, self._group.surroundings.config
        if config.group_consumer_migration_policy.lower() == DISABLED:
            raise InconsistentGroupProtocol(
                f"Cannot join the consumer group {self._group.group_id} with the classic protocol "
                "because the group migration is disabled."
            )
        if not limits.min_session_timeout_ms <= join.session_timeout_ms <= limits.max_session_timeout_ms:
            raise InvalidSessionTimeout

    def _check_protocols(self, join: Join) -> None:
        """Raise InconsistentGroupProtocol for a member that has no protocol in common with the others."""
        group = self._group
        if join.protocol_type != _CONSUMER or not any(
            group.classic_protocols[name] == group.classic_count for name, _ in join.protocols
        ):
            raise InconsistentGroupProtocol(f"Member {join.member_id}'s protocols are not supported.")

    def _ids_of(self, subscription: ConsumerProtocolSubscription) -> Mapping[UUID, frozenset[int]]:
        return {
            topic_id: frozenset(owned.partitions)
            for owned in subscription.owned_partitions
            if (topic_id := self._group.topics.id_of(owned.topic)) is not None
        }

    def _downgrade(
        self, join: Join, joining: ConsumerMember, replaced: ConsumerMember, epoch: int, wall_ms: int
    ) -> StepOutcome:
        """Make a classic group: the last member of the other protocol came back by the classic one."""
        group = self._group
        members = [
            joining if member.member_id == replaced.member_id else member for member in group.members.values()
        ]
        joining = replace(joining, epoch=group.epoch)
        # In a stable classic group nobody would ask a member to take what it has waited for.
        is_behind = group.assignment_epoch < epoch or any(
            not member.is_reconciled_to(group.assignment_epoch)
            for member in group.members.values()
            if member is not replaced
        )
        outcome = downgraded(group, members, wall_ms, rebalances=is_behind, joining=joining)
        outcome.replies.append(Reply(join.token, _joined(joining)))
        return outcome

    # ---- SyncGroup and Heartbeat

    def _sync(self, sync: Sync, now_ms: float) -> StepOutcome:
        group = self._group
        member, classic = self._classic_member(sync.member_id, sync.instance_id, sync.generation)
        first, metadata = classic.supported[0]
        if sync.protocol_type not in (None, _CONSUMER) or sync.protocol_name not in (None, first):
            raise InconsistentGroupProtocol(
                f"The protocol of member {member.member_id} is {_CONSUMER}/{first}, as its join was answered."
            )
        if group.assignment_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._expect_join(member, now_ms)
            raise RebalanceInProgress(
                f"A new rebalance is triggered in group {group.group_id} "
                f"and member {member.member_id} should rejoin to catch up."
            )
        group.deadlines.cancel((Wait.SYNC, member.member_id))
        group.deadlines.set((Wait.SESSION, member.member_id), now_ms + classic.session_timeout_ms)
        answer = SyncResult(
            error=ErrorCode.NONE,
            protocol_type=sync.protocol_type,
            protocol_name=sync.protocol_name,
            assignment=assignment_bytes(without_epochs(member.assigned), group.topics, metadata),
        )
        return StepOutcome(replies=[Reply(sync.token, answer)])

    def _heartbeat(self, heartbeat: Heartbeat, now_ms: float) -> StepOutcome:
        group = self._group
        member, classic = self._classic_member(
            heartbeat.member_id, heartbeat.instance_id, heartbeat.generation
        )
        group.deadlines.set((Wait.SESSION, member.member_id), now_ms + classic.session_timeout_ms)
        error = ErrorCode.NONE
        if self._must_join(member):
            error = ErrorCode.REBALANCE_IN_PROGRESS
            self._expect_join(member, now_ms)
        return StepOutcome(replies=[Reply(heartbeat.token, HeartbeatResult(error))])

    def _must_join(self, member: ConsumerMember) -> bool:
        group = self._group
        if member.epoch < group.assignment_epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
            return True
        if group.assignment_epoch < group.epoch and group.classic_count == len(group.members):
            return True  # only a join makes the assignment where no member of the other protocol is left
        return member.state is MemberState.UNRELEASED_PARTITIONS and not self._waits(member)

    def _waits(self, member: ConsumerMember) -> bool:
        """Return whether others still have partitions that the member shall have."""
        return any(
            index not in member.assigned.get(topic, ()) and not self._group.is_free(topic, index)
            for topic, indexes in self._group.targets.get(member.member_id, {}).items()
            for index in indexes
        )

    def _expect_join(self, member: ConsumerMember, now_ms: float) -> None:
        key = Wait.JOIN, member.member_id
        if self._group.deadlines.get(key) is None:
            self._group.deadlines.set(key, now_ms + member.rebalance_timeout_ms)

    def _classic_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicProtocols]:
        """Return a member of the classic protocol in its present generation. Raises KafkaError."""
        if instance_id is None:
            member = self._group.member(member_id)
        else:
            member = self._heartbeats.find_static(member_id, instance_id, False, True, [])
        if member.classic is None:
            raise UnknownMemberId(f"Member {member_id} does not use the classic protocol.")
        if generation != member.epoch:
            raise IllegalGeneration(
                f"The request generation id {generation} is not equal to the member epoch {member.epoch} "
                f"of member {member_id}."
            )
        return member, member.classic

    # ---- LeaveGroup

    def _leave(self, leave: Leave, now_ms: float, wall_ms: int) -> StepOutcome:
        leaving: dict[str, ConsumerMember] = {}
        answers: list[tuple[MemberIdentity, ErrorCode]] = []
        for identity in leave.members:
            try:
                member = self._leaving(identity)
            except KafkaError as error:
                answers.append((identity, error.code))
            else:
                leaving[member.member_id] = member
                answers.append((identity, ErrorCode.NONE))
        members = list(leaving.values())
        outcome = self._heartbeats.fence(members, now_ms, wall_ms) if members else StepOutcome()
        outcome.replies.append(Reply(leave.token, LeaveResult(ErrorCode.NONE, tuple(answers))))
        return outcome

    def _leaving(self, identity: MemberIdentity) -> ConsumerMember:
        if identity.instance_id is None:
            return self._group.member(identity.member_id)
        member = self._group.static_member(identity.instance_id)
        if member is None:
            raise UnknownMemberId(f"Instance id {identity.instance_id} is unknown.")
        if identity.member_id != UNKNOWN_MEMBER_ID:
            self._heartbeats.refuse_if_fenced(member, identity.member_id)
        return member


def _subscription(join: Join) -> ConsumerProtocolSubscription:
    try:
        return ConsumerProtocolSubscription.from_bytes(join.protocols[0][1])
    except MalformedMessage:
        raise InconsistentGroupProtocol(
            "Malformed embedded consumer protocol in subscription deserialization."
        ) from None


def _updated(
    member: ConsumerMember, join: Join, subscription: ConsumerProtocolSubscription
) -> ConsumerMember:
    return replace(
        member,
        instance_id=join.instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        topics=frozenset(subscription.topics),
        expression="",
        client_id=join.client_id,
        client_host=join.client_host,
        classic=ClassicProtocols(join.session_timeout_ms, join.protocols),
    )


def _joined(member: ConsumerMember) -> JoinResult:
    assert member.classic is not None
    return JoinResult(
        error=ErrorCode.NONE,
        member_id=member.member_id,
        generation=member.epoch,
        protocol_type=_CONSUMER,
        protocol_name=member.classic.supported[0][0],
    )
