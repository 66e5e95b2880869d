"""Changed rules of consumer groups. The schedules of `consumer_groups` have to notice each of them."""

from __future__ import annotations

from typing import Any, Final

from ottla.broker.groups.consumer import heartbeats, members, migration, stored_group
from ottla.broker.groups.consumer.classic_members import ClassicMembers
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.heartbeats import Heartbeats
from ottla.broker.groups.consumer.reconciliation import Reconciliation
from ottla.broker.groups.consumer.stored_group import StoredConsumerGroup
from ottla.broker.groups.consumer.target_assignments import TargetAssignments
from ottla.broker.groups.hosting.hosted_groups import HostedGroups
from ottla.broker.groups.hosting.uncommitted_records import UncommittedRecords
from ottla.protocol.errors import ErrorCode
from ottla.protocol.stored_groups import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from ottla.zookeeper.frozen_classes import replace
from simulation.hosting_mutants import answers_come_before_replicas
from simulation.mutants import NamedMutants, Patch

CONSUMER_MUTANTS: Final = NamedMutants()
mutant: Final = CONSUMER_MUTANTS.add
mutant(answers_come_before_replicas)


_EPOCH_KEYS: Final = (ConsumerGroupMetadataKey, ConsumerGroupTargetAssignmentMetadataKey)


@mutant
def partitions_of_others_are_not_awaited() -> list[Patch]:
    """A member gets a partition that another one still has."""
    return [(StoredConsumerGroup, "is_free", lambda self, topic_id, partition: True)]


@mutant
def revocation_is_not_awaited() -> list[Patch]:
    """A member counts as having given its partitions up before it says so."""
    return [(Reconciliation, "_still_has", lambda self, partitions: False)]


@mutant
def pending_revocation_is_not_stored() -> list[Patch]:
    """The partitions that a member must give up are not in its record's state."""
    original = members.with_assignment

    def with_assignment(member: Any, value: Any) -> Any:
        return replace(original(member, value), revoking=members.NO_PARTITIONS)

    return [(stored_group, "with_assignment", with_assignment)]


@mutant
def any_epoch_may_send_heartbeats() -> list[Patch]:
    """A member that has missed an epoch is not fenced."""
    return [(heartbeats, "_check_epoch", lambda member, event: None)]


@mutant
def fenced_members_may_commit() -> list[Patch]:
    """A commit of a member that was removed is taken."""
    original = ConsumerGroup.check_commit

    def check_commit(self: Any, *given: Any, **more: Any) -> Any:
        code = original(self, *given, **more)
        return ErrorCode.NONE if code is ErrorCode.UNKNOWN_MEMBER_ID else code

    return [(ConsumerGroup, "check_commit", check_commit)]


@mutant
def any_epoch_may_commit() -> list[Patch]:
    """A member commits in an epoch in which it had not got the partition."""
    return [(ConsumerGroup, "_has_since", lambda self, member, epoch, partitions: True)]


@mutant
def no_past_epoch_may_commit() -> list[Patch]:
    """A member that learns its new epoch late cannot commit."""
    return [(ConsumerGroup, "_has_since", lambda self, member, epoch, partitions: False)]


@mutant
def answers_come_before_replicas_have_what_was_loaded() -> list[Patch]:
    """A member gets its answer before the records that its coordinator was loaded from are committed."""
    return [(UncommittedRecords, "begin", lambda self, partition: None)]


@mutant
def upgraded_members_have_what_they_are_assigned_alone() -> list[Patch]:
    """A group that becomes a consumer group forgets what members read until their SyncGroup is answered."""
    return _upgraded_members_have()


def _upgraded_members_have(**changes: Any) -> list[Patch]:
    """Change the members of an upgraded group, which have nothing to give up."""
    original = migration._apart

    def apart(claims: Any) -> Any:
        state, revoking = members.MemberState.STABLE, members.NO_PARTITIONS
        return [replace(member, state=state, revoking=revoking, **changes) for member in original(claims)]

    return [(migration, "_apart", apart)]


@mutant
def sessions_do_not_begin_with_a_load() -> list[Patch]:
    """A member that died before its coordinator did stays for ever."""
    return [(ConsumerGroup, "_loaded", lambda self, now_ms: None)]


@mutant
def heartbeats_do_not_renew_sessions() -> list[Patch]:
    """A member is removed a session after it joined."""
    original = Heartbeats.expect

    def expect(self: Any, member: Any, now_ms: float) -> None:
        if self._group.deadlines.get((members.Wait.SESSION, member.member_id)) is None:
            original(self, member, now_ms)

    return [(Heartbeats, "expect", expect)]


@mutant
def revocation_has_no_deadline() -> list[Patch]:
    """A member that never gives a partition up keeps it."""
    return [(StoredConsumerGroup, "expect_revocation", lambda self, member, now_ms: None)]


@mutant
def removed_members_do_not_raise_the_epoch() -> list[Patch]:
    """The partitions of a member that was removed go to no other."""
    original = Heartbeats.fence

    def fence(self: Any, *given: Any) -> Any:
        outcome = original(self, *given)
        if outcome.successor is None:
            outcome.records = [
                record for record in outcome.records
                if not isinstance(record.key, _EPOCH_KEYS)
            ]  # fmt: skip
        return outcome

    return [(Heartbeats, "fence", fence)]


@mutant
def returned_static_member_leaves_its_past_behind() -> list[Patch]:
    """The member whose place a static member takes stays in the group."""

    def replacement(self: Any, present: Any, returned: Any) -> Any:
        return [members.member_record(self._group.group_id, returned)]

    return [(Heartbeats, "_replacement", replacement)]


@mutant
def expressions_are_compared_with_topics_of_another_broker() -> list[Patch]:
    """A new topic is not looked for after a change of the coordinator."""

    def loaded(self: Any, now_ms: float) -> None:
        original(self, now_ms)
        self.resolved_version = max((known.version for known in self.expressions.values()), default=None)

    original = ConsumerGroup._loaded
    return [(ConsumerGroup, "_loaded", loaded)]


@mutant
def new_topics_are_not_noticed() -> list[Patch]:
    """Topics that change begin no group epoch."""
    return [(ConsumerGroup, "topics_changed", lambda self, names: None)]


@mutant
def upgraded_members_have_nothing() -> list[Patch]:
    """The members of a classic group come without their partitions."""
    return _upgraded_members_have(assigned=members.NO_PARTITIONS)


@mutant
def upgraded_generation_begins_again() -> list[Patch]:
    """A classic group becomes a consumer group in an epoch of its past."""

    def upgrade_records(group: Any, topics: Any) -> Any:
        records = make(group, topics)
        return [
            members.epoch_record(group.group_id, 1, record.value.metadata_hash)
            if isinstance(record.value, ConsumerGroupMetadataValue) else record
            for record in records
        ]  # fmt: skip

    make = migration.upgrade_records
    return [(migration, "upgrade_records", upgrade_records)]


@mutant
def classic_members_are_not_asked_to_join() -> list[Patch]:
    """A classic member hears nothing of a new assignment."""
    return [(ClassicMembers, "_must_join", lambda self, member: False)]


@mutant
def classic_members_alone_are_not_asked_to_join() -> list[Patch]:
    """Where only classic members are left, partitions of one that died go to no other."""

    def must_join(self: Any, member: Any) -> bool:
        return original(self, member) and (
            member.epoch < self._group.assignment_epoch or member.state is not members.MemberState.STABLE
        )

    original = ClassicMembers._must_join
    return [(ClassicMembers, "_must_join", must_join)]


@mutant
def work_goes_on_without_its_records() -> list[Patch]:
    """An assignment is made for a group epoch that the log has refused."""
    original = HostedGroups._write_records

    def write_records(self: Any, hosted: Any, outcome: Any) -> bool:
        original(self, hosted, outcome)
        return True

    return [(HostedGroups, "_write_records", write_records)]


@mutant
def parts_of_an_assignment_count_at_once() -> list[Patch]:
    """The first part of an assignment ends it."""
    original = TargetAssignments.assigned

    def assigned(self: Any, event: Any, wall_ms: int) -> Any:
        if event.epoch is None:
            event = replace(event, targets=())
        return original(self, event, wall_ms)

    return [(TargetAssignments, "assigned", assigned)]
