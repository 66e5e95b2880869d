"""The meters of share groups, under the names of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.broker.metrics import Metrics
from ottla.broker.share.partition import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    SharePartition,
)

if TYPE_CHECKING:
    from ottla.broker.share.state import SharePartitionKey
    from ottla.protocol.topics import TopicPartition

_GROUPS: Final = ("kafka.server", "ShareGroupMetrics")
_PARTITIONS: Final = ("kafka.server", "SharePartitionMetrics")
_SESSIONS: Final = ("kafka.server", "ShareSessionCache")
_FETCH_RATIO: Final = "RequestTopicPartitionsFetchRatio"
_ACQUIRE_TIME: Final = "TopicPartitionsAcquireTimeMs"
_LETTERS: Final = "DeadLetterQueueRecordCount"
_LETTER_REQUESTS: Final = "DeadLetterQueueTotalProduceRequestsPerSec"
_FAILED_LETTER_REQUESTS: Final = "DeadLetterQueueFailedProduceRequestsPerSec"
_OF_GROUP: Final = (_FETCH_RATIO, _ACQUIRE_TIME, _LETTERS, _LETTER_REQUESTS, _FAILED_LETTER_REQUESTS)
_TIMEOUTS: Final = "AcquisitionLockTimeoutPerSec"
_BATCH_SIZE: Final = "InFlightBatchMessageCount"
_LOCK_TIME: Final = "FetchLockTimeMs"
_LOCK_RATIO: Final = "FetchLockRatio"
_ACQUIRED: Final = ("ottla.broker", "SharePartitionMetrics", "AcquiredMessageCount")
"""Kafka has none of what members hold: its InFlightMessageCount counts from the start offset to the end."""
_READ: Final[Mapping[tuple[str, str, str], Callable[[SharePartition], float]]] = {
    (*_PARTITIONS, "InFlightMessageCount"): lambda core: core.in_flight,
    (*_PARTITIONS, "InFlightBatchCount"): lambda core: core.batch_count,
    _ACQUIRED: lambda core: core.acquired,
}
_COUNTED: Final = (_TIMEOUTS, _BATCH_SIZE, _LOCK_TIME, _LOCK_RATIO)
_OF_PARTITION: Final = (*((*_PARTITIONS, name) for name in _COUNTED), *_READ)
_ACKNOWLEDGEMENTS: Final = {ACCEPT: "Accept", RELEASE: "Release", REJECT: "Reject", RENEW: "Renew"}


def _gauge_of(
    core: Callable[[], SharePartition | None], read: Callable[[SharePartition], float]
) -> Callable[[], float]:
    """Return a gauge that is 0 until the share partition is loaded."""

    def value() -> float:
        return 0 if (loaded := core()) is None else read(loaded)

    return value


class GroupMeters:
    """The meters of one share group on this broker."""

    def __init__(self, metrics: Metrics, group_id: str) -> None:
        self.fetch_ratio = metrics.histogram(*_GROUPS, _FETCH_RATIO, group=group_id)
        """Of the partitions that a fetch asked for, those with records for it, in percent."""
        self.acquire_time = metrics.histogram(*_GROUPS, _ACQUIRE_TIME, group=group_id)
        """How long a fetch took to acquire records, in milliseconds."""
        self.letters = metrics.meter(*_GROUPS, _LETTERS, group=group_id)
        self.letter_requests = metrics.meter(*_GROUPS, _LETTER_REQUESTS, group=group_id)
        self.failed_letter_requests = metrics.meter(*_GROUPS, _FAILED_LETTER_REQUESTS, group=group_id)


class SharePartitionMeters:
    """The meters of one share partition, while this broker leads it."""

    def __init__(
        self,
        metrics: Metrics,
        tags: dict[str, str],
        core: Callable[[], SharePartition | None],
    ) -> None:
        self.tags = tags
        self.lock_timeouts = metrics.meter(*_PARTITIONS, _TIMEOUTS, **tags)
        self.batch_size = metrics.histogram(*_PARTITIONS, _BATCH_SIZE, **tags)
        self._lock_time = metrics.histogram(*_PARTITIONS, _LOCK_TIME, **tags)
        self._lock_ratio = metrics.histogram(*_PARTITIONS, _LOCK_RATIO, **tags)
        self._released_ms: float | None = None
        for name, read in _READ.items():
            metrics.gauge(*name, _gauge_of(core, read), **tags)

    def read(self, began_ms: float, ended_ms: float) -> None:
        """Count the time for which a fetch had the share partition for itself, and its part of all time."""
        held_ms = ended_ms - began_ms
        self._lock_time.update(held_ms)
        since_ms = held_ms if self._released_ms is None else ended_ms - self._released_ms
        self._lock_ratio.update(100 * held_ms / since_ms if since_ms > 0 else 100)
        self._released_ms = ended_ms


class ShareGroupMetrics:
    """The meters of share groups: those of a group go with its last share partition on this broker.

    No more than `most_partitions` share partitions have meters that are shown.
    """

    def __init__(self, metrics: Metrics, most_partitions: int) -> None:
        self._metrics = metrics
        self._most_partitions = most_partitions
        self._groups: dict[str, GroupMeters] = {}
        self._partitions: dict[tuple[SharePartitionKey, TopicPartition], SharePartitionMeters] = {}
        self._shown_groups: set[str] = set()
        self.load_time = metrics.histogram(*_GROUPS, "PartitionLoadTimeMs")
        self.expired_fetches = metrics.meter("kafka.server", "DelayedShareFetchMetrics", "ExpiresPerSec")
        self.evicted_sessions = metrics.meter(*_SESSIONS, "ShareSessionEvictionsPerSec")
        self._acknowledged = {
            kind: metrics.meter(*_GROUPS, "RecordAcknowledgementsPerSec", ackType=name)
            for kind, name in _ACKNOWLEDGEMENTS.items()
        }

    def show_sessions(self, sessions: Callable[[], int], partitions: Callable[[], int]) -> None:
        """Show how many sessions there are, and how many partitions they read."""
        self._metrics.gauge(*_SESSIONS, "ShareSessionsCount", sessions)
        self._metrics.gauge(*_SESSIONS, "SharePartitionsCount", partitions)

    def acknowledged(self, batches: Iterable[Acknowledgement]) -> None:
        """Count records by the type of their acknowledgement."""
        for batch in batches:
            for first, last, kind in batch.ranges():
                if (meter := self._acknowledged.get(kind)) is not None:
                    meter.mark(last - first + 1)

    def of_group(self, group_id: str) -> GroupMeters:
        """Return the meters of a group; those of one without share partitions here are not shown."""
        found = self._groups.get(group_id)
        if found is None:
            if group_id not in self._shown_groups:
                return GroupMeters(Metrics(), group_id)
            found = self._groups[group_id] = GroupMeters(self._metrics, group_id)
        return found

    def of_partition(
        self,
        key: SharePartitionKey,
        topic_partition: TopicPartition,
        core: Callable[[], SharePartition | None],
    ) -> SharePartitionMeters:
        """Return the meters of a share partition; `core` returns its records in flight once it is loaded."""
        self._shown_groups.add(key.group_id)
        topic, partition = topic_partition
        tags = {"group": key.group_id, "topic": topic, "partition": str(partition)}
        if len(self._partitions) >= self._most_partitions:
            return SharePartitionMeters(Metrics(), tags, core)
        meters = SharePartitionMeters(self._metrics, tags, core)
        self._partitions[key, topic_partition] = meters
        return meters

    def forget_partition(self, key: SharePartitionKey, topic_partition: TopicPartition) -> None:
        """Remove the meters of a share partition."""
        meters = self._partitions.pop((key, topic_partition), None)
        if meters is not None:
            for name in _OF_PARTITION:
                self._metrics.remove(*name, **meters.tags)

    def forget_group(self, group_id: str) -> None:
        """Remove the meters of a group."""
        self._shown_groups.discard(group_id)
        if self._groups.pop(group_id, None) is not None:
            for name in _OF_GROUP:
                self._metrics.remove(*_GROUPS, name, group=group_id)
