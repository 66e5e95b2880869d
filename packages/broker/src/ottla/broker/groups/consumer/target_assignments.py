"""The target assignments of a group: made by an assignor for a group epoch, at once or in steps."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ottla.broker.groups.assigned.assignors import (
    ASSIGNORS,
    NOTHING,
    Assignment,
    AssignmentPart,
    Assignor,
    GroupSpec,
    MemberSpec,
    in_parts,
)
from ottla.broker.groups.consumer.members import ConsumerMember, target_epoch_record, target_record
from ottla.broker.groups.consumer.subscriptions import assignor_of
from ottla.broker.groups.kinds import StepOutcome, Work
from ottla.broker.runtime.loop_budget import LONG, SLICE, at_once, slices

if TYPE_CHECKING:
    from ottla.broker.groups.consumer.stored_group import StoredConsumerGroup

ASSIGN: Final = "assign"
"""The work that makes an assignment in steps."""
_MANY_PARTITIONS: Final = 5_000
_MANY_READ: Final = 10_000
"""Topics that members read, each counted as often as it is read."""


class TargetAssignments:
    """Makes the target assignments of one group."""

    def __init__(self, group: StoredConsumerGroup) -> None:
        self._group = group

    def assign(
        self,
        member: ConsumerMember,
        updated: ConsumerMember,
        epoch: int,
        wall_ms: int,
        outcome: StepOutcome,
    ) -> tuple[int, Assignment]:
        """Make the target assignment of a new group epoch; return the present one of the member.

        Within the interval between two assignments the last one stays. That of a large group is made in
        steps.
        """
        group = self._group
        last = group.assignment_epoch, group.target_of(updated.member_id, updated.instance_id)
        interval_ms = group.setting_ms("assignment_interval_ms")
        may_assign = 0 in (group.assigned_at_ms, interval_ms) or wall_ms >= group.assigned_at_ms + interval_ms
        if group.assignment_epoch >= epoch or group.assigns or not may_assign:
            return last
        members, targets = self._with(updated)
        steps = self._assignment(members, targets, ASSIGNORS[assignor_of(self._group, member, updated)])
        if self._is_long(members.values()):
            group.assigns = True
            outcome.work.append(Work(ASSIGN, lambda: steps, lambda changed: in_parts(changed, epoch)))
            return last
        changed = at_once(steps)
        outcome.records += [
            target_record(group.group_id, member_id, target) for member_id, target in changed.items()
        ]
        outcome.records.append(target_epoch_record(group.group_id, epoch, wall_ms))
        return epoch, changed.get(updated.member_id, targets.get(updated.member_id, NOTHING))

    def _is_long(self, members: Collection[ConsumerMember]) -> bool:
        return (
            len(members) > LONG
            or self._partitions_to_assign() > _MANY_PARTITIONS
            or sum(map(self._topics_read, members)) > _MANY_READ
        )

    def _topics_read(self, member: ConsumerMember) -> int:
        return len(member.topics) + len(self._group.topics_matched(member.expression))

    def _partitions_to_assign(self) -> int:
        topics = self._group.topics
        return sum(
            topics.partition_count(topics.id_of(name) or UUID(int=0)) for name in self._group.readers.topics()
        )

    def _with(self, updated: ConsumerMember) -> tuple[dict[str, ConsumerMember], dict[str, Assignment]]:
        """Return members and targets with a member that is not stored yet, in place of its earlier id."""
        group = self._group
        members, targets = group.members.copy(), group.targets.copy()
        earlier = None if updated.instance_id is None else group.static_members.get(updated.instance_id)
        if earlier is not None and earlier != updated.member_id:
            del members[earlier]
            targets[updated.member_id] = targets.pop(earlier, NOTHING)
        members[updated.member_id] = updated
        return members, targets

    def _assignment(
        self, members: Mapping[str, ConsumerMember], targets: Mapping[str, Assignment], assignor: Assignor
    ) -> Generator[None, None, dict[str, Assignment]]:
        """Assign all partitions; return the members that shall have others than before, with theirs."""
        topics_of: dict[tuple[frozenset[str], frozenset[str]], frozenset[UUID]] = {}
        counts: dict[UUID, int] = {}
        specs: dict[str, MemberSpec] = {}
        subscriptions: set[tuple[frozenset[str], str]] = set()
        for number, (member_id, member) in enumerate(members.items()):
            matched = self._group.topics_matched(member.expression)
            read = topics_of.get((member.topics, matched))
            if read is None:
                read = topics_of[member.topics, matched] = self._group.topics.ids_of(member.topics | matched)
                for topic in read:
                    if topic not in counts:
                        counts[topic] = self._group.topics.partition_count(topic)
                yield
            subscriptions.add((member.topics, member.expression))
            specs[member_id] = MemberSpec(read, targets.get(member_id, NOTHING), member.instance_id)
            if number % SLICE == 0:
                yield
        assigned = yield from assignor(GroupSpec(specs, counts, _is_homogeneous(subscriptions)))
        changed: dict[str, Assignment] = {}
        for some in slices(members):
            for member_id in some:
                target = assigned.get(member_id, NOTHING)
                if target != targets.get(member_id):
                    changed[member_id] = target
            yield
        return changed

    def assigned(self, event: AssignmentPart, wall_ms: int) -> StepOutcome:
        """Store a part of a target assignment; members that left meanwhile get none."""
        group = self._group
        records = [
            target_record(group.group_id, member_id, target)
            for member_id, target in event.targets
            if member_id in group.members
        ]
        if event.epoch is not None:
            group.assigns = False
            if event.epoch > group.assignment_epoch:
                records.append(target_epoch_record(group.group_id, event.epoch, wall_ms))
        return StepOutcome(list(records))


def _is_homogeneous(subscriptions: Collection[tuple[frozenset[str], str]]) -> bool:
    """Whether all members have the same subscription, by names or by one expression."""
    return len(subscriptions) == 1 and not all(next(iter(subscriptions)))
