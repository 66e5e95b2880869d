"""The description of a streams group: its topology, and the tasks of its members (StreamsGroupDescribe)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ottla.broker.groups.streams.group import StreamsGroup
from ottla.broker.groups.streams.members import StreamsMember
from ottla.broker.groups.streams.records import task_ids
from ottla.broker.groups.streams.state import NO_MEMBER_OFFSETS, StreamsGroupData
from ottla.broker.groups.streams.sticky_assignor import STICKY, TaskOffsets
from ottla.broker.groups.streams.tasks import NO_TASKS, HeldTasks, Tasks, without_epochs
from ottla.broker.groups.streams.topology import InternalTopic, stored_topic
from ottla.protocol.messages.streams_group_describe import (
    Assignment,
    DescribedGroup,
    Endpoint,
    KeyValue,
    Member,
    Subtopology,
    TaskOffset,
    TopicInfo,
    Topology,
)


def describe(group: StreamsGroup) -> DescribedGroup:
    """Describe a group without its members."""
    data = group.data
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=data.facts.epoch,
        assignment_epoch=data.assignment_epoch,
        assignor_name=STICKY,
        topology=_topology(data),
    )


def topics_of(described: DescribedGroup) -> Iterator[str]:
    """Iterate over the names of the topics that a description shows."""
    for part in () if described.topology is None else described.topology.subtopologies or ():
        yield from part.source_topics
        yield from part.repartition_sink_topics
        for topic in (*part.repartition_source_topics, *part.state_changelog_topics):
            yield topic.name


def describe_member(data: StreamsGroupData, member: StreamsMember) -> Member:
    """Describe a member with the tasks that it has, and with those that it shall have."""
    reported = data.task_offsets.get(member.id, NO_MEMBER_OFFSETS)
    endpoint = member.user_endpoint
    return Member(
        member_id=member.id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=endpoint and Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[KeyValue(key=key, value=value) for key, value in member.client_tags],
        task_offsets=_offsets(reported.offsets),
        task_end_offsets=_offsets(reported.end_offsets),
        assignment=_assignment(_without_epochs(member.assigned)),
        target_assignment=_assignment(data.target.get(member.id, NO_TASKS)),
    )


def _topology(data: StreamsGroupData) -> Topology | None:
    """Return the topology, with the numbers of partitions that were decided, once its topics are there."""
    configured = data.configured
    if configured is not None and configured.is_ready and configured.subtopologies is not None:
        parts = [
            _part(
                name,
                part.source_topics,
                part.repartition_sink_topics,
                part.repartition_source_topics.values(),
                part.changelog_topics.values(),
            )
            for name, part in configured.subtopologies.items()
        ]
        return Topology(epoch=configured.epoch, subtopologies=parts)
    topology = data.topology
    if topology is None:
        return None
    parts = [
        _part(
            name,
            part.source_topics,
            part.repartition_sink_topics,
            part.repartition_source_topics,
            part.changelog_topics,
        )
        for name, part in sorted(topology.subtopologies.items())
    ]
    return Topology(epoch=topology.epoch, subtopologies=parts)


def _part(
    name: str,
    sources: Iterable[str],
    sinks: Iterable[str],
    repartition: Iterable[InternalTopic],
    changelogs: Iterable[InternalTopic],
) -> Subtopology:
    return Subtopology(
        subtopology_id=name,
        source_topics=sorted(sources),
        repartition_sink_topics=sorted(sinks),
        state_changelog_topics=_topics(changelogs),
        repartition_source_topics=_topics(repartition),
    )


def _topics(topics: Iterable[InternalTopic]) -> list[TopicInfo]:
    return [stored_topic(topic) for topic in sorted(topics, key=lambda topic: topic.name)]


def _offsets(offsets: TaskOffsets | Mapping[str, Mapping[int, int]]) -> list[TaskOffset]:
    return [
        TaskOffset(subtopology_id=name, partition=partition, offset=offset)
        for name, by_partition in offsets.items()
        for partition, offset in by_partition.items()
    ]


def _without_epochs(held: HeldTasks) -> Tasks:
    return Tasks(without_epochs(held.active), held.standby, held.warmup)


def _assignment(tasks: Tasks) -> Assignment:
    return Assignment(
        active_tasks=task_ids(tasks.active),
        standby_tasks=task_ids(tasks.standby),
        warmup_tasks=task_ids(tasks.warmup),
    )
