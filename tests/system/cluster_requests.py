"""Operators' requests to a cluster: each one, when its work is over, and how it has ended."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

from cluster_nodes import Broker, NodeFailed
from cluster_of_nodes import Cluster, Partition
from confluent_kafka import KafkaError as ProducerError
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kazoo.client import KazooClient

from ottla.admin import Admin
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

FINISHED: Final = "finished"
CANCELLED: Final = "cancelled"
REQUEST_BOUND_S: Final = 30.0


class RequestFailed(RuntimeError):
    """A request got an error, or no answer; whether it was carried out shows later."""


class Request:
    """A request with what precedes it. `ask` runs while the controller is killed."""

    name: ClassVar[str]
    within_s: ClassVar[float] = 0.3
    """The controller is killed at most this long after `sent`."""
    binds: ClassVar[bool] = True
    """Whether a request that was accepted must be finished whatever happens next."""

    def __init__(self, cluster: Cluster, topic: str, rng: random.Random, number: int) -> None:
        self.cluster = cluster
        self.topic = topic
        self.rng = rng
        self.number = number
        self.sent = threading.Event()
        """Set once a client is connected, just before the request."""

    def prepare(self, controller: int) -> None:
        """Bring the cluster into the state in which the request has something to do."""

    def ask(self) -> None:
        """Make the request, and wait for its answer. Raises RequestFailed, NodeFailed."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Whether nothing is left to do; asked right after the controller's death."""
        return True

    def release(self) -> None:
        """Release the requests that `prepare` has held up."""

    def outcome(self) -> str | None:
        """FINISHED, CANCELLED, or None as long as it is neither."""
        raise NotImplementedError

    def described(self) -> dict[int, Partition]:
        return self.cluster.describe(self.topic)


# ---- replicas and leaders


class Reassignment(Request):
    """A replica of some partitions moves to a broker that sleeps until the controller is dead.

    It never comes from the controller: as on Apache Kafka a broker that is dead when its replica is removed
    keeps the directory.
    """

    name = "reassignment"
    within_s = 1.0
    may_keep: int | None = None
    """A broker that may have directories of replicas that were removed."""

    def prepare(self, controller: int) -> None:
        self.before = {index: each.replicas for index, each in self.described().items()}
        lacking = [
            node
            for node in self.cluster.brokers
            if node != controller and any(node not in each for each in self.before.values())
        ]
        self.target = self.rng.choice(lacking)
        self.held: Broker = self.cluster.brokers[self.target]
        self.wanted = {
            index: self._with_target(replicas, controller)
            for index, replicas in self.before.items()
            if self.target not in replicas
        }

    def _with_target(self, replicas: Sequence[int], controller: int) -> tuple[int, ...]:
        leaving = self.rng.choice([each for each in replicas if each != controller])
        return tuple(self.target if each == leaving else each for each in replicas)

    def ask(self) -> None:
        reassign(self.cluster.servers, self.topic, self.wanted, self._send)

    def _send(self) -> None:
        self.held.pause()
        self.sent.set()

    def is_over(self) -> bool:
        found = self.described()
        return all(index in found and found[index].replicas == to for index, to in self.wanted.items())

    def release(self) -> None:
        self.held.resume()

    def outcome(self) -> str | None:
        found = self.described()
        if not found or is_moving(self.cluster.servers) or not self._holds_only_replicas(found):
            return None
        now = {index: found[index].replicas for index in self.wanted}
        if now == self.wanted:
            return FINISHED
        # As on Apache Kafka, a cancelled move leaves the replicas from before, not always in their order.
        either = {index: ({*self.before[index]}, {*to}) for index, to in self.wanted.items()}
        return CANCELLED if all({*now[index]} in either[index] for index in now) else None

    def _holds_only_replicas(self, found: Mapping[int, Partition]) -> bool:
        return all(
            (broker.data / f"{self.topic}-{index}").is_dir() == (node in partition.replicas)
            for index, partition in found.items()
            for node, broker in self.cluster.brokers.items()
            if node != self.may_keep or node in partition.replicas
        )


class Cancellation(Reassignment):
    """A reassignment is cancelled while its new replicas sleep, and then made again.

    The controller dies with the StopReplica that waits for the sleeping broker, and no other one knows of it:
    as on Apache Kafka the broker keeps the directory, which must do no harm to the next move.
    """

    name = "cancelled reassignment"
    binds = False
    was_asked = False

    def prepare(self, controller: int) -> None:
        super().prepare(controller)
        reassign(self.cluster.servers, self.topic, self.wanted, self.held.pause)
        self.may_keep = self.target

    def ask(self) -> None:
        wanted = self.wanted if self.was_asked else dict.fromkeys(self.wanted)
        self.was_asked = True
        reassign(self.cluster.servers, self.topic, wanted, self.sent.set)


class PreferredElection(Request):
    """The first replicas of all partitions become leaders, which none of them was."""

    name = "preferred election"
    binds = False  # the controller's own partitions get other leaders when it dies

    def prepare(self, controller: int) -> None:
        turned = {}
        for index, each in self.described().items():
            others = [one for one in each.replicas if one != each.leader]
            self.rng.shuffle(others)
            turned[index] = (*others, each.leader)
        reassign(self.cluster.servers, self.topic, turned)
        if complaint := self.cluster.wait_until_healed(self.topic):
            raise NodeFailed(complaint)

    def ask(self) -> None:
        partitions = [TopicPartition(self.topic, index) for index in self.described()]

        async def elect(admin: Admin) -> None:
            _raise_first(await admin.partitions.elect_leaders(partitions))

        with_admin(self.cluster.servers, elect, self.sent.set)

    def is_over(self) -> bool:
        return self.outcome() == FINISHED

    def outcome(self) -> str | None:
        found = self.described()
        if not found or any(each.leader not in each.isr for each in found.values()):
            return None
        preferred = all(each.leader == each.replicas[0] for each in found.values())
        return FINISHED if preferred else CANCELLED


# ---- topics


class Deletion(Request):
    """A topic with records on three replicas is deleted."""

    name = "deletion"

    def prepare(self, controller: int) -> None:
        self.doomed = f"doomed-{self.number}"
        self.cluster.create(self.doomed, 6)
        if complaint := self.cluster.wait_until_healed(self.doomed):
            raise NodeFailed(complaint)
        producer = Producer({"bootstrap.servers": self.cluster.servers, "acks": "all", "log_level": 0})
        for _ in range(600):
            producer.produce(self.doomed, b"x" * 1_000)
        if left := producer.flush(60):
            raise NodeFailed(f"{left} records of {self.doomed} were not acknowledged")

    def ask(self) -> None:
        admin = _connected_admin(self.cluster)
        self.sent.set()
        _result(admin.delete_topics([self.doomed])[self.doomed])

    def is_over(self) -> bool:
        return not self._is_on_disk()

    def _is_on_disk(self) -> bool:
        folders = (broker.data for broker in self.cluster.brokers.values())
        return any(True for folder in folders for _ in folder.glob(f"{self.doomed}-*"))

    def outcome(self) -> str | None:
        zookeeper = KazooClient(self.cluster.ensemble.connect_string)
        zookeeper.start(30)
        try:
            asked = zookeeper.exists(f"/admin/delete_topics/{self.doomed}")
            exists = zookeeper.exists(f"/brokers/topics/{self.doomed}")
        finally:
            zookeeper.stop()
            zookeeper.close()
        if not asked and not exists and not self._is_on_disk():
            return FINISHED
        found = self.cluster.describe(self.doomed)
        whole = bool(found) and all(len(each.isr) == 3 for each in found.values())
        return CANCELLED if exists and not asked and whole else None


class ConfigChange(Request):
    """The largest batch of a topic changes, as all leaders show by taking or refusing a large record."""

    name = "config change"
    within_s = 0.02
    small: ClassVar[int] = 200_000
    large: ClassVar[int] = 1_000_000

    def prepare(self, controller: int) -> None:
        deadline_s = time.monotonic() + REQUEST_BOUND_S
        while (found := self._described()) is None:
            if time.monotonic() > deadline_s:
                raise NodeFailed(f"nobody describes the configuration of {self.topic}")
        self.before = found
        self.wanted = self.large if found == self.small else self.small

    def ask(self) -> None:
        entry = ConfigEntry(
            "max.message.bytes", str(self.wanted), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[entry])
        admin = _connected_admin(self.cluster)
        self.sent.set()
        _result(admin.incremental_alter_configs([resource])[resource])

    def outcome(self) -> str | None:
        value = self._described()
        if value not in (self.before, self.wanted):
            return None
        large = {self._takes(index) for index in self.described()}
        if large != {value > self.small}:
            return None
        return FINISHED if value == self.wanted else CANCELLED

    def _described(self) -> int | None:
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        admin = _admin(self.cluster)  # the answer is lost with its client
        with suppress(RequestFailed):
            found = _result(admin.describe_configs([resource])[resource])
            return int(found["max.message.bytes"].value)
        return None

    def _takes(self, partition: int) -> bool | None:
        """Return whether a leader takes a large record, None while it says neither."""
        answers: list[ProducerError | None] = []
        producer = Producer(
            {"bootstrap.servers": self.cluster.servers, "acks": "all", "message.max.bytes": 2_000_000,
             "log_level": 0}
        )  # fmt: skip
        producer.produce(
            self.topic, b"probe 0 ".ljust(2 * self.small, b"x"), partition=partition,
            on_delivery=lambda error, _: answers.append(error),
        )  # fmt: skip
        producer.flush(REQUEST_BOUND_S)
        # A KafkaError compared with None leaves a TypeError behind that appears at some later call.
        for error in answers:
            if error is None:
                return True
            if error.code() == ProducerError.MSG_SIZE_TOO_LARGE:
                return False
        return None


# ---- brokers


class ControlledShutdown(Request):
    """A broker that is not the controller is asked to stop."""

    name = "controlled shutdown"
    within_s = 0.2

    def prepare(self, controller: int) -> None:
        others = [node for node in self.cluster.brokers if node != controller]
        self.victim = self.cluster.brokers[self.rng.choice(others)]
        self.was_clean = False

    def ask(self) -> None:
        self.sent.set()
        self.victim.stop()
        self.was_clean = (self.victim.data / ".kafka_cleanshutdown").exists()

    def is_over(self) -> bool:
        return not self.victim.is_running

    def outcome(self) -> str | None:
        return FINISHED if self.was_clean else None


REQUESTS: Final = (
    Reassignment,
    Cancellation,
    Deletion,
    PreferredElection,
    ConfigChange,
    ControlledShutdown,
)


# ---- how requests are made


def with_admin(servers: str, use: Any, connected: Callable[[], object] = lambda: None) -> Any:
    """Run a coroutine function with our admin client; `connected` is called before. Raises RequestFailed."""

    async def run() -> Any:
        async with asyncio.timeout(REQUEST_BOUND_S), Admin(servers) as admin:
            await admin.brokers.describe()
            connected()
            return await use(admin)

    try:
        return asyncio.run(run())
    except (ClientError, KafkaError, TimeoutError, OSError) as error:
        raise RequestFailed(f"{type(error).__name__}: {error}") from error


def reassign(
    servers: str, topic: str, wanted: Mapping[int, Sequence[int] | None],
    connected: Callable[[], object] = lambda: None,
) -> None:  # fmt: skip
    """Ask for other replicas; None cancels. `connected` is called right before."""

    async def use(admin: Admin) -> None:
        moves = {TopicPartition(topic, index): to for index, to in wanted.items()}
        _raise_first(await admin.partitions.reassign(moves))

    with_admin(servers, use, connected)


def is_moving(servers: str) -> bool:
    """Whether a partition is being moved, or nobody can tell."""

    async def use(admin: Admin) -> bool:
        return bool(await admin.partitions.reassignments())

    try:
        return bool(with_admin(servers, use))
    except RequestFailed:
        return True


def _raise_first(errors: Mapping[TopicPartition, KafkaError | None]) -> None:
    for error in errors.values():
        if error is not None:
            raise error


def _admin(cluster: Cluster) -> Any:
    return AdminClient(
        {"bootstrap.servers": cluster.servers, "socket.timeout.ms": 10_000, "log_level": 0,
         "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
    )  # fmt: skip


def _connected_admin(cluster: Cluster) -> Any:
    admin = _admin(cluster)
    try:
        admin.list_topics(timeout=REQUEST_BOUND_S)
    except KafkaException as error:
        raise RequestFailed(f"{type(error).__name__}: {error}") from error
    return admin


def _result(future: Any) -> Any:
    try:
        return future.result(REQUEST_BOUND_S)
    except (KafkaException, TimeoutError) as error:
        raise RequestFailed(f"{type(error).__name__}: {error}") from error
