"""Transactions of two clients and a compacted topic: load for a cluster whose topics move between brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from cluster_checks import differing
from cluster_dump import judged
from cluster_moves import BOUND_S, placed, reassign, until, until_in_sync
from cluster_of_nodes import Cluster
from keyed_writer import KeyedWriter, cleaned_to, read_latest
from transactions_chaos import INTERNAL, PARTITIONS, SETTINGS, SOURCE, Load, Run, first_transactions
from transactions_workers import Workers

from ottla.admin import Admin
from ottla.admin.offsets import LATEST
from ottla.client.cluster import GROUP, TRANSACTION
from ottla.client.cluster import Cluster as Client
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

KINDS: Final = ("java", "ottla")
COMPACTED: Final = "latest"
KEYED_PARTITIONS: Final = 2
TARGETS: Final = {f"copy-{kind}": PARTITIONS for kind in KINDS}
USERS: Final = {SOURCE: PARTITIONS, COMPACTED: KEYED_PARTITIONS, **TARGETS}
OFFSETS: Final = {GROUP_METADATA_TOPIC: INTERNAL[GROUP_METADATA_TOPIC]}
TRANSACTIONS: Final = {"__transaction_state": INTERNAL["__transaction_state"]}
COMPACTION: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
}
COMMITS: Final = 5
"""Transactions of each kind between two moves."""
OF_BROKERS: Final = SETTINGS | {
    "transaction.state.log.replication.factor": "2",
    "offsets.topic.replication.factor": "2",
    "zookeeper.session.timeout.ms": "30000",
    "log.cleaner.backoff.ms": "500",
    # The internal topics are cleaned while they move.
    "log.cleaner.min.cleanable.ratio": "0.1",
    "transaction.state.log.segment.bytes": "20000",
    "offsets.topic.segment.bytes": "20000",
}


@dataclass
class Moving:
    """A cluster under load, and where its topics are."""

    run: Run
    keyed: KeyedWriter

    @property
    def cluster(self) -> Cluster:
        return self.run.cluster

    def move(self, topics: Mapping[str, int], brokers: tuple[int, int]) -> None:
        """Move topics, and wait until transactions have gone on there."""
        asyncio.run(reassign(self.cluster.servers, topics, brokers))
        self.await_moved(topics, brokers)

    def await_moved(self, topics: Mapping[str, int], brokers: tuple[int, int]) -> None:
        """Wait until topics are on two brokers, and transactions have gone on there."""
        for topic in topics:
            until_in_sync(self.cluster, topic, brokers)
        if TRANSACTIONS.keys() <= topics.keys():
            ids = [worker.name for worker in self.run.workers.all]
            self._until_coordinated(TRANSACTION, [*ids, "keyed"], brokers)
        if OFFSETS.keys() <= topics.keys():
            self._until_coordinated(GROUP, [f"g-{kind}" for kind in KINDS], brokers)
        self.until_more_is_committed()
        if COMPACTED in topics:
            self._until_cleaned_on(brokers)

    def _until_coordinated(self, kind: int, names: list[str], brokers: tuple[int, int]) -> None:
        found: list[int] = []

        def are_there() -> bool:
            found[:] = asyncio.run(coordinators(self.cluster.servers, kind, names))
            return set(found) <= set(brokers)

        until(are_there, lambda: (names, found, brokers))

    def until_more_is_committed(self) -> None:
        before = {kind: self.run.workers.commits(kind) for kind in KINDS}
        written = self.keyed.written

        def is_more() -> bool:
            assert not self.keyed.failure
            more = all(self.run.workers.commits(kind) >= before[kind] + COMMITS for kind in KINDS)
            return more and self.keyed.written > written

        until(is_more, lambda: [worker.lines()[-3:] for worker in self.run.workers.all])

    def _until_cleaned_on(self, brokers: tuple[int, int]) -> None:
        """Wait until these brokers have cleaned what was written when all was there."""
        ends = asyncio.run(ends_of(self.cluster.servers, COMPACTED, KEYED_PARTITIONS))
        directories = [self.cluster.brokers[each].data for each in brokers]

        def found() -> list[dict[int, int]]:
            return [cleaned_to(each, COMPACTED) for each in directories]

        until(
            lambda: all(each.get(index, 0) >= end for each in found() for index, end in ends.items()),
            lambda: (found(), ends),
        )

    def finish(self) -> None:
        """End the load; the copies and the last value of each key are what was committed."""
        self.keyed.stop()
        self.run.finish()
        self.run.report()
        assert self.keyed.failure == ""
        latest, count = read_latest(self.cluster.servers, COMPACTED, KEYED_PARTITIONS)
        assert self.run.wrong == [], "\n".join(self.run.wrong)
        assert latest == self.keyed.latest
        assert count < self.keyed.written / 2, "nothing was cleaned"


async def coordinators(servers: str, kind: int, names: list[str]) -> list[int]:
    """Return the coordinators of groups or transactional ids."""
    async with asyncio.timeout(BOUND_S), Client(servers) as client:
        return [
            await client.retry(f"finding {name}", partial(client.coordinator, name, kind)) for name in names
        ]


async def ends_of(servers: str, topic: str, partitions: int) -> dict[int, int]:
    """Return the ends of a topic's partitions."""
    async with asyncio.timeout(BOUND_S), Admin(servers) as admin:
        wanted = {TopicPartition(topic, index): LATEST for index in range(partitions)}
        found = await admin.offsets.find(wanted)
    return {each.partition: offset for each, offset in found.items()}


async def create(servers: str, brokers: tuple[int, int]) -> None:
    """Create the topics on two brokers."""
    async with asyncio.timeout(BOUND_S), Admin(servers) as admin:
        for topic, partitions in USERS.items():
            configs = {"min.insync.replicas": "2"}
            if topic == COMPACTED:
                configs |= COMPACTION
            await admin.topics.create(topic, assignments=placed(partitions, brokers), configs=configs)


@contextmanager
def under_load(cluster: Cluster, folder: Path, brokers: tuple[int, int]) -> Iterator[Moving]:
    """Copy a topic with transactions of two clients, and write keys; everything is on two brokers."""
    asyncio.run(create(cluster.servers, brokers))
    for topic in USERS:
        cluster.wait_until_served(topic)
    with ExitStack() as stack:
        load = Load(folder, cluster.servers)
        stack.callback(load.kill)
        workers = stack.enter_context(Workers(folder, cluster.servers, SOURCE, PARTITIONS, each=2))
        keyed = stack.enter_context(KeyedWriter(cluster.servers, COMPACTED, KEYED_PARTITIONS))
        run = Run(KINDS, cluster, workers, load)
        load.write(per_s=50)
        for kind in KINDS:
            load.follow(f"copy-{kind}", "read_committed")
            workers.add(kind, session_ms=60_000)
        assert first_transactions(run) == []
        moving = Moving(run, keyed)
        moving.move(OFFSETS | TRANSACTIONS, brokers)
        yield moving


def assert_equal(cluster: Cluster, brokers: tuple[int, int]) -> None:
    """Stop all brokers; the replicas of the copies and of their source are equal, and valid for Kafka."""
    for broker in cluster.brokers.values():
        broker.stop()
    directories = {cluster.brokers[each].name: cluster.brokers[each].data for each in brokers}
    for topic in (SOURCE, *TARGETS):
        assert differing(directories, topic, PARTITIONS) == []
        assert judged(directories, topic, PARTITIONS) == []
