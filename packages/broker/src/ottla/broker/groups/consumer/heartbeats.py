"""ConsumerGroupHeartbeat: members join, stay and leave; the group gets new epochs and target assignments.

Every decision returns the records of the change. They are replayed once they are appended, so a decision
counts what it changes itself on top of the group: its own member, and the epoch that it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ottla.broker.groups.assigned.assignors import NOTHING, Assignment
from ottla.broker.groups.consumer.members import (
    JOINING,
    LEAVING,
    LEAVING_STATIC,
    NO_PARTITIONS,
    ConsumerMember,
    MemberState,
    Wait,
    assignment_record,
    epoch_record,
    expression_tombstone,
    member_record,
    member_tombstones,
    target_epoch_record,
    target_record,
    without_epochs,
)
from ottla.broker.groups.consumer.migration import downgraded_without
from ottla.broker.groups.consumer.reconciliation import Reconciliation
from ottla.broker.groups.early_heartbeats import GroupMotion
from ottla.broker.groups.kinds import KindRecord, Reply, StepOutcome, Token
from ottla.protocol.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from ottla.zookeeper.frozen_classes import frozen, replace

if TYPE_CHECKING:
    from ottla.broker.groups.consumer.stored_group import StoredConsumerGroup
    from ottla.broker.groups.consumer.subscriptions import Subscriptions
    from ottla.broker.groups.consumer.target_assignments import TargetAssignments


def anyone(_: str) -> bool:
    """Permit every topic: there is no authorizer."""
    return True


@frozen(kw_only=True)
class ConsumerHeartbeat:
    """A member joins (epoch 0), is alive, or leaves (-1; a static member for a while -2).

    What is None has not changed since the last heartbeat. `may_describe` says which topics its expression
    sees.
    """

    token: Token = None
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    expression: str | None = None
    assignor: str | None = None
    owned: Mapping[UUID, frozenset[int]] | None = None
    client_id: str = ""
    client_host: str = ""
    may_describe: Callable[[str], bool] = anyone


@frozen
class HeartbeatAnswer:
    """The member's epoch, and its partitions if they have changed or are asked for."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


class Heartbeats:
    """Decides on heartbeats, on members that fall silent, and on what was found out in steps."""

    def __init__(
        self, group: StoredConsumerGroup, subscriptions: Subscriptions, targets: TargetAssignments
    ) -> None:
        self._group = group
        self._subscriptions = subscriptions
        self._targets = targets
        self._motion = GroupMotion(group.surroundings.early())

    # ---- one heartbeat

    def heartbeat(self, event: ConsumerHeartbeat, now_ms: float, wall_ms: int) -> StepOutcome:
        """Process a heartbeat. Raises KafkaError."""
        if event.epoch in (LEAVING, LEAVING_STATIC):
            return self._leave(event, now_ms, wall_ms)
        self.refuse_if_full(event.member_id, event.instance_id)
        outcome = StepOutcome()
        member = self._find(event, outcome.records)
        updated = _updated(member, event)
        change = self._subscriptions.subscribe(member, updated, event.may_describe, wall_ms, outcome)
        epoch, target = self._targets.assign(member, updated, change.epoch, wall_ms, outcome)
        has_new_subscription = change.has_new_subscription
        updated = self.reconcile(updated, epoch, target, event.owned, has_new_subscription, now_ms, outcome)
        self.expect(updated, now_ms)
        answer = HeartbeatAnswer(
            updated.member_id,
            updated.epoch,
            self._interval_ms(updated, change.epoch, now_ms),
            self._shown(event, member, updated),
        )
        outcome.replies.append(Reply(event.token, answer))
        return outcome

    def _interval_ms(self, member: ConsumerMember, epoch: int, now_ms: float) -> int:
        """Return the time until the member's next heartbeat, in the group epoch after this one."""
        return self._motion.interval_ms(
            self._group.setting_ms("heartbeat_interval_ms"),
            now_ms,
            stored_epoch=self._group.epoch,
            epoch=epoch,
            waits=member.waits_for(epoch),
        )

    def _shown(
        self, event: ConsumerHeartbeat, before: ConsumerMember, updated: ConsumerMember
    ) -> Assignment | None:
        """Return the member's partitions if they are new, asked for, or not yet confirmed.

        An answer with new ones may be lost, and the next heartbeat of some clients does not show it: so it
        is repeated until a heartbeat says that the member has them. Members take a repetition for no change.
        """
        unconfirmed = self._group.unconfirmed
        is_new = event.epoch == JOINING or before.assigned != updated.assigned
        if event.owned is not None and _has_all(event.owned, updated):
            unconfirmed.discard(updated.member_id)
        elif is_new:
            unconfirmed.add(updated.member_id)
        is_full = event.rebalance_timeout_ms != -1 and event.owned is not None
        is_full = is_full and (event.topics is not None or event.expression is not None)
        shows = is_new or is_full or updated.member_id in unconfirmed
        return without_epochs(updated.assigned) if shows else None

    def refuse_if_full(self, member_id: str, instance_id: str | None) -> None:
        """Raise GroupMaxSizeReached for one member too many."""
        group, most = self._group, self._group.surroundings.config.group_consumer_max_size
        if group.static_member(instance_id) is not None or member_id in group.members:
            return
        if len(group.members) >= most:
            raise GroupMaxSizeReached(
                f"The consumer group has reached its maximum capacity of {most} members."
            )

    def _find(self, event: ConsumerHeartbeat, records: list[KindRecord]) -> ConsumerMember:
        """Return the member that sent a heartbeat, a new one for an unknown one that joins."""
        group, is_joining = self._group, event.epoch == JOINING
        if event.instance_id is not None:
            return self.find_static(event.member_id, event.instance_id, is_joining, False, records, event)
        if is_joining:
            return group.members.get(event.member_id) or ConsumerMember(member_id=event.member_id)
        member = group.member(event.member_id)
        _check_epoch(member, event)
        return member

    def find_static(
        self,
        member_id: str,
        instance_id: str,
        is_joining: bool,
        is_classic: bool,
        records: list[KindRecord],
        event: ConsumerHeartbeat | None = None,
    ) -> ConsumerMember:
        """Return the static member; one that joins takes the place of an earlier one with its instance id."""
        group = self._group
        present = group.static_member(instance_id)
        if is_joining:
            if present is None:
                return group.members.get(member_id) or ConsumerMember(member_id=member_id)
            if not is_classic and present.classic is None and present.epoch != LEAVING_STATIC:
                raise UnreleasedInstanceId(
                    f"Static member {member_id} with instance id {instance_id} cannot join the group "
                    f"because the instance id is owned by {present.member_id} member."
                )
            returned = replace(present, member_id=member_id, epoch=JOINING, previous_epoch=JOINING)
            records += self._replacement(present, returned)
            return returned
        if present is None:
            raise UnknownMemberId(f"Instance id {instance_id} is unknown.")
        self.refuse_if_fenced(present, member_id)
        if event is not None:
            _check_epoch(present, event)
        return present

    def refuse_if_fenced(self, present: ConsumerMember, member_id: str) -> None:
        """Raise FencedInstanceId where another member has the instance id."""
        if present.member_id != member_id:
            raise FencedInstanceId(
                f"Static member {member_id} with instance id {present.instance_id} "
                f"was fenced by member {present.member_id}."
            )

    def _replacement(self, present: ConsumerMember, returned: ConsumerMember) -> list[KindRecord]:
        group_id = self._group.group_id
        target = self._group.targets.get(present.member_id, NOTHING)
        return [
            *member_tombstones(group_id, present.member_id),
            member_record(group_id, returned),
            target_record(group_id, returned.member_id, target),
            assignment_record(group_id, returned),
        ]

    def expect(self, member: ConsumerMember, now_ms: float) -> None:
        """Begin the member's session again."""
        classic = member.classic
        timeout_ms = (
            self._group.setting_ms("session_timeout_ms") if classic is None else classic.session_timeout_ms
        )
        self._group.deadlines.set((Wait.SESSION, member.member_id), now_ms + timeout_ms)

    # ---- reconciliation

    def reconcile(
        self,
        member: ConsumerMember,
        target_epoch: int,
        target: Assignment,
        owned: Mapping[UUID, frozenset[int]] | None,
        has_new_subscription: bool,
        now_ms: float,
        outcome: StepOutcome,
    ) -> ConsumerMember:
        """Bring a member nearer to its target. Raises FencedMemberEpoch."""
        if not has_new_subscription and member.is_reconciled_to(target_epoch):
            return member
        group = self._group
        matched = group.topics_matched(member.expression)

        def is_subscribed_to(topic_id: UUID) -> bool:
            name = group.topics.name_of(topic_id)
            return name is not None and (name in member.topics or name in matched)

        reconciled = Reconciliation(
            target_epoch=target_epoch,
            target=target,
            is_subscribed_to=is_subscribed_to,
            is_free=group.is_free,
            has_new_subscription=has_new_subscription,
            owned=owned,
        ).next_of(member)
        if reconciled != member:
            outcome.records.append(assignment_record(group.group_id, reconciled))
            if reconciled.classic is not None:
                pass
            elif reconciled.state is MemberState.UNREVOKED_PARTITIONS:
                group.expect_revocation(reconciled, now_ms)
            else:
                group.forget_revocation(reconciled.member_id)
        return reconciled

    # ---- leaving

    def _leave(self, event: ConsumerHeartbeat, now_ms: float, wall_ms: int) -> StepOutcome:
        group = self._group
        if event.instance_id is None:
            member = group.member(event.member_id)
        else:
            member = self.find_static(event.member_id, event.instance_id, False, False, [])
        reply = Reply(event.token, HeartbeatAnswer(event.member_id, event.epoch))
        if event.epoch == LEAVING_STATIC and event.instance_id is not None:
            away = replace(
                member,
                epoch=LEAVING_STATIC,
                assigned={topic: dict.fromkeys(epochs, 0) for topic, epochs in member.assigned.items()},
                revoking=NO_PARTITIONS,
            )
            return StepOutcome([assignment_record(group.group_id, away)], [reply])
        outcome = self.fence([member], now_ms, wall_ms)
        outcome.replies.append(reply)
        return outcome

    def fence(self, members: Collection[ConsumerMember], now_ms: float, wall_ms: int) -> StepOutcome:
        """Remove members; the group goes back to the classic protocol if only classic members stay."""
        group = self._group
        if (downgraded := downgraded_without(group, members, wall_ms)) is not None:
            return downgraded
        outcome = StepOutcome(rebalanced=1)
        for member in members:
            outcome.records += member_tombstones(group.group_id, member.member_id)
        gone = self._subscriptions.expressions_only_of(members)
        outcome.records += [expression_tombstone(group.group_id, expression) for expression in gone]
        epoch = group.epoch + 1
        metadata_hash = group.topics.hash_of(self._subscriptions.topics_without(members, gone))
        outcome.records.append(epoch_record(group.group_id, epoch, metadata_hash))
        if len(members) == len(group.members):
            outcome.records.append(target_epoch_record(group.group_id, epoch, 0))
        return outcome


def _updated(member: ConsumerMember, event: ConsumerHeartbeat) -> ConsumerMember:
    """Return the member with what its heartbeat changes."""
    changes: dict[str, Any] = {
        "client_id": event.client_id,
        "client_host": event.client_host,
        "classic": None,
    }
    if event.rebalance_timeout_ms != -1:
        changes["rebalance_timeout_ms"] = event.rebalance_timeout_ms
    for name in ("instance_id", "rack_id", "topics", "expression", "assignor"):
        if (value := getattr(event, name)) is not None:
            changes[name] = value
    if all(getattr(member, name) == value for name, value in changes.items()):
        return member
    return replace(member, **changes)


def _check_epoch(member: ConsumerMember, event: ConsumerHeartbeat) -> None:
    """Raise FencedMemberEpoch for a member that has missed an epoch.

    The answer to its last heartbeat may have been lost: then it sends the previous epoch, and has nothing
    that it shall not have now.
    """
    received, known = event.epoch, member.epoch
    if received in (JOINING, known):
        return
    if received > known:
        raise FencedMemberEpoch(
            f"The consumer group member has a greater member epoch ({received}) than the one known by the "
            f"group coordinator ({known}). The member must abandon all its partitions and rejoin."
        )
    if received != member.previous_epoch or not _is_within(event.owned, member):
        raise FencedMemberEpoch(
            f"The consumer group member has a smaller member epoch ({received}) than the one known by the "
            f"group coordinator ({known}). The member must abandon all its partitions and rejoin."
        )


def _has_all(owned: Mapping[UUID, frozenset[int]], member: ConsumerMember) -> bool:
    """Return whether these are the partitions that the member is assigned."""
    named = {topic: partitions for topic, partitions in owned.items() if partitions}
    return named == without_epochs(member.assigned)


def _is_within(owned: Mapping[UUID, frozenset[int]] | None, member: ConsumerMember) -> bool:
    return owned is not None and all(
        partitions <= member.assigned.get(topic, {}).keys() for topic, partitions in owned.items()
    )
