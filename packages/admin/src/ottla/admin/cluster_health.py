"""The state of a whole cluster at one moment, and what is wrong in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ottla.admin.brokers import Broker, Brokers
from ottla.admin.configs import TOPIC, Configs
from ottla.admin.topics import Topics
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

Kind = Literal["no controller", "broker away", "no leader", "under min ISR", "under-replicated"]
_MIN_ISR = "min.insync.replicas"


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

    `min_insync_replicas` has the setting of each topic with a partition that lacks replicas.
    """

    cluster_id: str | None
    controller: int | None
    brokers: tuple[Broker, ...]
    partitions: tuple[PartitionHealth, ...]
    min_insync_replicas: Mapping[str, int] = field(default_factory=dict)

    @property
    def under_replicated(self) -> list[PartitionHealth]:
        """Partitions of which not all replicas are in sync."""
        return [each for each in self.partitions if set(each.isr) != set(each.replicas)]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong: its kind, the broker or partition, and one line for people."""

    kind: Kind
    what: str
    text: str


def problems(state: ClusterState) -> list[Problem]:
    """Return what is wrong in a cluster, the worst first."""
    return [*_of_brokers(state), *_of_partitions(state)]


def _of_brokers(state: ClusterState) -> Iterator[Problem]:
    if state.controller is None:
        yield Problem("no controller", "cluster", "no broker is the controller: leaders cannot change")
    there = {each.id for each in state.brokers}
    for broker in sorted({each for one in state.partitions for each in one.replicas} - there):
        count = sum(broker in one.replicas for one in state.partitions)
        replicas = "1 replica" if count == 1 else f"{count} replicas"
        yield Problem("broker away", str(broker), f"broker {broker} is away, with {replicas}")


def _of_partitions(state: ClusterState) -> Iterator[Problem]:
    leaderless, below, behind = [], [], []
    for each in state.under_replicated:
        minimum = state.min_insync_replicas.get(each.partition.topic, 1)
        if each.leader is None:
            leaderless.append(
                _problem("no leader", each, "has no leader: it can be neither read nor written")
            )
        elif len(each.isr) < minimum:
            text = f"has {len(each.isr)} in-sync replicas of {_MIN_ISR}={minimum}: acks=all is refused"
            below.append(_problem("under min ISR", each, text))
        else:
            lag = ",".join(map(str, sorted(set(each.replicas) - set(each.isr))))
            text = f"has {len(each.isr)} of {len(each.replicas)} replicas in sync: {lag} lags or is away"
            behind.append(_problem("under-replicated", each, text))
    yield from (*leaderless, *below, *behind)


def _problem(kind: Kind, each: PartitionHealth, text: str) -> Problem:
    return Problem(kind, str(each.partition), f"{each.partition} {text}")


async def read_state(brokers: Brokers, topics: Topics, configs: Configs) -> ClusterState:
    """Read the state of a cluster; the settings only of topics that lack replicas."""
    found = await brokers.describe()
    partitions = tuple(
        PartitionHealth(
            TopicPartition(topic.name, each.index),
            None if each.leader < 0 else each.leader,
            each.replicas,
            each.isr,
        )
        for topic in await topics.list(internal=True)
        for _, each in sorted(topic.partitions.items())
    )
    controller = next((each.id for each in found.brokers if each.is_controller), None)
    state = ClusterState(found.cluster_id, controller, found.brokers, partitions)
    lacking = sorted({each.partition.topic for each in state.under_replicated})
    minima = {topic: await _min_isr(configs, topic) for topic in lacking}
    return ClusterState(found.cluster_id, controller, found.brokers, partitions, minima)


async def _min_isr(configs: Configs, topic: str) -> int:
    """Return a topic's min.insync.replicas; 1 where it cannot be read, for it was deleted or is secret."""
    try:
        entries = await configs.describe(TOPIC, topic)
    except (ClientError, KafkaError):
        return 1
    return next((int(each.value) for each in entries if each.name == _MIN_ISR and each.value), 1)
