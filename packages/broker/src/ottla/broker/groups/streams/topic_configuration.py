"""The topics of a topology in this cluster: how many partitions internal topics get, and which are missing.

Source topics exist before the application. A repartition topic gets as many partitions as the largest topic
that a subtopology which writes it reads, unless its number is given; topics of a copartition group get the
same number; a changelog gets one partition for each task.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Final, TypeAlias

from ottla.broker.groups.streams.java_collections import hash_map_order
from ottla.broker.groups.streams.topology import InternalTopic, Subtopology, Topology
from ottla.protocol.errors import StreamsInvalidTopology
from ottla.zookeeper.frozen_classes import frozen, replace

PartitionCount: TypeAlias = Callable[[str], "int | None"]
"""Returns how many partitions a topic of the cluster has; None without one."""

NAMED_IN_MESSAGE: Final = 3


class StatusCode(IntEnum):
    """The statuses of a group in a heartbeat's response, by Kafka's codes."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


@frozen
class Status:
    """A code and its text."""

    code: StatusCode
    detail: str


@frozen(kw_only=True)
class ConfiguredSubtopology:
    """A subtopology with its number of tasks, and internal topics whose partitions are decided."""

    tasks: int
    source_topics: tuple[str, ...]
    repartition_sink_topics: tuple[str, ...]
    repartition_source_topics: Mapping[str, InternalTopic]
    changelog_topics: Mapping[str, InternalTopic]

    @property
    def topics_read(self) -> dict[str, None]:
        """The names of the topics whose partitions are divided into tasks, each once."""
        return dict.fromkeys([*self.source_topics, *self.repartition_source_topics])


@frozen
class ConfiguredTopology:
    """The outcome: subtopologies by id in their order, or the reason why tasks cannot be assigned.

    With missing internal topics there are both: the topics are to be created.
    """

    epoch: int
    subtopologies: Mapping[str, ConfiguredSubtopology] | None
    missing: Mapping[str, InternalTopic] = {}
    status: Status | None = None

    @property
    def is_ready(self) -> bool:
        """Whether tasks may be assigned."""
        return self.status is None


class _Misconfigured(Exception):
    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code, detail)


def configure(topology: Topology, partitions: PartitionCount) -> ConfiguredTopology:
    """Configure a topology. Raises StreamsInvalidTopology where no topics of the cluster would suit it."""
    try:
        _require_source_topics(topology, partitions)
        numbers = _Partitions(topology, partitions)
        numbers.decide()
        subtopologies = {
            name: _configured(topology.subtopologies[name], numbers)
            for name in sorted(topology.subtopologies)
        }
        missing = _missing(subtopologies.values(), partitions)
    except _Misconfigured as error:
        return ConfiguredTopology(topology.epoch, None, status=error.status)
    status = None
    if missing:
        detail = f"Internal topics are missing: {summary(missing)}"
        status = Status(StatusCode.MISSING_INTERNAL_TOPICS, detail)
    return ConfiguredTopology(topology.epoch, subtopologies, missing, status)


def summary(names: Iterable[str]) -> str:
    """Return the first names, and how many more there are."""
    listed = list(names)
    more = len(listed) - NAMED_IN_MESSAGE
    return ", ".join(listed[:NAMED_IN_MESSAGE]) + (f" and {more} additional topics" if more > 0 else "")


def _require_source_topics(topology: Topology, partitions: PartitionCount) -> None:
    missing = {
        name
        for part in topology.subtopologies.values()
        for name in part.source_topics
        if partitions(name) is None
    }
    if missing:
        detail = f"Source topics {summary(sorted(missing))} are missing."
        raise _Misconfigured(StatusCode.MISSING_SOURCE_TOPICS, detail)


# ---- how many partitions


class _Partitions:
    """The numbers of partitions: of topics of the cluster, and of those that are decided."""

    def __init__(self, topology: Topology, existing: PartitionCount) -> None:
        self._existing = existing
        self._parts = topology.in_java_order()
        topics = [topic for part in self._parts for topic in part.repartition_source_topics]
        self.decided = {topic.name: topic.partitions for topic in topics if topic.partitions}
        self._fixed = frozenset(self.decided)
        self._flexible = frozenset(topic.name for topic in topics if not topic.partitions)

    def decide(self) -> None:
        """Decide the number of partitions of each internal topic."""
        self._decide_repartition_topics()
        fixed = {name: self._of(name) for name in self._fixed}
        for part in self._parts:
            for group in part.copartitioned:
                self.decided |= self._copartitioned(group, fixed)
        for part in self._parts:
            tasks = self.tasks_of(part)
            self.decided |= {topic.name: tasks for topic in part.changelog_topics}

    def tasks_of(self, part: Subtopology) -> int:
        """Return the number of tasks of a subtopology."""
        tasks = max((self._of(name) for name in part.topics_read), default=0)
        if not tasks:
            raise StreamsInvalidTopology(f"No source topics found for subtopology {part.id}")
        return tasks

    def _of(self, name: str) -> int:
        found = self._existing(name)
        if found is None:
            found = self.decided.get(name)
        if found is None:
            raise StreamsInvalidTopology(f"Number of partitions is not set for topic: {name}")
        return found

    def _decide_repartition_topics(self) -> None:
        """Decide by the subtopologies that write the topics.

        Kafka passes over the subtopologies until a pass decides nothing; one that reads a topic whose number
        is known when the pass comes to it decides for all topics that it writes. Here the next such one is
        found without a pass over the others: `due` orders them by pass and place.
        """
        readers: dict[str, list[int]] = defaultdict(list)
        for place, part in enumerate(self._parts):
            for topic in part.repartition_source_topics:
                readers[topic.name].append(place)
        due = [(0, place) for place, part in enumerate(self._parts) if self._largest(part) is not None]
        while due:
            now, place = heapq.heappop(due)
            for sink in self._parts[place].repartition_sink_topics:
                largest = self._largest(self._parts[place])
                if sink in self.decided or largest is None:
                    continue
                self.decided[sink] = largest
                for reader in readers[sink]:
                    heapq.heappush(due, (now if reader > place else now + 1, reader))
        self._require_all_decided()

    def _largest(self, part: Subtopology) -> int | None:
        """Return the largest known number of partitions of what a subtopology reads; None without one."""
        counts = [self.decided.get(topic.name) for topic in part.repartition_source_topics]
        counts += [self._existing(name) for name in part.source_topics]
        return max((count for count in counts if count is not None), default=None)

    def _require_all_decided(self) -> None:
        prefix = "Failed to compute number of partitions for all repartition topics"
        decided = self.decided
        if any(sink not in decided for part in self._parts for sink in part.repartition_sink_topics):
            raise StreamsInvalidTopology(
                f"{prefix}. There may be loops in the topology that cannot be resolved."
            )
        if self._flexible - decided.keys():
            raise StreamsInvalidTopology(
                f"{prefix}, because a repartition source topic is never used as a sink topic."
            )

    def _copartitioned(self, group: tuple[str, ...], fixed: Mapping[str, int]) -> dict[str, int]:
        """Return the number of partitions for the repartition topics of a copartition group.

        As in Kafka, a group without source topics looks at all topics whose number is given, also at those
        of other groups.
        """
        named = hash_map_order(group)
        internal = {name: self._of(name) for name in named if name in self._flexible or name in fixed}
        external = {name: self._of(name) for name in named if name not in internal}
        if external:
            partitions = _same(external, external)
        elif fixed and internal:
            partitions = _same(fixed, internal)
        else:
            partitions = max(internal.values(), default=0)
        for name, number in internal.items():
            if name in fixed and number != partitions:
                raise _Misconfigured(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Number of partitions [{number}] of repartition topic [{name}] doesn't match "
                    f"number of partitions [{partitions}] of the source topic.",
                )
        return dict.fromkeys(internal, partitions)


def _same(counts: Mapping[str, int], named: Mapping[str, int]) -> int:
    """Return the number that all of `counts` have; the message of the error shows `named`."""
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name}={number}" for name, number in sorted(named.items()))
        raise _Misconfigured(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{shown}}}]",
        )
    return next(iter(counts.values()))


# ---- the topics themselves


def _configured(part: Subtopology, partitions: _Partitions) -> ConfiguredSubtopology:
    def with_partitions(topics: Iterable[InternalTopic]) -> dict[str, InternalTopic]:
        return {
            topic.name: topic
            if topic.partitions
            else replace(topic, partitions=partitions.decided[topic.name])
            for topic in topics
        }

    return ConfiguredSubtopology(
        tasks=partitions.tasks_of(part),
        source_topics=part.source_topics,
        repartition_sink_topics=part.repartition_sink_topics,
        repartition_source_topics=with_partitions(part.repartition_source_topics),
        changelog_topics=with_partitions(part.changelog_topics),
    )


def _missing(parts: Iterable[ConfiguredSubtopology], existing: PartitionCount) -> dict[str, InternalTopic]:
    """Return the internal topics that are to be created."""
    needed: dict[str, InternalTopic] = {}
    for part in parts:
        needed |= part.repartition_source_topics
        needed |= part.changelog_topics
    missing: dict[str, InternalTopic] = {}
    for name in hash_map_order(needed):
        found = existing(name)
        if found is None:
            missing[name] = needed[name]
        elif found != needed[name].partitions:
            raise _Misconfigured(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: "
                f"expected {needed[name].partitions}, found {found}",
            )
    return missing
