"""The part of a consumer group that the log keeps, with the counts that follow. Only records change it.

Deadlines, and what is known of work in progress, stand beside: they are not stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ottla.broker.coordinators.timers import Deadlines
from ottla.broker.groups.assigned.assignors import NOTHING, Assignment
from ottla.broker.groups.assigned.topics import GroupTopics, add
from ottla.broker.groups.consumer.expressions import ResolvedExpression
from ottla.broker.groups.consumer.members import (
    ConsumerMember,
    MemberState,
    PartitionEpochs,
    Wait,
    expression_tombstone,
    member_tombstones,
    with_assignment,
    with_metadata,
)
from ottla.broker.groups.kinds import ExpiryRule, KindRecord
from ottla.protocol.errors import UnknownMemberId
from ottla.protocol.stored_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

if TYPE_CHECKING:
    from ottla.broker.groups.kinds import GroupSurroundings

FIRST_EPOCH: Final = 1
NO_TOPICS: Final[frozenset[str]] = frozenset()
_SETTINGS: Final = {
    "session_timeout_ms": (
        "group_consumer_session_timeout_ms",
        "group_consumer_min_session_timeout_ms",
        "group_consumer_max_session_timeout_ms",
    ),
    "heartbeat_interval_ms": (
        "group_consumer_heartbeat_interval_ms",
        "group_consumer_min_heartbeat_interval_ms",
        "group_consumer_max_heartbeat_interval_ms",
    ),
    "assignment_interval_ms": (
        "group_consumer_assignment_interval_ms",
        "group_consumer_min_assignment_interval_ms",
        "group_consumer_max_assignment_interval_ms",
    ),
}
"""For each setting that a group may have: the broker's own, and its bounds."""


class ConsumerGroupState(Enum):
    """The states of a consumer group, by the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class Readers:
    """How many members read a topic by its name, and by how many expressions it is read."""

    __slots__ = ("by_expression", "by_name")

    def __init__(self) -> None:
        self.by_name: Counter[str] = Counter()
        self.by_expression: Counter[str] = Counter()

    def topics(self) -> set[str]:
        """The topics that are read."""
        return self.by_name.keys() | self.by_expression.keys()

    def __contains__(self, topic: str) -> bool:
        return topic in self.by_name or topic in self.by_expression

    def read_one_of(self, topics: Set[str]) -> bool:
        """Return whether one of these topics is read; it takes as long as the shorter of the lists."""
        return any(
            any(name in topics for name in counts)
            if len(counts) < len(topics)
            else any(name in counts for name in topics)
            for counts in (self.by_name, self.by_expression)
        )


class StoredConsumerGroup:
    """The stored part of one group. `replay` changes it."""

    def __init__(self, group_id: str, surroundings: GroupSurroundings) -> None:
        self.group_id = group_id
        self.surroundings = surroundings
        self.topics = GroupTopics(surroundings.metadata)
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assigned_at_ms = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        """Instance id -> member id."""
        self.targets: dict[str, Assignment] = {}
        self.expressions: dict[str, ResolvedExpression] = {}
        self.readers = Readers()
        self.expression_readers: Counter[str] = Counter()
        self.assignors: Counter[str] = Counter()
        self.classic_protocols: Counter[str] = Counter()
        self.classic_count = 0
        self.has_topics_record = False
        self.deadlines: Deadlines[tuple[Wait, str]] = Deadlines()
        self.revokes_in: dict[str, int] = {}
        """Member id -> the epoch in which it must give up partitions until its deadline."""
        self.unconfirmed: set[str] = set()
        """The members that have not yet told that they have what they were assigned."""
        self.checked_epoch: int | None = None
        """The group epoch in which the topics were compared last; None when they may have changed since."""
        self.resolves = False
        """Whether expressions are being resolved."""
        self.matches_others = False
        """Whether expressions match other topics than in the last group epoch."""
        self.resolved_version: int | None = None
        """The version of this broker's topics for which they were resolved last; None before that.

        The version in a record counts the topics of the broker that wrote it.
        """
        self.assigns = False
        """Whether a target assignment is being made in steps."""
        self._matches: dict[frozenset[str], tuple[frozenset[str], int]] = {}
        """Each set of topics that expressions match, once, and how many match it."""
        self._stable_in: Counter[int] = Counter()
        """How many members have all that they shall have, by their epoch."""
        self._owners: dict[UUID, dict[int, int]] = {}
        """The epoch of the member that has a partition, by topic and partition."""
        self._is_stored = False

    # ---- reading

    @property
    def state(self) -> ConsumerGroupState:
        """The present state."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if self._stable_in[self.assignment_epoch] == len(self.members):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def member_count(self) -> int:
        """The number of members."""
        return len(self.members)

    @property
    def is_empty(self) -> bool:
        """Whether the group has no member, so that it may be deleted."""
        return not self.members

    @property
    def may_expire(self) -> bool:
        """Whether the group goes once it has no offset any more."""
        return not self.members

    @property
    def is_unused(self) -> bool:
        """Whether the log has no record of the group."""
        return not self._is_stored and not self.members

    @property
    def wake_at_ms(self) -> float | None:
        """When `TimePassed` is due; None when the group waits for no deadline."""
        return self.deadlines.next_ms()

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads this topic."""
        return topic in self.readers

    def expiry_rule(self) -> ExpiryRule | None:
        """Return how offsets expire: each from its commit, once no member reads its topic."""
        return ExpiryRule(None, frozenset(self.readers.topics()))

    def member(self, member_id: str) -> ConsumerMember:
        """Return a member. Raises UnknownMemberId."""
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """Return the member with this instance id."""
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def target_of(self, member_id: str, instance_id: str | None) -> Assignment:
        """Return what a member shall have; a static one that returns, what it had under its last id."""
        if instance_id is not None:
            member_id = self.static_members.get(instance_id, "")
        return self.targets.get(member_id, NOTHING)

    def is_free(self, topic_id: UUID, partition: int) -> bool:
        """Whether no member has this partition."""
        return partition not in self._owners.get(topic_id, ())

    def setting_ms(self, name: str) -> int:
        """Return a setting of this group within the broker's bounds, the broker's own where it has none.

        `name` is that of the broker's field without its beginning, as `session_timeout_ms`.
        """
        default, low, high = attrgetter(*_SETTINGS[name])(self.surroundings.config)
        own = self.surroundings.group_settings(self.group_id).get(f"consumer.{name.replace('_', '.')}")
        value: int = default if own is None else max(low, min(int(own), high))
        return value

    def topics_matched(self, expression: str) -> frozenset[str]:
        """Return the topics that an expression matches, as far as that is known."""
        known = self.expressions.get(expression) if expression else None
        return frozenset() if known is None else known.topics

    # ---- deadlines that records end

    def expect_revocation(self, member: ConsumerMember, now_ms: float) -> None:
        """Remove the member if it has not given up its partitions within its rebalance timeout."""
        self.revokes_in[member.member_id] = member.epoch
        self.deadlines.set((Wait.REBALANCE, member.member_id), now_ms + member.rebalance_timeout_ms)

    def forget_revocation(self, member_id: str) -> None:
        """Wait no longer for the member to give up partitions."""
        if self.revokes_in.pop(member_id, None) is not None:
            self.deadlines.cancel((Wait.REBALANCE, member_id))

    # ---- records

    def replay(self, record: KindRecord) -> None:
        """Apply one record of the log."""
        match record.key, record.value:
            case ConsumerGroupMemberMetadataKey(
                member_id=member_id
            ), ConsumerGroupMemberMetadataValue() as value:
                self._put(with_metadata(self._member_or_new(member_id), value))
            case ConsumerGroupMemberMetadataKey(member_id=member_id), None:
                self._remove(member_id)
            case (
                ConsumerGroupCurrentMemberAssignmentKey(member_id=member_id),
                ConsumerGroupCurrentMemberAssignmentValue() as value,
            ):
                self._put(with_assignment(self._member_or_new(member_id), value))
            case ConsumerGroupCurrentMemberAssignmentKey(member_id=member_id), None:
                if member := self.members.get(member_id):
                    self._put(with_assignment(member, None))
            case (
                ConsumerGroupTargetAssignmentMemberKey(member_id=member_id),
                ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics),
            ):
                self.targets[member_id] = {topic.topic_id: frozenset(topic.partitions) for topic in topics}
            case ConsumerGroupTargetAssignmentMemberKey(member_id=member_id), None:
                self.targets.pop(member_id, None)
            case _:
                self._replay_of_group(record)

    def _replay_of_group(self, record: KindRecord) -> None:
        match record.key, record.value:
            case ConsumerGroupMetadataKey(), ConsumerGroupMetadataValue(
                epoch=epoch, metadata_hash=metadata_hash
            ):
                self.epoch, self.metadata_hash, self._is_stored = epoch, metadata_hash, True
                self.matches_others = False
            case ConsumerGroupMetadataKey(), None:
                self.epoch, self.metadata_hash, self._is_stored = FIRST_EPOCH, 0, False
            case (
                ConsumerGroupTargetAssignmentMetadataKey(),
                ConsumerGroupTargetAssignmentMetadataValue(
                    assignment_epoch=epoch, assignment_timestamp=at_ms
                ),
            ):
                self.assignment_epoch, self.assigned_at_ms = epoch, at_ms
            case ConsumerGroupTargetAssignmentMetadataKey(), None:
                self.assignment_epoch, self.assigned_at_ms = -1, 0
            case (
                ConsumerGroupRegularExpressionKey(regular_expression=expression),
                ConsumerGroupRegularExpressionValue(topics=topics, version=version, timestamp=at_ms),
            ):
                self._forget_expression(expression)
                self.expressions[expression] = ResolvedExpression(self._matched(topics), version, at_ms)
                add(self.readers.by_expression, topics, 1)
            case ConsumerGroupRegularExpressionKey(regular_expression=expression), None:
                self._forget_expression(expression)
            case ConsumerGroupPartitionMetadataKey(), value:
                self.has_topics_record = value is not None

    def _forget_expression(self, expression: str) -> None:
        known = self.expressions.pop(expression, None)
        if known is None:
            return
        add(self.readers.by_expression, known.topics, -1)
        topics, count = self._matches.pop(known.topics)
        if count > 1:
            self._matches[topics] = topics, count - 1

    def _matched(self, names: Iterable[str]) -> frozenset[str]:
        """Return a set of topics, the same for all expressions that match them: thousands may match all."""
        topics, count = self._matches.get(found := frozenset(names), (found, 0))
        self._matches[topics] = topics, count + 1
        return topics

    def _member_or_new(self, member_id: str) -> ConsumerMember:
        return self.members.get(member_id) or ConsumerMember(member_id=member_id)

    def _put(self, member: ConsumerMember) -> None:
        before = self.members.get(member.member_id)
        if before is not None:
            self._count(before, -1)
        self.members[member.member_id] = member
        self._count(member, 1)
        self._count_topics(NO_TOPICS if before is None else before.topics, member.topics)

    def _count_topics(self, before: frozenset[str], topics: frozenset[str]) -> None:
        """Count the topics that a member reads by name, as far as they have changed."""
        if topics is not before:
            add(self.readers.by_name, before - topics, -1)
            add(self.readers.by_name, topics - before, 1)

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count(member, -1)
        self._count_topics(member.topics, NO_TOPICS)
        self.unconfirmed.discard(member_id)
        self.forget_revocation(member_id)
        for wait in Wait:
            self.deadlines.cancel((wait, member_id))

    def _count(self, member: ConsumerMember, by: int) -> None:
        """Count what one member is, supports and has; or take it out again."""
        if member.state is MemberState.STABLE:
            add(self._stable_in, (member.epoch,), by)
        if member.expression:
            add(self.expression_readers, (member.expression,), by)
        if member.assignor is not None:
            add(self.assignors, (member.assignor,), by)
        if member.classic is not None:
            self.classic_count += by
            add(self.classic_protocols, (name for name, _ in member.classic.supported), by)
        if member.instance_id is not None:
            if by > 0:
                self.static_members[member.instance_id] = member.member_id
            elif self.static_members.get(member.instance_id) == member.member_id:
                del self.static_members[member.instance_id]
        for partitions in (member.assigned, member.revoking):
            if by > 0:
                self._own(partitions, member.epoch)
            else:
                self._disown(partitions, member.epoch)

    def _own(self, partitions: PartitionEpochs, epoch: int) -> None:
        for topic_id, indexes in partitions.items():
            owners = self._owners.setdefault(topic_id, {})
            for index in indexes:
                owners[index] = max(epoch, owners.get(index, epoch))

    def _disown(self, partitions: PartitionEpochs, epoch: int) -> None:
        """Free partitions, but for those that another member has in a newer epoch.

        A load finds them twice where compaction has left the later record of one member only.
        """
        for topic_id, indexes in partitions.items():
            owners = self._owners.get(topic_id, {})
            for index in indexes:
                if owners.get(index) == epoch:
                    del owners[index]
            if not owners:
                self._owners.pop(topic_id, None)

    def tombstones(self) -> list[KindRecord]:
        """Return the records that delete the group from the log."""
        group_id = self.group_id
        records = [record for member_id in self.members for record in member_tombstones(group_id, member_id)]
        records += [expression_tombstone(group_id, expression) for expression in self.expressions]
        keys = [ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupMetadataKey]
        if self.has_topics_record:
            keys.insert(0, ConsumerGroupPartitionMetadataKey)
        return [*records, *(KindRecord(group_id, key(group_id=group_id), None) for key in keys)]
