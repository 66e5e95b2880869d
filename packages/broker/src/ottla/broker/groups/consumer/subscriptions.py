"""Subscriptions of members: topics by name and by expression, and when a group epoch begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.groups.consumer.expressions import ExpressionsResolved, compiled, in_parts, resolve
from ottla.broker.groups.consumer.members import (
    ConsumerMember,
    epoch_record,
    expression_record,
    expression_tombstone,
    member_record,
)
from ottla.broker.groups.kinds import KindRecord, StepOutcome, Work
from ottla.protocol.stored_groups import ConsumerGroupPartitionMetadataKey
from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from ottla.broker.groups.consumer.stored_group import StoredConsumerGroup

EXPRESSIONS_AT_LEAST_MS: Final = 10_000
"""The time between two looks for the topics that expressions match."""


@frozen
class SubscriptionChange:
    """The group epoch after a member's change, and whether it reads by other names or another expression."""

    epoch: int
    has_new_subscription: bool


class Subscriptions:
    """The subscriptions of the members of one group."""

    def __init__(self, group: StoredConsumerGroup) -> None:
        self._group = group

    def subscribe(
        self,
        member: ConsumerMember,
        updated: ConsumerMember,
        may_describe: Callable[[str], bool] | None,
        wall_ms: int,
        outcome: StepOutcome,
    ) -> SubscriptionChange:
        """Store what a member has changed, and begin a group epoch if partitions may move by it.

        A member that reads by no expression and has no `may_describe` begins no look for topics.
        """
        group = self._group
        if updated != member:
            outcome.records.append(member_record(group.group_id, updated))
        names = updated.topics != member.topics
        has_expression, is_resolved = self._expression_changed(member, updated, outcome)
        if may_describe is not None:
            self._resolve(member, updated, may_describe, wall_ms, outcome)
        bumps = names or is_resolved or assignor_of(self._group, member, updated) != assignor_of(self._group)
        if bumps or group.checked_epoch is None or group.epoch < group.checked_epoch:
            return SubscriptionChange(
                self._compare_topics(bumps, member, updated, outcome), names or has_expression
            )
        return SubscriptionChange(group.epoch, names or has_expression)

    def _compare_topics(
        self, bumps: bool, member: ConsumerMember, updated: ConsumerMember, outcome: StepOutcome
    ) -> int:
        """Begin a group epoch if one is due, or the topics that members read have changed; return it."""
        group = self._group
        metadata_hash = group.topics.hash_of(self._topics_with(member, updated))
        epoch = group.epoch
        if bumps or metadata_hash != group.metadata_hash:
            epoch += 1
            outcome.records.append(epoch_record(group.group_id, epoch, metadata_hash))
            outcome.rebalanced += 1
        group.checked_epoch = epoch
        if group.has_topics_record:
            key = ConsumerGroupPartitionMetadataKey(group_id=group.group_id)
            outcome.records.append(KindRecord(group.group_id, key, None))
        return epoch

    def _topics_with(self, member: ConsumerMember, updated: ConsumerMember) -> Collection[str]:
        """Return the topics that members read once a member's change is stored."""
        readers, topics = self._group.readers, self._group.readers.topics()
        before = self._group.members.get(member.member_id) or self._group.static_member(member.instance_id)
        gone = () if before is None else before.topics - updated.topics
        topics -= {name for name in gone if readers.by_name[name] == 1 and name not in readers.by_expression}
        if member.expression and member.expression != updated.expression:
            topics -= self._topics_of_last(member.expression)
        return topics | updated.topics

    def _topics_of_last(self, expression: str) -> set[str]:
        """Return the topics that are read by this expression alone, if one member has it."""
        group = self._group
        known = group.expressions.get(expression)
        if known is None or group.expression_readers[expression] != 1:
            return set()
        readers = group.readers
        return {
            name for name in known.topics if name not in readers.by_name and readers.by_expression[name] == 1
        }

    # ---- expressions

    def _expression_changed(
        self, member: ConsumerMember, updated: ConsumerMember, outcome: StepOutcome
    ) -> tuple[bool, bool]:
        """Return whether a member has another expression, and whether its topics are known already."""
        group, before, after = self._group, member.expression, updated.expression
        if before == after:
            return False, False
        if before and group.expression_readers[before] == 1:
            outcome.records.append(expression_tombstone(group.group_id, before))
        if not after:
            return True, bool(before)
        if group.expression_readers[after] == 0:
            compiled(after)
            return True, False
        return True, after in group.expressions

    def _resolve(
        self,
        member: ConsumerMember,
        updated: ConsumerMember,
        may_describe: Callable[[str], bool],
        wall_ms: int,
        outcome: StepOutcome,
    ) -> None:
        """Begin to look for the topics of all expressions, if some are new or topics may be."""
        group = self._group
        is_new = updated.expression != member.expression and bool(updated.expression)
        is_new = is_new and group.expression_readers[updated.expression] == 0
        if (not is_new and not group.expression_readers) or group.resolves:
            return
        known = next(iter(group.expressions.values()), None)
        if known is not None and wall_ms <= known.at_ms + EXPRESSIONS_AT_LEAST_MS:
            return
        has_other = member.expression != updated.expression
        gone = has_other and group.expression_readers[member.expression] == 1
        count = len(group.expression_readers) + is_new - gone
        refresh_ms = group.surroundings.config.group_consumer_regex_refresh_interval_ms
        is_due = is_new or count != len(group.expressions)
        if known is not None:
            is_due |= group.resolved_version is None or group.resolved_version < group.topics.version
            is_due |= wall_ms > known.at_ms + refresh_ms
        if not is_due or not count:
            return
        wanted = dict.fromkeys(group.expression_readers)
        if gone:
            del wanted[member.expression]
        if updated.expression:
            wanted[updated.expression] = None
        group.resolves = True
        topics = group.topics

        def steps() -> Generator[None, None, Any]:
            return resolve(list(wanted), topics.names(), may_describe, topics.version, wall_ms)

        outcome.work.append(Work("resolve-expressions", steps, in_parts))

    def resolved(self, event: ExpressionsResolved) -> StepOutcome:
        """Store which topics the expressions match; with the last, begin a group epoch if others do."""
        group, outcome = self._group, StepOutcome()
        topics = group.readers.by_expression.copy() if event.is_last else Counter[str]()
        for expression, found in event.expressions.items():
            if group.expression_readers[expression] == 0:
                continue
            group.resolved_version = found.version
            before = group.expressions.get(expression)
            if before is None or before.topics != found.topics:
                group.matches_others |= bool(found.topics) or (before is not None and bool(before.topics))
                topics.subtract(() if before is None else before.topics)
                topics.update(found.topics)
            outcome.records.append(
                expression_record(group.group_id, expression, found.topics, found.version, found.at_ms)
            )
        if not event.is_last:
            return outcome
        group.resolves = False
        read = {name for name, count in topics.items() if count > 0} | group.readers.by_name.keys()
        metadata_hash = group.topics.hash_of(read)
        if group.matches_others or metadata_hash != group.metadata_hash:
            outcome.records.append(epoch_record(group.group_id, group.epoch + 1, metadata_hash))
            outcome.rebalanced += 1
            group.checked_epoch = group.epoch + 1
        return outcome

    # ---- members that leave

    def expressions_only_of(self, members: Iterable[ConsumerMember]) -> list[str]:
        """Return the expressions that no other member has."""
        counts: dict[str, int] = {}
        for member in members:
            if member.expression:
                counts[member.expression] = counts.get(member.expression, 0) + 1
        readers = self._group.expression_readers
        return [expression for expression, count in counts.items() if readers[expression] == count]

    def topics_without(self, members: Iterable[ConsumerMember], gone: Iterable[str]) -> Collection[str]:
        readers = self._group.readers
        by_name, by_expression = readers.by_name.copy(), readers.by_expression.copy()
        for member in members:
            by_name.subtract(member.topics)
        for expression in gone:
            by_expression.subtract(self._group.topics_matched(expression))
        return {name for counts in (by_name, by_expression) for name, count in counts.items() if count > 0}


def assignor_of(
    group: StoredConsumerGroup, before: ConsumerMember | None = None, after: ConsumerMember | None = None
) -> str:
    """Return the assignor that most members prefer, the broker's first one if none prefers any."""
    counts = group.assignors
    if before is not None and after is not None and before.assignor != after.assignor:
        counts = counts.copy()
        for preferred, by in ((before.assignor, -1), (after.assignor, 1)):
            if preferred is not None:
                counts[preferred] += by
    preferred = max(counts, key=lambda name: (counts[name], name), default=None)
    return preferred or group.surroundings.config.group_consumer_assignors[0]
