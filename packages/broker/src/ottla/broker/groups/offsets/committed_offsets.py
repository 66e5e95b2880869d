"""The offsets of one group: committed ones, pending commits, transactional commits, and their expiration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from uuid import UUID

from ottla.broker.cluster.metadata import NO_ID
from ottla.broker.groups.kinds import ExpiryRule
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import frozen

NO_OFFSET: Final = -1
NO_LEADER_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1


@frozen(kw_only=True)
class CommittedOffset:
    """The next offset that a group will read from a partition; timestamps are wall-clock milliseconds.

    `expire_timestamp_ms` is set only by requests with a retention of their own (before KIP-211). `topic_id`
    is that of the topic at the commit; zeros where it is unknown, as in commits that Apache Kafka wrote.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int | None = None
    topic_id: UUID = NO_ID


@frozen
class _StoredOffset:
    committed: CommittedOffset
    position: int
    """Its offset in the log: a commit that is confirmed late does not undo a later one."""


class GroupOffsets:
    """The committed offsets of one group.

    A commit is pending while it is written (`begin` to `settled`), and visible from `load` on, when all
    in-sync replicas have it. Transactional commits are pending under their producer id, from their append
    until the transaction ends.
    """

    def __init__(self) -> None:
        self._stored: dict[TopicPartition, _StoredOffset] = {}
        self._pending: dict[TopicPartition, int] = {}
        self._transactional: dict[int, dict[TopicPartition, _StoredOffset]] = {}
        """Producer id -> what its open transaction commits."""

    # ---- reading

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(list(self._stored))

    def get(self, partition: TopicPartition) -> CommittedOffset | None:
        """The committed offset of a partition, or None."""
        stored = self._stored.get(partition)
        return stored.committed if stored else None

    def all(self) -> dict[TopicPartition, CommittedOffset]:
        """Every committed offset."""
        return {partition: stored.committed for partition, stored in self._stored.items()}

    @property
    def is_idle(self) -> bool:
        """Whether there is no offset and no pending commit."""
        return not (self._stored or self._pending or self._transactional)

    @property
    def known(self) -> set[TopicPartition]:
        """The partitions that have an offset, or one in an open transaction."""
        return {
            *self._stored,
            *(partition for offsets in self._transactional.values() for partition in offsets),
        }

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether a commit that is being written, or an open transaction, may change it yet (KIP-447)."""
        return partition in self._pending or any(
            partition in offsets for offsets in self._transactional.values()
        )

    # ---- plain commits

    def begin(self, offsets: Iterable[TopicPartition]) -> None:
        """Mark these offsets as pending: a commit of them is being written."""
        for partition in offsets:
            self._pending[partition] = self._pending.get(partition, 0) + 1

    def settled(self, offsets: Iterable[TopicPartition]) -> None:
        """Remove the mark: the commit is in the log, and replayed through `load`, or it failed."""
        for partition in offsets:
            left = self._pending.get(partition, 0) - 1
            if left > 0:
                self._pending[partition] = left
            else:
                self._pending.pop(partition, None)

    def load(self, partition: TopicPartition, committed: CommittedOffset, position: int) -> None:
        """Apply an offset that is committed at `position` in the log, unless a later one is known."""
        stored = self._stored.get(partition)
        if stored is None or stored.position <= position:
            self._stored[partition] = _StoredOffset(committed, position)

    def replay(
        self,
        partition: TopicPartition,
        committed: CommittedOffset | None,
        position: int,
        producer_id: int | None,
    ) -> None:
        """Apply one offset record of the log: of a plain commit, of a transaction, or a tombstone."""
        if committed is None:
            self.forget([partition])
        elif producer_id is None:
            self.load(partition, committed, position)
        else:
            self.written_transactional(producer_id, {partition: committed}, position)

    # ---- transactional commits

    def written_transactional(
        self, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset], position: int
    ) -> None:
        """Apply offsets of a transaction that were appended; they become visible when it commits."""
        pending = self._transactional.setdefault(producer_id, {})
        for partition, committed in offsets.items():
            pending[partition] = _StoredOffset(committed, position)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """End a transaction: its offsets become visible, or are dropped."""
        for partition, stored in self._transactional.pop(producer_id, {}).items():
            if commit:
                self.load(partition, stored.committed, stored.position)

    # ---- removing

    def forget(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Remove offsets; returns those that existed and need a tombstone."""
        return [partition for partition in partitions if self._forget(partition)]

    def _forget(self, partition: TopicPartition) -> bool:
        """Remove one offset, also from open transactions: their markers would bring it back."""
        existed = self._stored.pop(partition, None) is not None
        for producer_id, pending in list(self._transactional.items()):
            existed = pending.pop(partition, None) is not None or existed
            if not pending:
                del self._transactional[producer_id]
        return existed

    def expired(self, rule: ExpiryRule, wall_ms: int, retention_ms: int) -> list[TopicPartition]:
        """Return the partitions whose offsets are past their retention; changes nothing."""
        return [
            partition
            for partition, stored in self._stored.items()
            if partition.topic not in rule.subscribed_topics
            and not self.is_unstable(partition)
            and _is_expired(stored.committed, rule, wall_ms, retention_ms)
        ]


def _is_expired(committed: CommittedOffset, rule: ExpiryRule, wall_ms: int, retention_ms: int) -> bool:
    if committed.expire_timestamp_ms is not None:
        return wall_ms >= committed.expire_timestamp_ms
    since_ms = committed.commit_timestamp_ms if rule.idle_since_ms is None else rule.idle_since_ms
    return wall_ms - since_ms >= retention_ms
