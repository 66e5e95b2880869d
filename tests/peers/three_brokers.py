"""Clusters of three brokers of Apache Kafka: 3.9 with ZooKeeper, and 4.4 in KRaft mode."""

from __future__ import annotations

import base64
import os
import signal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from peers.apache_kafka import ApacheKafka, ZooKeeper
from peers.kraft_kafka import KraftKafka
from peers.processes import free_port

KINDS = ("kafka-3.9", "kafka-4.1")
HEAP = "384m"
_SETTINGS = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "group.min.session.timeout.ms": "1000",
    "controlled.shutdown.enable": "true",
    # A broker that is frozen or killed leaves the cluster soon.
    "zookeeper.session.timeout.ms": "6000",
    "broker.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "6000",
}

Broker = ApacheKafka | KraftKafka


class ThreeBrokers:
    """Brokers 1, 2 and 3 of one cluster, all running when entered; a test that stops one starts it again."""

    def __init__(self, kind: str, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._settings = _SETTINGS | dict(settings or {})
        self._folder = folder
        self._stack = ExitStack()
        self.brokers: dict[int, Broker] = {}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(each.bootstrap_servers for each in self.brokers.values())

    def __enter__(self) -> Self:
        made = self._of_zookeeper() if self.kind == "kafka-3.9" else self._of_kraft()
        self.brokers = dict(zip((1, 2, 3), made, strict=True))
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(self._stack.enter_context, made))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.brokers:  # a clean stop would wait for a controller that is gone
            with suppress(AssertionError):  # a test that failed may have left it stopped
                self.kill(node)
        self._stack.close()

    @contextmanager
    def frozen(self, node: int) -> Iterator[None]:
        """Stop a broker from running, as a long pause of its machine does, until the block ends."""
        pid = self.brokers[node].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def kill(self, node: int) -> None:
        """End a broker at once; `brokers[node].start()` starts it again."""
        os.kill(self.brokers[node].pid, signal.SIGKILL)
        self.brokers[node].stop()

    def move(self, node: int) -> None:
        """Start a broker again on another port."""
        broker = self.brokers[node]
        broker.stop()
        broker.port = free_port()
        broker.start()

    def _of_zookeeper(self) -> Sequence[Broker]:
        zookeeper = self._stack.enter_context(ZooKeeper(self._folder / "zookeeper"))
        return [
            ApacheKafka(
                self._folder / str(node),
                self._settings | {"broker.id": str(node)},
                zookeeper=zookeeper,
                heap=HEAP,
            )
            for node in (1, 2, 3)
        ]

    def _of_kraft(self) -> Sequence[Broker]:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        first = KraftKafka(self._folder / "1", self._settings, heap=HEAP, cluster_id=cluster_id)
        controller = f"127.0.0.1:{first.controller_port}"
        return [first, *(self._kraft_broker(node, cluster_id, controller) for node in (2, 3))]

    def _kraft_broker(self, node: int, cluster_id: str, controller: str) -> KraftKafka:
        roles = {
            "node.id": str(node),
            "process.roles": "broker",
            "controller.quorum.bootstrap.servers": controller,
        }
        folder = self._folder / str(node)
        return KraftKafka(folder, self._settings | roles, heap=HEAP, cluster_id=cluster_id)
