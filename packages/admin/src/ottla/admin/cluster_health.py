"""The state of a whole cluster at one moment, and the problems in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ottla.admin.brokers import Broker, Brokers, LogDir
from ottla.admin.configs import TOPIC, Configs
from ottla.admin.topics import Topics
from ottla.client.errors import ClientError, UnsupportedByBroker
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

Kind = Literal[
    "no controller", "broker away", "log directory offline", "log directory full", "log directories unknown",
    "no leader", "under min ISR", "under-replicated",
]  # fmt: skip
_MIN_ISR = "min.insync.replicas"
_ANSWER_S = 10.0
"""How long a broker may take to describe its log directories."""
_FULL_BYTES = 1 << 20
"""A volume with less space than this takes no batches for long."""


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """A partition's leader (None where there is none), its replicas, and those in sync."""

    partition: TopicPartition
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Brokers and partitions of a cluster, internal topics included, sorted.

    `min_insync_replicas` has the setting of each topic with a partition that lacks replicas. `log_dirs` has
    the log directories of the brokers, and `silent` the reason of each broker that does not describe its own.
    """

    cluster_id: str | None
    controller: int | None
    brokers: tuple[Broker, ...]
    partitions: tuple[PartitionHealth, ...]
    min_insync_replicas: Mapping[str, int] = field(default_factory=dict)
    log_dirs: tuple[LogDir, ...] = ()
    silent: Mapping[int, str] = field(default_factory=dict)

    @property
    def under_replicated(self) -> list[PartitionHealth]:
        """Partitions of which not all replicas are in sync."""
        return [partition for partition in self.partitions if set(partition.isr) != set(partition.replicas)]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong: its kind, the broker or partition, and one line for people."""

    kind: Kind
    what: str
    text: str


def problems(state: ClusterState) -> list[Problem]:
    """Return the problems of a cluster, the worst first."""
    return [*_of_brokers(state), *_of_log_dirs(state), *_of_partitions(state)]


def _of_brokers(state: ClusterState) -> Iterator[Problem]:
    if state.controller is None:
        yield Problem("no controller", "cluster", "no broker is the controller: leaders cannot change")
    there = {broker.id for broker in state.brokers}
    for broker in sorted(
        {replica for partition in state.partitions for replica in partition.replicas} - there
    ):
        count = sum(broker in partition.replicas for partition in state.partitions)
        yield Problem("broker away", str(broker), f"broker {broker} is away, with {_replicas(count)}")


def _of_log_dirs(state: ClusterState) -> Iterator[Problem]:
    """Return the log directories that cannot be written, and the brokers that do not describe theirs."""
    for found in state.log_dirs:
        what = f"{found.broker}:{found.path}"
        if found.error is not None:
            text = f"broker {found.broker} cannot use its log directory {found.path}: {found.error}"
            yield Problem("log directory offline", what, text)
        elif 0 <= found.usable_bytes < _FULL_BYTES:
            left, count = found.usable_bytes, _replicas(len(found.replicas))
            text = f"broker {found.broker} has {left} bytes left in {found.path}: {count} cannot be written"
            yield Problem("log directory full", what, text)
    for broker, reason in sorted(state.silent.items()):
        text = f"broker {broker} does not describe its log directories: {reason}"
        yield Problem("log directories unknown", str(broker), text)


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"


def _of_partitions(state: ClusterState) -> Iterator[Problem]:
    leaderless, below, behind = [], [], []
    for partition in state.under_replicated:
        minimum = state.min_insync_replicas.get(partition.partition.topic, 1)
        if partition.leader is None:
            leaderless.append(
                _problem("no leader", partition, "has no leader: it can be neither read nor written")
            )
        elif len(partition.isr) < minimum:
            text = f"has {len(partition.isr)} in-sync replicas of {_MIN_ISR}={minimum}: acks=all is refused"
            below.append(_problem("under min ISR", partition, text))
        else:
            lag = ",".join(map(str, sorted(set(partition.replicas) - set(partition.isr))))
            in_sync = f"{len(partition.isr)} of {len(partition.replicas)}"
            text = f"has {in_sync} replicas in sync: {lag} lags or is away"
            behind.append(_problem("under-replicated", partition, text))
    yield from (*leaderless, *below, *behind)


def _problem(kind: Kind, health: PartitionHealth, text: str) -> Problem:
    return Problem(kind, str(health.partition), f"{health.partition} {text}")


async def read_state(brokers: Brokers, topics: Topics, configs: Configs) -> ClusterState:
    """Read the state of a cluster; the settings only of topics that lack replicas."""
    found = await brokers.describe()
    partitions = tuple(
        PartitionHealth(
            TopicPartition(topic.name, partition.index),
            None if partition.leader < 0 else partition.leader,
            partition.replicas,
            partition.isr,
        )
        for topic in await topics.list(internal=True)
        for _, partition in sorted(topic.partitions.items())
    )
    controller = next((broker.id for broker in found.brokers if broker.is_controller), None)
    state = ClusterState(found.cluster_id, controller, found.brokers, partitions)
    lacking = sorted({partition.partition.topic for partition in state.under_replicated})
    minima = {topic: await _min_isr(configs, topic) for topic in lacking}
    async with asyncio.TaskGroup() as tasks:
        described = [tasks.create_task(_log_dirs(brokers, broker.id)) for broker in found.brokers]
    log_dirs = tuple(log_dir for task in described for log_dir in task.result()[0])
    silent = {
        broker.id: task.result()[1]
        for broker, task in zip(found.brokers, described, strict=True)
        if task.result()[1]
    }
    return replace(state, min_insync_replicas=minima, log_dirs=log_dirs, silent=silent)


async def _log_dirs(brokers: Brokers, broker: int) -> tuple[list[LogDir], str]:
    """Return the log directories of a broker, or why it does not describe them."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await brokers.log_dirs(broker), ""
    except UnsupportedByBroker:  # before Kafka 1.0
        return [], ""
    except TimeoutError:
        return [], f"no answer within {_ANSWER_S:g} s"
    except (ClientError, KafkaError) as error:
        return [], str(error)


async def _min_isr(configs: Configs, topic: str) -> int:
    """Return a topic's min.insync.replicas; 1 where it cannot be read, for it was deleted or is secret."""
    try:
        entries = await configs.describe(TOPIC, topic)
    except (ClientError, KafkaError):
        return 1
    return next((int(entry.value) for entry in entries if entry.name == _MIN_ISR and entry.value), 1)
