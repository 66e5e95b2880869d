"""The coordinator of all groups of a cluster of three brokers, killed and started again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka.admin import AdminClient

from ottla.broker.testing import BrokerCluster

ONE_COORDINATOR: Final = {"offsets.topic.num.partitions": "1"}
"""The setting with which one broker coordinates all groups."""
OF_CLUSTER: Final = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "replica.lag.time.max.ms": "3000",
    # On a busy machine the loop of a broker that starts may be silent for seconds.
    "zookeeper.session.timeout.ms": "10000",
}
_OFFSETS_TOPIC: Final = "__consumer_offsets"
_BOUND_S: Final = 180.0


class Coordinators:
    """Kills the coordinator of all groups, and starts it again."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.kills = 0
        self._cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Kill the coordinator before the block; start it and wait for all replicas after it."""
        topic = self._admin.list_topics(_OFFSETS_TOPIC, timeout=60).topics[_OFFSETS_TOPIC]
        broker = self._cluster.brokers[topic.partitions[0].leader]
        broker.kill()
        self.kills += 1
        yield
        broker.start()
        deadline = time.monotonic() + _BOUND_S
        while not self._are_replicated():
            assert time.monotonic() < deadline, "the replicas are not in sync again"
            time.sleep(0.1)

    def _are_replicated(self) -> bool:
        topics = self._admin.list_topics(timeout=60).topics.values()
        return all(len(found.isrs) == 3 for topic in topics for found in topic.partitions.values())
