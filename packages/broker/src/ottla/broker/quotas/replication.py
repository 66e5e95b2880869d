"""Replication throttles (KIP-73, KIP-113): how fast throttled replicas may be copied. Pure.

The rate is that of the last windows, of which the oldest may have begun a moment ago: after a rest the first
second has no more than one second's bytes. A transfer above the rate is not cut short; the next one waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ottla.client.config_definition import MAX_LONG

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.metrics import Metrics
    from ottla.protocol.topics import TopicPartition

UNLIMITED: Final = MAX_LONG
EVERY_REPLICA: Final = "*"
_EVERY: Final[frozenset[int]] = frozenset({-1})


class RecentRate:
    """The bytes per second over the last `count` windows of `window_ms`, the current one included."""

    def __init__(self, window_ms: float, count: int) -> None:
        self._window_ms = window_ms
        self._span_ms = window_ms * count
        self._windows: deque[list[float]] = deque()
        """When each began, and its bytes."""
        self._total = 0.0

    def record(self, size: int, now_ms: float) -> None:
        """Count bytes that were transferred now."""
        self._forget(now_ms)
        if not self._windows or now_ms - self._windows[-1][0] >= self._window_ms:
            self._windows.append([now_ms, 0.0])
        self._windows[-1][1] += size
        self._total += size

    def per_s(self, now_ms: float) -> float:
        """Return the rate in bytes per second; a time shorter than a window counts as a window."""
        self._forget(now_ms)
        if not self._windows:
            return 0.0
        return self._total * 1000 / max(now_ms - self._windows[0][0], self._window_ms)

    def falls_to_ms(self, bytes_per_s: float, now_ms: float) -> float:
        """Return when the rate is at most `bytes_per_s` if nothing more is transferred, at the latest."""
        if self.per_s(now_ms) <= bytes_per_s:
            return now_ms
        last_ms = self._windows[-1][0] + self._span_ms
        if bytes_per_s <= 0:
            return last_ms
        return min(last_ms, self._windows[0][0] + self._total * 1000 / bytes_per_s)

    def _forget(self, now_ms: float) -> None:
        while self._windows and now_ms - self._windows[0][0] >= self._span_ms:
            self._total -= self._windows.popleft()[1]


class ReplicationQuota:
    """The rate that one kind of copying may reach, and its bytes so far."""

    def __init__(self, window_s: int, count: int, monotonic_ms: Callable[[], float]) -> None:
        self.bytes_per_s = UNLIMITED
        self._rate = RecentRate(window_s * 1000.0, count)
        self._monotonic_ms = monotonic_ms

    def record(self, size: int) -> None:
        """Count throttled bytes."""
        self._rate.record(size, self._monotonic_ms())

    @property
    def byte_rate(self) -> float:
        """Throttled bytes per second, of late."""
        return self._rate.per_s(self._monotonic_ms())

    @property
    def is_exceeded(self) -> bool:
        """Whether throttled copying has to wait."""
        return self.bytes_per_s != UNLIMITED and self.byte_rate > self.bytes_per_s

    @property
    def due_ms(self) -> float:
        """When throttled copying may go on, on the monotonic clock."""
        return self._rate.falls_to_ms(self.bytes_per_s, self._monotonic_ms())


class ReplicaQuota(ReplicationQuota):
    """A quota of those replicas of broker `broker_id` that the setting of their topic selects."""

    def __init__(self, broker_id: int, window_s: int, count: int, monotonic_ms: Callable[[], float]) -> None:
        super().__init__(window_s, count, monotonic_ms)
        self._broker_id = broker_id
        self._selected: dict[str, tuple[Sequence[str], frozenset[int]]] = {}
        """By topic: the setting, and the partitions that it names for this broker."""

    def selects(self, partition: TopicPartition, replicas: Sequence[str]) -> bool:
        """Whether the topic's setting (`*`, or `partition:broker` each) has this broker's replica."""
        if not replicas:
            return False
        known = self._selected.get(partition.topic)
        if known is None or known[0] is not replicas:
            known = self._selected[partition.topic] = replicas, _partitions(replicas, self._broker_id)
        return known[1] is _EVERY or partition.partition in known[1]


def _partitions(replicas: Sequence[str], broker_id: int) -> frozenset[int]:
    if EVERY_REPLICA in replicas:
        return _EVERY
    pairs = (replica.split(":") for replica in replicas)
    return frozenset(int(partition) for partition, broker in pairs if int(broker) == broker_id)


class ReplicationQuotas:
    """The three quotas of a broker, with their rates as metrics under Kafka's names."""

    def __init__(
        self, broker_id: int, config: BrokerConfig, monotonic_ms: Callable[[], float], metrics: Metrics
    ) -> None:
        window = config.replication_quota_window_size_seconds, config.replication_quota_window_num
        self.leader = ReplicaQuota(broker_id, *window, monotonic_ms)
        """Of what followers that are not in sync are sent."""
        self.follower = ReplicaQuota(broker_id, *window, monotonic_ms)
        """Of what this broker copies from leaders."""
        self.log_moves = ReplicationQuota(
            config.alter_log_dirs_replication_quota_window_size_seconds,
            config.alter_log_dirs_replication_quota_window_num,
            monotonic_ms,
        )
        """Of moves between log directories."""
        self.configure(config)
        for kind, quota in (
            ("LeaderReplication", self.leader),
            ("FollowerReplication", self.follower),
            ("AlterLogDirsReplication", self.log_moves),
        ):
            metrics.gauge("kafka.server", kind, "byte-rate", _rate_of(quota))

    def configure(self, config: BrokerConfig) -> None:
        """Take changed rates."""
        self.leader.bytes_per_s = config.leader_replication_throttled_rate
        self.follower.bytes_per_s = config.follower_replication_throttled_rate
        self.log_moves.bytes_per_s = config.replica_alter_log_dirs_io_max_bytes_per_second


def _rate_of(quota: ReplicationQuota) -> Callable[[], float]:
    return lambda: quota.byte_rate
