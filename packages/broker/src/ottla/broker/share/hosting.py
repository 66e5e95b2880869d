"""The share partitions of this broker: one for each group that reads a partition which it leads.

Each begins with the first fetch, for one leadership: the next leader, this one after another, and a broker
that has lost its session, load it again, as do the first members after others have left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ottla.broker.coordinators.timers import Timers
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.share.hosted_partition import HostedSharePartition, ShareSurroundings
from ottla.protocol.errors import NotLeaderOrFollower

if TYPE_CHECKING:
    from ottla.broker.replication.hosted_partition import HostedPartition
    from ottla.broker.runtime.background_tasks import BackgroundTasks
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.runtime.threads import RecordThreads
    from ottla.broker.share.dead_letters import DeadLetterTopics
    from ottla.broker.share.metrics import ShareGroupMetrics
    from ottla.broker.share.persister import SharePersister
    from ottla.broker.share.state import SharePartitionKey
    from ottla.broker.share.terms import ShareGroupTerms
    from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

_NONE: Final[Mapping[SharePartitionKey, HostedSharePartition]] = {}


class SharePartitions:
    """All share partitions of this broker."""

    def __init__(
        self,
        *,
        environment: Environment,
        persister: SharePersister,
        tasks: BackgroundTasks,
        record_threads: RecordThreads,
        terms: Callable[[str], ShareGroupTerms],
        session_id: Callable[[], int],
        dead_letters: DeadLetterTopics,
        metrics: ShareGroupMetrics,
    ) -> None:
        """`terms` returns the settings of a group, `session_id` the id of the broker's ZooKeeper session."""
        self.persister = persister
        self.tasks = tasks
        self.terms = terms
        self.dead_letters = dead_letters
        self._metrics = metrics
        self._timers: Timers[HostedSharePartition] = Timers(environment, HostedSharePartition.expire)
        self._surroundings = ShareSurroundings(
            clock=environment.clock,
            persister=persister,
            tasks=tasks,
            record_threads=record_threads,
            timers=self._timers,
            terms=terms,
            session_id=session_id,
            dead_letters=dead_letters,
            metrics=metrics,
            warnings=LimitedWarnings(log, environment.clock.monotonic_ms),
            forget=self._forget,
        )
        self._hosted: dict[TopicPartition, dict[SharePartitionKey, HostedSharePartition]] = {}
        self._of_groups: dict[str, dict[HostedSharePartition, None]] = {}

    def start(self) -> None:
        """Begin to end locks at their time; the tasks must be entered."""
        self.tasks.lasting(self._timers.run(), "share-lock-time")

    def __iter__(self) -> Iterator[HostedSharePartition]:
        return (
            hosted for of_partition in list(self._hosted.values()) for hosted in list(of_partition.values())
        )

    def get(self, key: SharePartitionKey, topic_partition: TopicPartition) -> HostedSharePartition | None:
        """Return a share partition that some fetch has begun, or None."""
        return self._hosted.get(topic_partition, _NONE).get(key)

    def find(self, key: SharePartitionKey, partition: HostedPartition) -> HostedSharePartition:
        """Return a share partition of a partition that is led here; a new one begins to load."""
        of_partition = self._hosted.setdefault(partition.topic_partition, {})
        hosted = of_partition.get(key)
        if hosted is not None and (hosted.partition is not partition or not hosted.leads()):
            hosted.fail(NotLeaderOrFollower())
            return self.find(key, partition)
        if hosted is None:
            hosted = of_partition[key] = HostedSharePartition(key, partition, self._surroundings)
            self._of_groups.setdefault(key.group_id, {})[hosted] = None
            self.tasks.spawn(hosted.load(), "share-partition-load")
        hosted.joined()
        return hosted

    def group_left(self, group_id: str) -> None:
        """Drop the share partitions of a group of which no member reads here any more."""
        for hosted in list(self._of_groups.get(group_id, ())):
            hosted.left()

    def _forget(self, hosted: HostedSharePartition) -> None:
        """Drop a share partition that serves no more."""
        self._timers.cancel(hosted)
        topic_partition = hosted.partition.topic_partition
        of_partition = self._hosted.get(topic_partition, {})
        if of_partition.get(hosted.key) is hosted:
            self._metrics.forget_partition(hosted.key, topic_partition)
            del of_partition[hosted.key]
            if not of_partition:
                del self._hosted[topic_partition]
        of_group = self._of_groups.get(hosted.key.group_id, {})
        of_group.pop(hosted, None)
        if not of_group and self._of_groups.pop(hosted.key.group_id, None) is not None:
            self._metrics.forget_group(hosted.key.group_id)

    def leadership_changed(
        self, elected: Sequence[tuple[TopicPartition, int]], resigned: Sequence[tuple[TopicPartition, int]]
    ) -> None:
        """Fence the share partitions of a leadership that is over, or of which part was missed."""
        for topic_partition, _ in (*elected, *resigned):
            for hosted in list(self._hosted.get(topic_partition, _NONE).values()):
                if not hosted.leads():
                    hosted.fail(NotLeaderOrFollower())
