"""The topology of a Kafka Streams application, as its members send it and the log stores it.

A subtopology reads source topics and repartition topics, writes repartition topics, and keeps its state in
changelog topics. It runs as tasks, one for each partition of what it reads. The coordinator decides how many
partitions the internal topics have (`topic_configuration.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ottla.broker.groups.streams.java_collections import hash_map_order
from ottla.protocol.errors import InvalidRequest, StreamsInvalidTopology
from ottla.protocol.messages import streams_group_describe, streams_groups
from ottla.zookeeper.frozen_classes import frozen

UNKNOWN_EPOCH: Final = -1
"""The epoch where there is no topology, or none whose topics are as it needs them."""


@frozen
class InternalTopic:
    """A repartition or changelog topic; 0 leaves the number of partitions or replicas to the coordinator."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


@frozen
class CopartitionGroup:
    """Topics with equally many partitions, by their places in the lists of the subtopology."""

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


@frozen(kw_only=True)
class Subtopology:
    """A part of a topology whose nodes are connected without a topic in between."""

    id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[InternalTopic, ...] = ()
    changelog_topics: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    @property
    def topics_read(self) -> Iterator[str]:
        """The names of the topics whose partitions are divided into tasks."""
        yield from self.source_topics
        for topic in self.repartition_source_topics:
            yield topic.name

    @property
    def required_topics(self) -> Iterator[str]:
        """The names of the topics without which no task can run."""
        yield from self.topics_read
        for topic in self.changelog_topics:
            yield topic.name

    @property
    def copartitioned(self) -> Iterator[tuple[str, ...]]:
        """Names of topics that have equally many partitions, each group's by itself."""
        for group in self.copartition_groups:
            sources = (self.source_topics[place] for place in group.source_topics)
            internal = (self.repartition_source_topics[place] for place in group.repartition_source_topics)
            yield tuple(dict.fromkeys([*sources, *(topic.name for topic in internal)]))


@frozen
class Topology:
    """A topology with its subtopologies by id, and the epoch that its application gave it."""

    epoch: int
    subtopologies: Mapping[str, Subtopology]

    @property
    def required_topics(self) -> frozenset[str]:
        """The names of the topics without which no task can run."""
        return frozenset(name for part in self.subtopologies.values() for name in part.required_topics)

    @property
    def subtopology_of_topic(self) -> dict[str, str]:
        """The id of the subtopology that reads a topic, by the topic's name."""
        return {name: part.id for part in self.in_java_order() for name in part.topics_read}

    def in_java_order(self) -> list[Subtopology]:
        """Return the subtopologies in the order of Kafka's coordinator, which decides where several may."""
        return [self.subtopologies[name] for name in hash_map_order(self.subtopologies)]


def received(sent: streams_groups.Topology) -> Topology:
    """Return the topology of a heartbeat.

    Raises StreamsInvalidTopology for one that contradicts itself, InvalidRequest for regular expressions.
    """
    if sent.epoch < 0:
        raise StreamsInvalidTopology(f"The topology epoch is {sent.epoch}, but must not be negative.")
    for part in sent.subtopologies:
        if part.source_topic_regex:
            raise InvalidRequest("Regular expressions for source topics are not supported yet.")
        _check(part)
    topology = restored(sent.epoch, sent.subtopologies)
    if len(topology.subtopologies) != len(sent.subtopologies):
        raise StreamsInvalidTopology("Several subtopologies have the same id.")
    return topology


def restored(epoch: int, parts: Iterable[streams_groups.Subtopology]) -> Topology:
    """Return the topology that a record stores."""
    return Topology(epoch, {part.subtopology_id: _restored_part(part) for part in parts})


def _restored_part(sent: streams_groups.Subtopology) -> Subtopology:
    return Subtopology(
        id=sent.subtopology_id,
        source_topics=tuple(sent.source_topics),
        source_topic_regex=tuple(sent.source_topic_regex),
        repartition_sink_topics=tuple(sent.repartition_sink_topics),
        repartition_source_topics=_internal_topics(sent.repartition_source_topics),
        changelog_topics=_internal_topics(sent.state_changelog_topics),
        copartition_groups=tuple(
            CopartitionGroup(
                tuple(group.source_topics),
                tuple(group.source_topic_regex),
                tuple(group.repartition_source_topics),
            )
            for group in sent.copartition_groups
        ),
    )


def _internal_topics(sent: Iterable[streams_group_describe.TopicInfo]) -> tuple[InternalTopic, ...]:
    return tuple(
        InternalTopic(
            topic.name,
            topic.partitions,
            topic.replication_factor,
            tuple((config.key, config.value) for config in topic.topic_configs),
        )
        for topic in sent
    )


def _check(part: streams_groups.Subtopology) -> None:
    """Raise StreamsInvalidTopology where Kafka answers so, or fails on the way."""
    for topic in part.state_changelog_topics:
        if topic.partitions:
            raise StreamsInvalidTopology(
                f"Changelog topic {topic.name} must have an undefined partition count, "
                f"but it is set to {topic.partitions}."
            )
    for topic in part.repartition_source_topics:
        if topic.partitions < 0:
            raise StreamsInvalidTopology(f"Topic {topic.name} cannot have {topic.partitions} partitions.")
    for group in part.copartition_groups:
        if not (
            _are_places(group.source_topics, len(part.source_topics))
            and _are_places(group.repartition_source_topics, len(part.repartition_source_topics))
        ):
            raise StreamsInvalidTopology(
                f"A copartition group of subtopology {part.subtopology_id} names a topic that is not there."
            )


def _are_places(places: Iterable[int], length: int) -> bool:
    return all(0 <= place < length for place in places)


def stored(topology: Topology) -> list[streams_groups.Subtopology]:
    """Return the subtopologies as a record stores them."""
    return [
        streams_groups.Subtopology(
            subtopology_id=part.id,
            source_topics=list(part.source_topics),
            source_topic_regex=list(part.source_topic_regex),
            state_changelog_topics=[stored_topic(topic) for topic in part.changelog_topics],
            repartition_sink_topics=list(part.repartition_sink_topics),
            repartition_source_topics=[stored_topic(topic) for topic in part.repartition_source_topics],
            copartition_groups=[
                streams_groups.CopartitionGroup(
                    source_topics=list(group.source_topics),
                    source_topic_regex=list(group.source_topic_regex),
                    repartition_source_topics=list(group.repartition_source_topics),
                )
                for group in part.copartition_groups
            ],
        )
        for part in topology.subtopologies.values()
    ]


def stored_topic(topic: InternalTopic) -> streams_group_describe.TopicInfo:
    return streams_group_describe.TopicInfo(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=[streams_group_describe.KeyValue(key=key, value=value) for key, value in topic.configs],
    )
