"""The way of one member from what it has to what it shall have: it gives up first, then takes.

    Stable --- a new target assignment ---> UnrevokedPartitions, while it has what others shall have
                                                   | its heartbeat shows that it gave them up
                                                   v
    Stable <-- all partitions are free ---- UnreleasedPartitions, while others have what it shall have

A member keeps its epoch while it gives up partitions, and goes to the epoch of the target assignment then. It
takes a partition only if no member has it in any epoch. So no partition has two owners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from ottla.broker.groups.assigned.assignors import Assignment
from ottla.broker.groups.consumer.members import (
    NO_PARTITIONS,
    ConsumerMember,
    MemberState,
    PartitionEpochs,
    moved_to,
)
from ottla.protocol.errors import FencedMemberEpoch
from ottla.zookeeper.frozen_classes import frozen


@frozen(kw_only=True)
class Reconciliation:
    """The facts that the next assignment of a member depends on."""

    target_epoch: int
    target: Assignment
    is_subscribed_to: Callable[[UUID], bool]
    is_free: Callable[[UUID, int], bool]
    """Whether no member has a partition."""
    has_new_subscription: bool = False
    owned: Mapping[UUID, frozenset[int]] | None = None
    """The partitions that the member says it has; None if it does not say it."""

    def next_of(self, member: ConsumerMember) -> ConsumerMember:
        """Return the member with its next assignment. Raises FencedMemberEpoch."""
        match member.state:
            case MemberState.STABLE:
                if member.epoch != self.target_epoch:
                    return self._next(member, member.epoch)
                return self._unsubscribed(member)
            case MemberState.UNREVOKED_PARTITIONS:
                if self._still_has(member.revoking):
                    return self._unsubscribed(member)
                return self._next(member, member.epoch)
            case MemberState.UNRELEASED_PARTITIONS:
                return self._next(member, member.epoch)
            case _:
                if self.owned is None or self.owned:
                    raise FencedMemberEpoch(
                        "The consumer group member is in a unknown state. "
                        "The member must abandon all its partitions and rejoin."
                    )
                return self._next(member, self.target_epoch)

    def _still_has(self, partitions: PartitionEpochs) -> bool:
        if self.owned is None:
            return bool(partitions)
        return any(not owned.isdisjoint(partitions.get(topic, ())) for topic, owned in self.owned.items())

    def _unsubscribed(self, member: ConsumerMember) -> ConsumerMember:
        """Take the partitions of topics that the member does not read any more, before the next target."""
        if not self.has_new_subscription:
            return member
        kept: dict[UUID, Mapping[int, int]] = {}
        revoking: dict[UUID, Mapping[int, int]] = dict(member.revoking)
        for topic, epochs in member.assigned.items():
            if self.is_subscribed_to(topic):
                kept[topic] = epochs
            else:
                revoking[topic] = {**revoking.get(topic, {}), **epochs}
        if len(kept) == len(member.assigned):
            return member
        if self._still_has(revoking):
            return moved_to(
                member, member.epoch, MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking
            )
        return moved_to(member, member.epoch, member.state, assigned=kept)

    def _next(self, member: ConsumerMember, epoch: int) -> ConsumerMember:
        kept: dict[UUID, Mapping[int, int]] = {}
        revoking: dict[UUID, Mapping[int, int]] = {}
        taken: dict[UUID, list[int]] = {}
        waits = False
        for topic in {**self.target, **member.assigned}:
            target = self.target.get(topic, frozenset()) if self.is_subscribed_to(topic) else frozenset()
            present = member.assigned.get(topic, {})
            keep = {index: since for index, since in present.items() if index in target}
            if keep:
                kept[topic] = keep
            if len(keep) < len(present):
                revoking[topic] = {index: since for index, since in present.items() if index not in target}
            if len(keep) < len(target):
                wanted = sorted(target.difference(keep))
                free = [index for index in wanted if self._may_take(member, topic, index)]
                waits |= len(free) < len(wanted)
                if free:
                    taken[topic] = free
        if revoking and self._still_has(revoking):
            return moved_to(member, epoch, MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking)
        for topic, indexes in taken.items():
            kept[topic] = {**kept.get(topic, {}), **dict.fromkeys(indexes, self.target_epoch)}
        state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
        return moved_to(member, self.target_epoch, state, assigned=kept, revoking=NO_PARTITIONS)

    def _may_take(self, member: ConsumerMember, topic: UUID, index: int) -> bool:
        return self.is_free(topic, index) or index in member.revoking.get(topic, ())
