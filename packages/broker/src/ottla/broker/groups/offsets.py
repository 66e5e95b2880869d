"""The offsets a group has committed: what is in the log, what is on its way there, what may be forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ottla.broker.groups.events import GroupState
from ottla.broker.groups.group import Group
from ottla.broker.groups.subscriptions import CONSUMER_PROTOCOL_TYPE
from ottla.broker.values import frozen
from ottla.protocol.topics import TopicPartition

NO_OFFSET: Final = -1
NO_LEADER_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1


@frozen(kw_only=True)
class CommittedOffset:
    """The next offset a group will read of one partition; timestamps are wall-clock milliseconds.

    `expire_timestamp_ms` is only set by requests that brought a retention of their own (before KIP-211).
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int | None = None


@frozen
class ExpiryRule:
    """When offsets of a group count as forgotten; see `expiry_rule`."""

    idle_since_ms: int | None
    """Age is counted from here; None counts from each commit."""
    subscribed_topics: frozenset[str] = frozenset()
    """Offsets of these topics are kept whatever their age."""


def expiry_rule(group: Group) -> ExpiryRule | None:
    """Tell how the offsets of a group age now; None when they do not (KIP-211).

    An empty group's offsets age together since it became empty. A stable consumer group's age by
    themselves once nobody subscribes to their topic. Simple consumers' age since their commit.
    """
    if group.protocol_type is None:
        return ExpiryRule(None)
    if group.state is GroupState.EMPTY:
        return ExpiryRule(group.state_since_ms if group.state_since_ms >= 0 else None)
    if (
        group.state is GroupState.STABLE
        and group.protocol_type == CONSUMER_PROTOCOL_TYPE
        and group.subscribed_topics is not None
    ):
        return ExpiryRule(None, group.subscribed_topics)
    return None


@frozen
class _Kept:
    committed: CommittedOffset
    position: int
    """Where in the log it is: a commit that comes back late does not undo a later one."""


class GroupOffsets:
    """The committed offsets of one group.

    A commit goes `pending` when it is appended and is visible once `committed` says that all replicas have
    it. Transactional commits stay pending under their producer id until the transaction ends.
    """

    def __init__(self) -> None:
        self._kept: dict[TopicPartition, _Kept] = {}
        self._pending: dict[TopicPartition, int] = {}
        self._transactional: dict[int, dict[TopicPartition, _Kept | CommittedOffset]] = {}

    # ---- reading

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(list(self._kept))

    def get(self, partition: TopicPartition) -> CommittedOffset | None:
        """The committed offset of a partition, or None."""
        kept = self._kept.get(partition)
        return kept.committed if kept else None

    def all(self) -> dict[TopicPartition, CommittedOffset]:
        """Every committed offset."""
        return {partition: kept.committed for partition, kept in self._kept.items()}

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing here, and nothing on its way."""
        return not self._kept and not self._pending and not self._transactional

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether an open transaction may still change this offset (KIP-447)."""
        return any(partition in offsets for offsets in self._transactional.values())

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

    def load(self, offsets: Mapping[TopicPartition, CommittedOffset], position: int) -> None:
        """Take in offsets that are in the log, unless later ones are known."""
        for partition, committed in offsets.items():
            kept = self._kept.get(partition)
            if kept is None or kept.position <= position:
                self._kept[partition] = _Kept(committed, position)

    # ---- transactional commits

    def begin_transactional(
        self, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """A transaction writes these; they hold fetches that want stable offsets."""
        self._transactional.setdefault(producer_id, {}).update(offsets)

    def written_transactional(
        self, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset], position: int
    ) -> None:
        """They are in the log, and wait for the end of the transaction."""
        pending = self._transactional.setdefault(producer_id, {})
        for partition, committed in offsets.items():
            pending[partition] = _Kept(committed, position)

    def failed_transactional(self, producer_id: int, offsets: Iterable[TopicPartition]) -> None:
        """They did not get there."""
        pending = self._transactional.get(producer_id, {})
        for partition in offsets:
            pending.pop(partition, None)
        if not pending:
            self._transactional.pop(producer_id, None)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """The transaction ended: its offsets become visible, or are forgotten."""
        for partition, kept in self._transactional.pop(producer_id, {}).items():
            if commit and isinstance(kept, _Kept):
                self.load({partition: kept.committed}, kept.position)

    # ---- forgetting

    def forget(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Drop these offsets; returns those that were there and need a tombstone."""
        gone = [partition for partition in partitions if self._kept.pop(partition, None) is not None]
        for producer_id in list(self._transactional):
            self.failed_transactional(producer_id, gone)
        return gone

    def expired(self, rule: ExpiryRule, wall_ms: int, retention_ms: int) -> list[TopicPartition]:
        """The partitions whose offsets are older than they may be; changes nothing."""
        return [
            partition
            for partition, kept in self._kept.items()
            if partition.topic not in rule.subscribed_topics
            and partition not in self._pending
            and not self.is_unstable(partition)
            and _is_expired(kept.committed, rule, wall_ms, retention_ms)
        ]


def _is_expired(committed: CommittedOffset, rule: ExpiryRule, wall_ms: int, retention_ms: int) -> bool:
    if committed.expire_timestamp_ms is not None:
        return wall_ms >= committed.expire_timestamp_ms
    since_ms = committed.commit_timestamp_ms if rule.idle_since_ms is None else rule.idle_since_ms
    return wall_ms - since_ms >= retention_ms
