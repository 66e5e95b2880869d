"""Read, execute, verify and cancel the reassignments of a JSON file, as kafka-reassign-partitions does.

Throttles (KIP-73) are settings of topics and brokers, set before a reassignment and removed after it.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from ottla.admin.configs import BROKER, TOPIC, Configs
from ottla.client.cluster import not_alive
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError, NoReassignmentInProgress, ReplicaNotAvailable
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.admin import Admin


State = Literal["complete", "moving", "differs", "gone"]

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LOG_DIR_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"

Replicas = Mapping[TopicPartition, Sequence[int]]

ANY_DIR: Final = "any"
_VERSION: Final = 1


class ReassignmentRefused(ClientError):
    """A reassignment cannot be executed; the message is one line that says what to change."""


@dataclass(frozen=True, slots=True)
class PlanState:
    """How far a partition is: its replicas now, those that are added, and moves between directories."""

    plan: PartitionPlan
    state: State
    replicas: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    moving_dirs: tuple[int, ...] = ()


async def current_plans(admin: Admin, topics: Iterable[str] | None = None) -> list[PartitionPlan]:
    """Return the present replicas of topics, None: of all topics. Raises NoSuchTopic."""
    if topics is None:
        found = await admin.topics.list(internal=True)
    else:
        found = [await admin.topics.describe(topic) for topic in topics]
    return [
        PartitionPlan(TopicPartition(topic.name, index), partition.replicas)
        for topic in found
        for index, partition in sorted(topic.partitions.items())
    ]


async def execute(
    admin: Admin,
    plans: Sequence[PartitionPlan],
    *,
    throttle: int | None = None,
    log_dir_throttle: int | None = None,
    additional: bool = False,
) -> list[PartitionPlan]:
    """Begin to move partitions, and return their replicas from before, which undo it.

    Everything is checked before anything changes. Throttles are set first and stay until `verify` finds all
    moves complete, or `cancel` ends them. Raises ReassignmentRefused, NoSuchTopic, or the broker's error.
    """
    before = await _checked(admin, plans, additional=additional)
    current = {plan.partition: plan.replicas for plan in before}
    target = {plan.partition: plan.replicas for plan in plans}
    if throttle is not None:
        topics = throttled_replicas(current, target)
        brokers = {
            replica for some in (current, target) for replicas in some.values() for replica in replicas
        }
        await set_throttles(admin.configs, brokers, topics, throttle)
    dirs = _dirs_by_broker(plans)
    if log_dir_throttle is not None:
        await set_log_dir_throttle(admin.configs, dirs, log_dir_throttle)
    # A broker that has no such replica yet remembers the directory for when it gets one.
    await _move_dirs(admin, dirs)
    moving = {partition: replicas for partition, replicas in target.items() if replicas != current[partition]}
    if moving:
        _raise_first(await admin.partitions.reassign(moving))
    return before


async def _checked(admin: Admin, plans: Sequence[PartitionPlan], *, additional: bool) -> list[PartitionPlan]:
    """Return the present replicas of the partitions to move; raise for one that cannot be moved."""
    wanted = {plan.partition for plan in plans}
    present = await current_plans(admin, sorted({partition.topic for partition in wanted}))
    before = [plan for plan in present if plan.partition in wanted]
    if missing := wanted - {plan.partition for plan in before}:
        raise ReassignmentRefused(f"{min(missing)} does not exist: correct the file")
    known = {broker.id for broker in (await admin.brokers.describe()).brokers}
    for plan in plans:
        if unknown := set(plan.replicas) - known:
            raise ReassignmentRefused(f"{plan.partition}: {not_alive(min(unknown), known)}")
    if not additional and (moving := await admin.partitions.reassignments()):
        raise ReassignmentRefused(
            f"{moving[0].partition} is being moved already: wait for it, cancel it, or add --additional"
        )
    return before


def _dirs_by_broker(plans: Iterable[PartitionPlan]) -> dict[int, dict[TopicPartition, str]]:
    dirs: dict[int, dict[TopicPartition, str]] = defaultdict(dict)
    for plan in plans:
        for broker, path in plan.chosen_dirs.items():
            dirs[broker][plan.partition] = path
    return dict(dirs)


async def _move_dirs(admin: Admin, dirs: Mapping[int, Mapping[TopicPartition, str]]) -> None:
    for broker, targets in dirs.items():
        outcomes = await admin.brokers.alter_replica_log_dirs(broker, targets)
        later = (key for key in outcomes if isinstance(outcomes[key], ReplicaNotAvailable))
        _raise_first(outcomes | dict.fromkeys(list(later)), f"on broker {broker}")


def _raise_first(outcomes: Mapping[TopicPartition, KafkaError | None], where: str = "") -> None:
    for partition, error in sorted(outcomes.items(), key=lambda key: key[0]):
        if error is not None:
            place = f"{partition} {where}".rstrip()
            raise ReassignmentRefused(f"{place}: {error}") from error


async def verify(
    admin: Admin, plans: Sequence[PartitionPlan], *, preserve_throttles: bool = False
) -> tuple[list[PlanState], list[str]]:
    """Return how far each partition is; once nothing moves, remove the throttles, and return where."""
    states = await plan_states(admin, plans)
    if preserve_throttles or any(state.state == "moving" for state in states):
        return states, []
    return states, await _without_throttles(admin, plans)


async def plan_states(admin: Admin, plans: Sequence[PartitionPlan]) -> list[PlanState]:
    """Return how far each partition is."""
    existing = {topic.name for topic in await admin.topics.list(internal=True)}
    topics = sorted({plan.partition.topic for plan in plans} & existing)
    replicas = {plan.partition: plan.replicas for plan in await current_plans(admin, topics)}
    moving = {
        reassignment.partition: reassignment
        for reassignment in await admin.partitions.reassignments(replicas or None)
    }
    unfinished = await _unfinished_dirs(admin, plans)
    states = []
    for plan in plans:
        now = replicas.get(plan.partition)
        dirs = tuple(sorted(unfinished.get(plan.partition, ())))
        if now is None:
            states.append(PlanState(plan, "gone"))
        elif (move := moving.get(plan.partition)) is not None:
            states.append(PlanState(plan, "moving", now, move.adding, move.removing, dirs))
        elif now != plan.replicas:
            states.append(PlanState(plan, "differs", now))
        else:
            states.append(PlanState(plan, "moving" if dirs else "complete", now, moving_dirs=dirs))
    return states


async def _unfinished_dirs(admin: Admin, plans: Iterable[PartitionPlan]) -> dict[TopicPartition, set[int]]:
    """Return the brokers on which a replica is not in the directory yet that was named for it."""
    unfinished: dict[TopicPartition, set[int]] = defaultdict(set)
    for broker, wanted in _dirs_by_broker(plans).items():
        places = {
            replica.partition: log_dir.path
            for log_dir in await admin.brokers.log_dirs(broker)
            for replica in log_dir.replicas
            if not replica.is_future
        }
        for partition, path in wanted.items():
            if places.get(partition) != path:
                unfinished[partition].add(broker)
    return unfinished


async def cancel(
    admin: Admin, partitions: Sequence[TopicPartition] | None, *, preserve_throttles: bool = False
) -> tuple[list[TopicPartition], list[str]]:
    """Cancel moves, None: all of them; return those that were cancelled, and where throttles were removed."""
    wanted = partitions
    if wanted is None:
        wanted = [reassignment.partition for reassignment in await admin.partitions.reassignments()]
    outcomes = await admin.partitions.reassign(dict.fromkeys(wanted)) if wanted else {}
    idle = {partition for partition, error in outcomes.items() if isinstance(error, NoReassignmentInProgress)}
    _raise_first({partition: error for partition, error in outcomes.items() if partition not in idle})
    plans = [PartitionPlan(partition, (0,)) for partition in wanted]
    removed = [] if preserve_throttles else await _without_throttles(admin, plans)
    return sorted(set(outcomes) - idle), removed


async def _without_throttles(admin: Admin, plans: Iterable[PartitionPlan]) -> list[str]:
    existing = {topic.name for topic in await admin.topics.list(internal=True)}
    topics = {plan.partition.topic for plan in plans} & existing
    brokers = [broker.id for broker in (await admin.brokers.describe()).brokers]
    return await remove_throttles(admin.configs, brokers, topics)


def throttled_replicas(current: Replicas, target: Replicas) -> dict[str, dict[str, str]]:
    """Return the throttle settings of each topic: leaders send from all replicas, new ones receive."""
    leaders: dict[str, list[str]] = defaultdict(list)
    followers: dict[str, list[str]] = defaultdict(list)
    for partition, replicas in sorted(target.items()):
        before = current[partition]
        added = [replica for replica in replicas if replica not in before]
        if added:
            leaders[partition.topic] += [f"{partition.partition}:{replica}" for replica in before]
            followers[partition.topic] += [f"{partition.partition}:{replica}" for replica in added]
    return {
        topic: {LEADER_REPLICAS: ",".join(leaders[topic]), FOLLOWER_REPLICAS: ",".join(followers[topic])}
        for topic in leaders
    }


async def set_throttles(
    configs: Configs, brokers: Iterable[int], topics: Mapping[str, Mapping[str, str]], rate: int
) -> None:
    """Bound replication of the throttled replicas to `rate` bytes per second on each broker."""
    for topic, values in topics.items():
        await configs.alter(TOPIC, topic, values)
    for broker in sorted(brokers):
        await configs.alter(BROKER, str(broker), {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)})


async def set_log_dir_throttle(configs: Configs, brokers: Iterable[int], rate: int) -> None:
    """Bound the moves between log directories to `rate` bytes per second on each broker."""
    for broker in sorted(brokers):
        await configs.alter(BROKER, str(broker), {LOG_DIR_RATE: str(rate)})


async def remove_throttles(configs: Configs, brokers: Iterable[int], topics: Iterable[str]) -> list[str]:
    """Remove the throttles of brokers and topics; return the names of those that had some."""
    of_topics = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
    of_brokers = (LEADER_RATE, FOLLOWER_RATE, LOG_DIR_RATE)
    return [
        *[f"topic {topic}" for topic in sorted(topics) if await _remove(configs, TOPIC, topic, of_topics)],
        *[
            f"broker {broker}"
            for broker in sorted(brokers)
            if await _remove(configs, BROKER, str(broker), of_brokers)
        ],
    ]


async def _remove(configs: Configs, kind: int, name: str, keys: Sequence[str]) -> bool:
    """Unset those of the keys that are set, so that a broker that knows none of them is left alone."""
    own = "topic" if kind == TOPIC else "broker"
    present = [entry.name for entry in await configs.describe(kind, name) if entry.source == own]
    wanted = [key for key in keys if key in present]
    if wanted:
        await configs.alter(kind, name, dict.fromkeys(wanted))
    return bool(wanted)


_SPAN_S: Final = 120.0
_MOST_LOOKS: Final = 60


class CopyRates:
    """The rates at which partitions are copied, and the time that is left, from looks at the bytes copied.

    Each partition has the looks of the last two minutes. Pure: the caller gives the time.
    """

    def __init__(self) -> None:
        self._looks: dict[TopicPartition, deque[tuple[float, int]]] = {}

    def look(self, at_s: float, copied_bytes: Mapping[TopicPartition, int]) -> None:
        """Take how many bytes of each partition were copied at a time."""
        for partition, count in copied_bytes.items():
            looks = self._looks.setdefault(partition, deque(maxlen=_MOST_LOOKS))
            if looks and count < looks[-1][1]:  # another move, or a replica that was made again
                looks.clear()
            if not looks or at_s > looks[-1][0]:
                looks.append((at_s, count))
            while looks[0][0] < at_s - _SPAN_S:
                looks.popleft()
        for partition in [known for known, looks in self._looks.items() if looks[-1][0] < at_s - _SPAN_S]:
            del self._looks[partition]

    def bytes_per_s(self, partition: TopicPartition) -> float | None:
        """Return the rate of a partition; None until there are two looks."""
        looks = self._looks.get(partition)
        if looks is None or len(looks) < 2:
            return None
        (first_s, first), (last_s, last) = looks[0], looks[-1]
        return (last - first) / (last_s - first_s)

    def left_s(self, left_bytes: Mapping[TopicPartition, int]) -> float | None:
        """Return the time until so many bytes are copied; None while that is not known, or nothing moves.

        Partitions that wait for others have no rate yet, so the bytes of all take the rate of all.
        """
        rate = sum(self.bytes_per_s(partition) or 0.0 for partition in left_bytes)
        return sum(left_bytes.values()) / rate if rate > 0 else None


class MalformedReassignment(ValueError):
    """A file is not a reassignment; the message is one line that names the entry."""


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The replicas that a partition is to have, the preferred leader first, each in its log directory.

    `log_dirs` is empty or as long as `replicas`; `any` leaves the choice to the broker.
    """

    partition: TopicPartition
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...] = ()

    @property
    def chosen_dirs(self) -> dict[int, str]:
        """The log directory of each replica for which one is named, by broker."""
        pairs = zip(self.replicas, self.log_dirs, strict=False)
        return {broker: path for broker, path in pairs if path != ANY_DIR}


def encode_plans(plans: Iterable[PartitionPlan]) -> str:
    """Return the JSON of a reassignment, sorted by partition."""
    partitions = [
        {
            "topic": plan.partition.topic,
            "partition": plan.partition.partition,
            "replicas": list(plan.replicas),
            "log_dirs": list(plan.log_dirs) or [ANY_DIR] * len(plan.replicas),
        }
        for plan in sorted(plans, key=lambda plan: plan.partition)
    ]
    return json.dumps({"version": _VERSION, "partitions": partitions})


def decode_plans(text: str) -> list[PartitionPlan]:
    """Read the JSON of a reassignment. Raises MalformedReassignment."""
    plans = [_plan(entry) for entry in _entries(text, "partitions")]
    named = [plan.partition for plan in plans]
    if twice := {str(partition) for partition in named if named.count(partition) > 1}:
        raise MalformedReassignment(f"{min(twice)} is named twice")
    if not plans:
        raise MalformedReassignment("no partition is named")
    return plans


def decode_topics(text: str) -> list[str]:
    """Read the topics of a `--topics-to-move-json-file`. Raises MalformedReassignment."""
    return [_value(entry, "topic", str) for entry in _entries(text, "topics")]


def _entries(text: str, name: str) -> Iterator[Mapping[str, Any]]:
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise MalformedReassignment(f"not JSON: {error}") from None
    if not isinstance(whole, dict) or not isinstance(whole.get(name), list):
        raise MalformedReassignment(f'not an object with a list "{name}"')
    if whole.get("version", _VERSION) != _VERSION:
        raise MalformedReassignment(f"version {whole['version']!r} is not known, only {_VERSION}")
    for entry in whole[name]:
        if not isinstance(entry, dict):
            raise MalformedReassignment(f"{entry!r} is not an object")
        yield entry


def _plan(entry: Mapping[str, Any]) -> PartitionPlan:
    partition = TopicPartition(_value(entry, "topic", str), _value(entry, "partition", int))
    replicas = tuple(_value(entry, "replicas", list))
    log_dirs = tuple(_value(entry, "log_dirs", list)) if "log_dirs" in entry else ()
    if not replicas or not all(isinstance(replica, int) and replica >= 0 for replica in replicas):
        raise MalformedReassignment(f"{partition}: replicas must be a list of broker ids")
    if len(set(replicas)) != len(replicas):
        raise MalformedReassignment(f"{partition}: a broker is named twice in replicas {list(replicas)}")
    if not all(isinstance(path, str) for path in log_dirs):
        raise MalformedReassignment(f"{partition}: log_dirs must be a list of directories")
    if log_dirs and len(log_dirs) != len(replicas):
        raise MalformedReassignment(
            f"{partition}: {len(replicas)} replicas and {len(log_dirs)} log_dirs: name as many, "
            "or no log_dirs"
        )
    return PartitionPlan(partition, replicas, log_dirs)


def _value(entry: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = entry.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise MalformedReassignment(f'{json.dumps(entry)} has no "{name}" of the right type')
    return value
