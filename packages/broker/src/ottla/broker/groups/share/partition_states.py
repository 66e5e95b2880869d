"""The partitions of a share group whose state at the share coordinator has begun, or was asked for.

    unknown -> initializing (a heartbeat asks for it) -> initialized

Records change it, by `replay`; only when a state was asked for is kept beside them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ottla.broker.groups.kinds import KindRecord
from ottla.broker.groups.share.members import partitions_of
from ottla.protocol import stored_groups as stored

if TYPE_CHECKING:
    from ottla.broker.groups.assigned.topics import GroupTopics
    from ottla.broker.groups.share.assignor import Assignment

_NO_PARTITIONS: Final[frozenset[int]] = frozenset()


class PartitionStates:
    """The states of one group's partitions."""

    def __init__(self, group_id: str, topics: GroupTopics) -> None:
        self.initializing: Assignment = {}
        self.initialized: Assignment = {}
        self.is_stored = False
        """Whether the log has a record of them."""
        self._group_id = group_id
        self._topics = topics
        self._of_members: Assignment | None = None
        """Partitions that members read and whose state has not begun; None once it may have changed."""
        self._asked_at_ms: dict[UUID, float] = {}
        """When the state of a topic was last asked for, in this leadership."""

    def known(self, topic: UUID) -> frozenset[int]:
        """Return the partitions of a topic whose state has begun or was asked for."""
        return self.initialized.get(topic, _NO_PARTITIONS) | self.initializing.get(topic, _NO_PARTITIONS)

    # ---- what has not begun

    def uninitialized(self, names: Iterable[str]) -> Assignment:
        """Return the partitions of topics whose state has not begun."""
        found: dict[UUID, frozenset[int]] = {}
        for topic in self._topics.ids_of(names):
            count, begun = self._topics.partition_count(topic), self.initialized.get(topic, _NO_PARTITIONS)
            if missing := frozenset(number for number in range(count) if number not in begun):
                found[topic] = missing
        return found

    def uninitialized_of_members(self, readers: Collection[str]) -> Assignment:
        """Return the same of the topics that members read, computed once until something changes."""
        if self._of_members is None:
            self._of_members = self.uninitialized(readers)
        return self._of_members

    def readers_changed(self) -> None:
        """Compute again what members read: their topics, or the partitions of these, have changed."""
        self._of_members = None

    def ask_for(self, missing: Assignment, now_ms: float, retry_ms: int) -> Assignment:
        """Return the partitions to ask for now: new ones, and others after a time without an answer."""
        wanted = {
            topic: numbers
            for topic, numbers in missing.items()
            if self._is_due(topic, numbers, now_ms - retry_ms)
        }
        self._asked_at_ms.update(dict.fromkeys(wanted, now_ms))
        return wanted

    def _is_due(self, topic: UUID, missing: frozenset[int], before_ms: float) -> bool:
        is_asked = missing <= self.initializing.get(topic, _NO_PARTITIONS)
        asked_ms = self._asked_at_ms.get(topic)
        return not is_asked or asked_ms is None or asked_ms <= before_ms

    def answered(self, topics: Iterable[UUID]) -> None:
        """Ask for the state of topics again where some of it has not begun."""
        for topic in topics:
            self._asked_at_ms.pop(topic, None)

    # ---- records

    def begin(self, partitions: Assignment) -> list[KindRecord]:
        """Return the record of partitions whose state is asked for; none where that is stored."""
        if all(
            numbers <= self.initializing.get(topic, _NO_PARTITIONS) for topic, numbers in partitions.items()
        ):
            return []
        return [self._record(_joined(self.initializing, partitions), self.initialized)]

    def begun(self, partitions: Assignment) -> list[KindRecord]:
        """Return the record of partitions whose state has begun."""
        initializing = {
            topic: numbers - partitions.get(topic, _NO_PARTITIONS)
            for topic, numbers in self.initializing.items()
        }
        return [self._record(initializing, _joined(self.initialized, partitions))]

    def deleted(self, topics: Collection[UUID]) -> list[KindRecord]:
        """Return the record without topics whose state was deleted."""
        initializing, initialized = (
            {topic: numbers for topic, numbers in present.items() if topic not in topics}
            for present in (self.initializing, self.initialized)
        )
        return [self._record(initializing, initialized)]

    def tombstones(self) -> list[KindRecord]:
        """Return the records that delete all of it."""
        return [KindRecord(self._group_id, self._key(), None)] if self.is_stored else []

    def replay(self, value: Any) -> None:
        """Apply a record of the log, or None for a tombstone."""
        self.is_stored = value is not None
        self.initializing = {} if value is None else partitions_of(value.initializing_topics)
        self.initialized = {} if value is None else partitions_of(value.initialized_topics)
        self._of_members = None

    def _key(self) -> stored.ShareGroupStatePartitionMetadataKey:
        return stored.ShareGroupStatePartitionMetadataKey(group_id=self._group_id)

    def _record(self, initializing: Assignment, initialized: Assignment) -> KindRecord:
        """Return the record of these partitions, without those of deleted topics."""

        def infos(topics: Assignment) -> list[stored.TopicPartitionsInfo]:
            return [
                stored.TopicPartitionsInfo(topic_id=topic, topic_name=name, partitions=sorted(numbers))
                for topic, numbers in topics.items()
                if numbers and (name := self._topics.name_of(topic)) is not None
            ]

        value = stored.ShareGroupStatePartitionMetadataValue(
            initializing_topics=infos(initializing), initialized_topics=infos(initialized)
        )
        return KindRecord(self._group_id, self._key(), value)


def _joined(present: Assignment, others: Assignment) -> dict[UUID, frozenset[int]]:
    """Return the partitions of both."""
    return {
        topic: present.get(topic, _NO_PARTITIONS) | others.get(topic, _NO_PARTITIONS)
        for topic in (*present, *others)
    }
