"""The partitions that each process of an application answers queries for (KIP-1071, interactive queries)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ottla.broker.groups.streams.members import StreamsMember
from ottla.broker.groups.streams.state import StreamsGroupData
from ottla.broker.groups.streams.tasks import TaskSets, union, without_epochs
from ottla.broker.groups.streams.topic_configuration import ConfiguredSubtopology
from ottla.protocol.messages.streams_group_describe import Endpoint
from ottla.protocol.messages.streams_groups import EndpointToPartitions, TopicPartition


def partitions_by_endpoint(
    group: StreamsGroupData,
    updated: StreamsMember,
    replaced: StreamsMember | None,
    partitions: Callable[[str], int | None],
) -> list[EndpointToPartitions]:
    """Return the partitions of all members that have an endpoint, with `updated` as it is about to be."""
    gone = {updated.id} if replaced is None else {updated.id, replaced.id}
    members = [member for member in group.members.values() if member.id not in gone]
    answers = [_of_member(group, member, partitions) for member in [*members, updated]]
    return [answer for answer in answers if answer is not None]


def _of_member(
    group: StreamsGroupData, member: StreamsMember, partitions: Callable[[str], int | None]
) -> EndpointToPartitions | None:
    if member.user_endpoint is None:
        return None
    made = group.endpoints.get(member.id)
    if made is None:
        parts = (group.configured and group.configured.subtopologies) or {}
        held = member.assigned
        made = group.endpoints[member.id] = EndpointToPartitions(
            user_endpoint=Endpoint(host=member.user_endpoint.host, port=member.user_endpoint.port),
            active_partitions=_read(without_epochs(held.active), parts, partitions),
            standby_partitions=_read(union(held.standby, held.warmup), parts, partitions),
        )
    return made


def _read(
    tasks: TaskSets,
    parts: Mapping[str, ConfiguredSubtopology],
    partitions: Callable[[str], int | None],
) -> list[TopicPartition]:
    """Return the partitions that tasks read; a topic may have fewer partitions than there are tasks."""
    return [
        TopicPartition(topic=topic, partitions=read)
        for name, numbers in tasks.items()
        if name in parts
        for topic in parts[name].topics_read
        if (read := sorted(number for number in numbers if number < (partitions(topic) or 0)))
    ]
