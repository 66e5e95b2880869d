"""The state of a whole cluster at one moment, and the problems in it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ottla.admin.brokers import Broker, Brokers, LogDir
from ottla.admin.configs import TOPIC, Configs
from ottla.admin.topics import Topics
from ottla.client.cluster import Topic
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

    @property
    def lacks_replicas(self) -> bool:
        """Whether not all replicas are in sync."""
        return self.isr != self.replicas and set(self.isr) != set(self.replicas)


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
        return [partition for partition in self.partitions if partition.lacks_replicas]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong: its kind, its subject, one line for people, and the partitions that it concerns.

    Partitions with the same cause are one problem. `what` names the broker, the partition, or the topics.
    """

    kind: Kind
    what: str
    text: str
    partitions: tuple[TopicPartition, ...] = ()


def problems(state: ClusterState) -> list[Problem]:
    """Return the problems of a cluster, the worst first."""
    return [*_of_brokers(state), *_of_log_dirs(state), *_of_partitions(state)]


def _of_brokers(state: ClusterState) -> Iterator[Problem]:
    if state.controller is None:
        yield Problem("no controller", "cluster", "no broker is the controller: leaders cannot change")
    held: dict[int, int] = defaultdict(int)
    for health in state.partitions:
        for replica in health.replicas:
            held[replica] += 1
    behind = _by_cause(_behind(state))
    for broker in sorted(held.keys() - {broker.id for broker in state.brokers}):
        lacking = behind.get((broker,), [])
        rest = f": {_in_sync(lacking)}" if lacking else f", with {_replicas(held[broker])}"
        partitions = tuple(health.partition for health in lacking)
        yield Problem("broker away", str(broker), f"broker {broker} is away{rest}", partitions)


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
    """Return partitions by the cause of their problem; those that lack one broker, which is away, are its."""
    there = {broker.id for broker in state.brokers}
    leaderless = [health for health in state.partitions if health.leader is None]
    if leaderless:
        which = "it can" if len(leaderless) == 1 else "they can"
        text = f"{_counted(leaderless, 'has', 'have')} no leader: {which} be neither read nor written"
        yield _problem("no leader", leaderless, text)
    below: dict[tuple[int, int], list[PartitionHealth]] = defaultdict(list)
    for health in state.under_replicated:
        if _is_below(state, health):
            below[len(health.isr), _minimum(state, health)].append(health)
    for (count, minimum), some in sorted(below.items()):
        in_sync = "1 in-sync replica" if count == 1 else f"{count} in-sync replicas"
        text = f"{_counted(some, 'has', 'have')} {in_sync} of {_MIN_ISR}={minimum}: acks=all is refused"
        yield _problem("under min ISR", some, text)
    for missing, some in sorted(_by_cause(_behind(state)).items()):
        if len(missing) > 1 or missing[0] in there:
            yield _problem("under-replicated", some, f"{_cause(missing, there)}: {_in_sync(some)}")


def _behind(state: ClusterState) -> list[PartitionHealth]:
    """Return the partitions that lack replicas, and have a leader and enough of them to be written."""
    return [
        health
        for health in state.under_replicated
        if health.leader is not None and not _is_below(state, health)
    ]


def _minimum(state: ClusterState, health: PartitionHealth) -> int:
    return state.min_insync_replicas.get(health.partition.topic, 1)


def _is_below(state: ClusterState, health: PartitionHealth) -> bool:
    return health.leader is not None and len(health.isr) < _minimum(state, health)


def _by_cause(behind: Iterable[PartitionHealth]) -> dict[tuple[int, ...], list[PartitionHealth]]:
    """Return partitions by the brokers that are missing among those in sync."""
    found: dict[tuple[int, ...], list[PartitionHealth]] = defaultdict(list)
    for health in behind:
        found[tuple(sorted(set(health.replicas) - set(health.isr)))].append(health)
    return found


def _cause(missing: tuple[int, ...], there: set[int]) -> str:
    away, lagging = [broker for broker in missing if broker not in there], set(missing) & there
    parts = [_named(away, "is away", "are away"), _named(sorted(lagging), "lags", "lag")]
    return " and ".join(part for part in parts if part)


def _named(brokers: list[int], verb: str, verbs: str) -> str:
    if len(brokers) < 2:
        return "".join(f"broker {broker} {verb}" for broker in brokers)
    return f"brokers {', '.join(map(str, brokers[:-1]))} and {brokers[-1]} {verbs}"


def _in_sync(partitions: list[PartitionHealth]) -> str:
    """Return how many partitions have how many of their replicas in sync."""
    counts: dict[tuple[int, int], list[PartitionHealth]] = defaultdict(list)
    for health in partitions:
        counts[len(health.isr), len(health.replicas)].append(health)
    return ", ".join(
        f"{_counted(some, 'has', 'have')} {isr} of {replicas} replicas in sync"
        for (isr, replicas), some in sorted(counts.items())
    )


def _counted(partitions: list[PartitionHealth], verb: str, verbs: str) -> str:
    if len(partitions) == 1:
        return f"{partitions[0].partition} {verb}"
    topics = {health.partition.topic for health in partitions}
    of = next(iter(topics)) if len(topics) == 1 else f"{len(topics)} topics"
    return f"{len(partitions)} partitions of {of} {verbs}"


def _problem(kind: Kind, some: list[PartitionHealth], text: str) -> Problem:
    topics = ", ".join(sorted({health.partition.topic for health in some}))
    what = str(some[0].partition) if len(some) == 1 else topics
    return Problem(kind, what, text, tuple(health.partition for health in some))


async def read_state(brokers: Brokers, topics: Topics, configs: Configs) -> ClusterState:
    """Read the state of a cluster; the settings only of topics that lack replicas."""
    found = await brokers.describe()
    try:
        async with asyncio.TaskGroup() as tasks:  # brokers describe while the topics are decoded
            described = [tasks.create_task(_log_dirs(brokers, broker.id)) for broker in found.brokers]
            # Ten thousand topics are more work than a loop may be held up for.
            partitions, lacking = await asyncio.to_thread(_partitions, await topics.list(internal=True))
    except ExceptionGroup as group:
        raise group.exceptions[0] from group
    controller = next((broker.id for broker in found.brokers if broker.is_controller), None)
    state = ClusterState(found.cluster_id, controller, found.brokers, partitions)
    minima = {topic: await _min_isr(configs, topic) for topic in lacking}
    log_dirs = tuple(log_dir for task in described for log_dir in task.result()[0])
    silent = {
        broker.id: task.result()[1]
        for broker, task in zip(found.brokers, described, strict=True)
        if task.result()[1]
    }
    return replace(state, min_insync_replicas=minima, log_dirs=log_dirs, silent=silent)


def _partitions(topics: Iterable[Topic]) -> tuple[tuple[PartitionHealth, ...], list[str]]:
    """Return all partitions, and the topics with one that lacks replicas."""
    partitions = tuple(
        PartitionHealth(
            TopicPartition(topic.name, partition.index),
            None if partition.leader < 0 else partition.leader,
            partition.replicas,
            partition.isr,
        )
        for topic in topics
        for _, partition in sorted(topic.partitions.items())
    )
    return partitions, sorted({health.partition.topic for health in partitions if health.lacks_replicas})


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
