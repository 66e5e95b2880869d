"""All fetchers of this broker, up to `num.replica.fetchers` for each leader: begun and ended with roles."""

from __future__ import annotations

import asyncio
import logging
import zlib
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ottla.broker.replication.fetcher import Connect, Fetcher, Followed
from ottla.broker.replication.follower_rules import PartitionFetch
from ottla.broker.replication.partition import NO_LEADER
from ottla.broker.replication.replication_metrics import ReplicationMetrics
from ottla.broker.runtime.background_tasks import BackgroundTasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.broker.config import BrokerConfig
    from ottla.broker.metrics import Meter, Metrics
    from ottla.broker.quotas.replication import ReplicaQuota
    from ottla.broker.replication.hosted_partition import HostedPartition
    from ottla.broker.runtime.environment import Environment
    from ottla.protocol.topics import TopicPartition

_log = logging.getLogger(__name__)


class Followers:
    """Copies partitions from their leaders while it is entered; each fetcher is a named task.

    `connect` returns a connection to a leader. Leaving ends all fetchers: after that no log grows by them.
    """

    def __init__(
        self,
        *,
        broker_id: int,
        config: BrokerConfig,
        environment: Environment,
        connect: Connect,
        metrics: Metrics,
        quota: ReplicaQuota | None = None,
    ) -> None:
        self._broker_id = broker_id
        self._config = config
        self._environment = environment
        self._connect = connect
        self._quota = quota
        self._fetchers: dict[tuple[int, int], tuple[Fetcher, asyncio.Task[None]]] = {}
        self._of: dict[TopicPartition, Fetcher] = {}
        self._tasks = BackgroundTasks(metrics, environment.clock)
        self._is_open = False
        self._rates: dict[str, Meter] = {}
        self._metrics = ReplicationMetrics(metrics)
        self._metrics.show(
            max_lag=lambda: max((followed.fetch.lag for followed in self._followed()), default=0),
            failed=lambda: sum(followed.fetch.failed for followed in self._followed()),
            min_rate=lambda: min((rate.one_minute_rate for rate in self._rates.values()), default=0.0),
            dead=lambda: sum(task.done() for _, task in self._fetchers.values()),
        )

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        await self._tasks.__aexit__(kind, error, trace)

    def follow(self, partition: HostedPartition, leader: int) -> None:
        """Copy a partition from broker `leader`, from now on or in a new leader epoch; -1: from none."""
        name = partition.topic_partition
        if leader == NO_LEADER or not self._is_open:
            self.unfollow(name)
            return
        fetcher = self._fetcher_of(name, leader)
        if self._of.get(name) is not fetcher:
            self.unfollow(name)
        followed = Followed(partition, PartitionFetch(partition.leader_epoch))
        self._of[name] = fetcher
        fetcher.add(followed)
        self._metrics.followed(fetcher.name, name, lambda: followed.fetch.lag)

    def unfollow(self, topic_partition: TopicPartition) -> None:
        """Stop copying a partition; a fetcher without partitions ends."""
        fetcher = self._of.pop(topic_partition, None)
        if fetcher is None:
            return
        fetcher.remove(topic_partition)
        self._metrics.unfollowed(fetcher.name, topic_partition)
        if not fetcher.partitions:
            self._end(fetcher)

    def configure(self, config: BrokerConfig) -> None:
        """Take changed settings: with another `num.replica.fetchers`, partitions go to other fetchers."""
        before, self._config = self._config.num_replica_fetchers, config
        if config.num_replica_fetchers == before:
            return
        for followed in list(self._followed()):
            self.follow(followed.partition, self._of[followed.name].leader)

    def _followed(self) -> Iterator[Followed]:
        return (
            followed for fetcher, _ in self._fetchers.values() for followed in fetcher.partitions.values()
        )

    def _fetcher_of(self, name: TopicPartition, leader: int) -> Fetcher:
        number = zlib.crc32(f"{name.topic}-{name.partition}".encode()) % self._config.num_replica_fetchers
        found = self._fetchers.get((leader, number))
        if found is None:
            found = self._fetchers[leader, number] = self._begin(leader, number)
        return found[0]

    def _begin(self, leader: int, number: int) -> tuple[Fetcher, asyncio.Task[None]]:
        name = f"ReplicaFetcherThread-{number}-{leader}"
        meters = self._metrics.fetcher(name, leader)
        self._rates[name] = meters.requests
        fetcher = Fetcher(
            name,
            leader,
            broker_id=self._broker_id,
            config=self._config,
            environment=self._environment,
            connect=self._connect,
            meters=meters,
            quota=self._quota,
        )
        return fetcher, self._tasks.lasting(fetcher.run(), name)

    def _end(self, fetcher: Fetcher) -> None:
        for key, (running, task) in list(self._fetchers.items()):
            if running is fetcher:
                del self._fetchers[key]
                task.cancel()
        self._rates.pop(fetcher.name, None)
        self._metrics.fetcher_ended(fetcher.name, fetcher.leader)
