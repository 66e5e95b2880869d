"""A cluster under test: ensemble, brokers of one or two kinds, and an independent admin client."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from cluster_network import Host, Network, network
from cluster_nodes import SESSION_MS, ApacheBroker, Broker, Ensemble, NodeFailed, OttlaBroker
from cluster_security import ClusterSecurity
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from peers.client_access import OPEN, Access

HEALING_BOUND_S: Final = 180.0
_PREFERRED: Final = 0
_KINDS: Final[Mapping[str, type[OttlaBroker] | type[ApacheBroker]]] = {
    "ottla": OttlaBroker,
    "apache": ApacheBroker,
}
_SETTINGS: Final = {
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "zookeeper.connection.timeout.ms": "60000",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "replica.lag.time.max.ms": "5000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "auto.leader.rebalance.enable": "false",
    "log.segment.bytes": "4000000",
}


@dataclass(frozen=True)
class Partition:
    """A partition as the cluster describes it."""

    leader: int
    replicas: tuple[int, ...]
    isr: frozenset[int]


class Cluster:
    """All processes of a cluster, running while it is entered.

    `access` is that of an administrator: with `security` its login, otherwise none.
    """

    def __init__(
        self,
        folder: Path,
        kinds: Sequence[str],
        settings: Mapping[str, str] | None = None,
        security: ClusterSecurity | None = None,
    ) -> None:
        self.folder = folder
        self.security = security
        self.access = OPEN
        self._servers = ""
        self.network: Network = network()
        self.brokers: dict[int, Broker] = {}
        self.ensemble: Ensemble
        self._kinds = list(kinds)
        self._settings = _SETTINGS | dict(settings or {})
        self._stack = ExitStack()
        self._admin: Any = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.network)
            stack.callback(self._kill_all)
            self.ensemble = Ensemble(
                [self.network.host(f"zookeeper{number}") for number in (1, 2, 3)], self.folder
            )
            self.ensemble.start()
            if self.security is not None:
                self.security.write_users(self.ensemble.connect_string)
            self.brokers = {node: self._broker(node, kind) for node, kind in enumerate(self._kinds, 1)}
            with ThreadPoolExecutor(len(self.brokers)) as pool:
                list(pool.map(start, self.brokers.values()))
            self.connect(OPEN if self.security is None else self.security.admin)
            self._stack = stack.pop_all()
        return self

    def connect(self, access: Access, servers: str = "") -> None:
        """Ask the brokers as an administrator from now on; `servers` are not their first listeners."""
        self.access, self._servers = access, servers
        self._admin = AdminClient(
            {
                "bootstrap.servers": self.servers, "socket.timeout.ms": 5_000, "log_level": 0,
                "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, **access.librdkafka(),
            }
        )  # fmt: skip

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _kill_all(self) -> None:
        servers = self.ensemble.servers if hasattr(self, "ensemble") else []
        for node in (*self.brokers.values(), *servers):
            with suppress(OSError):
                node.kill()

    def _broker(self, node: int, kind: str) -> Broker:
        host = self.network.host(f"broker{node}")
        folder = self.folder / host.name
        broker = _KINDS[kind](node, host, folder, self.ensemble.connect_string, self._settings)
        if self.security is not None:
            broker.configure(self.security.settings_of(broker))
        return broker

    # ---- what runs where

    @property
    def servers(self) -> str:
        """The addresses of all brokers, as clients take them."""
        return self._servers or ",".join(each.address for each in self.brokers.values())

    @property
    def broker_hosts(self) -> list[Host]:
        return [each.host for each in self.brokers.values()]

    @property
    def zookeeper_hosts(self) -> list[Host]:
        return [each.host for each in self.ensemble.servers]

    # ---- what the cluster says of itself

    def create(self, topic: str, partitions: int, **configs: str) -> None:
        new = NewTopic(
            topic, num_partitions=partitions, replication_factor=min(3, len(self.brokers)),
            config={key.replace("_", "."): value for key, value in configs.items()},
        )  # fmt: skip
        deadline = time.monotonic() + HEALING_BOUND_S
        for tries in itertools.count():
            try:
                self._admin.create_topics([new])[topic].result(30)
            except KafkaException as error:
                if tries and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    return  # an earlier try made it, and its answer was late
                if time.monotonic() > deadline:
                    raise NodeFailed(f"topic {topic} cannot be created: {error}") from error
                time.sleep(0.2)
            else:
                return

    def controller(self) -> int | None:
        """The controller's broker id, or None while nobody answers."""
        with suppress(KafkaException):
            return int(self._admin.list_topics(timeout=3).controller_id)
        return None

    def describe(self, topic: str) -> dict[int, Partition]:
        """The partitions of a topic, none while nobody answers."""
        with suppress(KafkaException):
            found = self._admin.list_topics(topic, timeout=3).topics[topic].partitions
            return {
                index: Partition(each.leader, tuple(each.replicas), frozenset(each.isrs))
                for index, each in found.items()
            }
        return {}

    def wait_until_healed(self, *topics: str) -> str:
        """Wait until every replica is in sync; return what is not when that takes too long."""
        deadline = time.monotonic() + HEALING_BOUND_S
        while complaint := self._complaint(topics):
            if time.monotonic() > deadline:
                return f"not healed {HEALING_BOUND_S:g} s after the last fault: {complaint}"
            time.sleep(0.1)
        return ""

    def wait_until_served(self, topic: str) -> None:
        """Wait until the leaders of a topic answer: those of a new one are told later than the metadata.

        An Apache broker in between refuses an idempotent producer's first batch and takes its second one. The
        broker that is asked for the metadata may not have heard of the topic either.
        """
        deadline = time.monotonic() + HEALING_BOUND_S
        while not (partitions := self.describe(topic)):
            if time.monotonic() > deadline:
                raise NodeFailed(f"nobody describes {topic}")
            time.sleep(0.1)
        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": "none", "log_level": 0} | self.access.librdkafka()
        )
        try:
            for index in partitions:
                while not _answers(consumer, TopicPartition(topic, index)):
                    if time.monotonic() > deadline:
                        raise NodeFailed(f"nobody serves {topic}-{index}")
        finally:
            consumer.close()

    def _complaint(self, topics: Sequence[str]) -> str:
        for topic in topics:
            partitions = self.describe(topic)
            if not partitions:
                return f"nobody describes {topic}"
            for index, each in partitions.items():
                if each.leader < 0 or each.isr != set(each.replicas):
                    return f"{topic}-{index} has leader {each.leader} and ISR {sorted(each.isr)}"
        return ""

    def elect_preferred_leaders(self) -> None:
        """Move leaderships back to the first replicas."""
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        with suppress(KafkaError):
            admin = KafkaAdminClient(
                bootstrap_servers=self.servers.split(","), request_timeout_ms=10_000,
                **self.access.kafka_python(),
            )  # fmt: skip
            try:
                admin.elect_leaders(_PREFERRED, timeout_ms=10_000, raise_errors=False)
            finally:
                admin.close()


def _answers(consumer: Consumer, partition: TopicPartition) -> bool:
    with suppress(KafkaException):
        consumer.get_watermark_offsets(partition, timeout=5)
        return True
    return False


def start(node: Broker) -> None:
    """Start a broker and wait until it serves."""
    node.start()
    node.wait()
