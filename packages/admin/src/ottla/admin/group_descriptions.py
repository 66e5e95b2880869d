"""Groups of every type as they are described: state, epochs, members, and what each member reads. Pure.

Types are Kafka's: `classic`, `consumer` (KIP-848), `share` (KIP-932) and `streams` (KIP-1071).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.client.displays import Table, Tabular
from ottla.protocol.messages import consumer_groups, groups, share_groups, streams_group_describe
from ottla.protocol.stored_messages import ConsumerProtocolAssignment
from ottla.protocol.topics import TopicPartition

CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
GROUP_TYPES: Final = (CLASSIC, CONSUMER, SHARE, STREAMS)
_CLASSIC_MEMBER: Final = 0


@dataclass(frozen=True, slots=True)
class StreamsTasks:
    """The tasks of a member of a streams group, each as `SUBTOPOLOGY_PARTITION`."""

    active: tuple[str, ...] = ()
    standby: tuple[str, ...] = ()
    warmup: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group and its assigned partitions; members of a share group share theirs.

    `epoch` is None for a member of a classic group. `target` has the partitions that it is to have, None
    where the group has no such plan; `tasks` are those of a streams group. `is_classic` is true for a member
    that speaks the classic protocol in a group of the newer one.
    """

    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    rack: str | None = None
    epoch: int | None = None
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    target: tuple[TopicPartition, ...] | None = None
    tasks: StreamsTasks | None = None
    process_id: str = ""
    is_classic: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether it has the partitions that it is to have."""
        return self.target is None or set(self.target) == set(self.partitions)


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of a streams program: the topics that its tasks read, and those that keep its state."""

    id: str
    sources: tuple[str, ...]
    changelogs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription(Tabular):
    """A group with its members; classic groups have no epochs, streams groups alone have subtopologies."""

    name: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: tuple[MemberDescription, ...] = field(default_factory=tuple)
    type: str = CLASSIC
    epoch: int | None = None
    assignment_epoch: int | None = None
    subtopologies: tuple[Subtopology, ...] = ()

    def _table(self) -> Table:
        columns = ("member", "client", "host", "partitions")
        rows = [
            (member.id, member.client_id, member.host, ", ".join(map(str, member.partitions)))
            for member in self.members
        ]
        return Table(f"Group {self.name}: {self.state}, {len(self.members)} members", columns, rows)


def of_classic(given: groups.DescribedGroup, coordinator: int) -> GroupDescription:
    """Return a classic group."""
    return GroupDescription(
        given.group_id, given.group_state, given.protocol_type, given.protocol_data, coordinator,
        tuple(_classic_member(member) for member in given.members),
    )  # fmt: skip


def of_consumer(given: consumer_groups.DescribedGroup, coordinator: int) -> GroupDescription:
    """Return a consumer group."""
    members = tuple(
        MemberDescription(
            member.member_id, member.instance_id, member.client_id, member.client_host.removeprefix("/"),
            _partitions(member.assignment), member.rack_id, member.member_epoch,
            tuple(member.subscribed_topic_names), member.subscribed_topic_regex or None,
            _partitions(member.target_assignment), is_classic=member.member_type == _CLASSIC_MEMBER,
        )
        for member in given.members
    )  # fmt: skip
    return GroupDescription(
        given.group_id, given.group_state, CONSUMER, given.assignor_name, coordinator, members, CONSUMER,
        given.group_epoch, given.assignment_epoch,
    )  # fmt: skip


def of_share(given: share_groups.DescribedGroup, coordinator: int) -> GroupDescription:
    """Return a share group."""
    members = tuple(
        MemberDescription(
            member.member_id, None, member.client_id, member.client_host.removeprefix("/"),
            _partitions(member.assignment), member.rack_id, member.member_epoch,
            tuple(member.subscribed_topic_names),
        )
        for member in given.members
    )  # fmt: skip
    return GroupDescription(
        given.group_id, given.group_state, SHARE, given.assignor_name, coordinator, members, SHARE,
        given.group_epoch, given.assignment_epoch,
    )  # fmt: skip


def of_streams(given: streams_group_describe.DescribedGroup, coordinator: int) -> GroupDescription:
    """Return a streams group; a member reads the source topics of its active tasks."""
    parts = (given.topology.subtopologies or ()) if given.topology is not None else ()
    subtopologies = tuple(
        Subtopology(
            part.subtopology_id,
            (*part.source_topics, *(topic.name for topic in part.repartition_source_topics)),
            tuple(topic.name for topic in part.state_changelog_topics),
        )
        for part in parts
    )
    sources = {part.id: part.sources for part in subtopologies}
    members = tuple(
        MemberDescription(
            member.member_id, member.instance_id, member.client_id, member.client_host.removeprefix("/"),
            _read_by(member.assignment.active_tasks, sources), member.rack_id, member.member_epoch,
            target=_read_by(member.target_assignment.active_tasks, sources),
            tasks=StreamsTasks(
                _tasks(member.assignment.active_tasks), _tasks(member.assignment.standby_tasks),
                _tasks(member.assignment.warmup_tasks),
            ),
            process_id=member.process_id, is_classic=member.is_classic,
        )
        for member in given.members
    )  # fmt: skip
    return GroupDescription(
        given.group_id, given.group_state, STREAMS, given.assignor_name or "", coordinator, members, STREAMS,
        given.group_epoch, given.assignment_epoch, subtopologies,
    )  # fmt: skip


def _partitions(given: consumer_groups.MemberAssignment) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, index)
        for topic in given.topic_partitions
        for index in topic.partitions
    )


def _read_by(
    tasks: Iterable[streams_group_describe.TaskIds], sources: Mapping[str, Iterable[str]]
) -> tuple[TopicPartition, ...]:
    """Return the partitions that tasks read: a task has the partition of its number of each source topic."""
    return tuple(
        TopicPartition(topic, index)
        for some in tasks
        for topic in sources.get(some.subtopology_id, ())
        for index in some.partitions
    )


def _tasks(given: Iterable[streams_group_describe.TaskIds]) -> tuple[str, ...]:
    return tuple(f"{some.subtopology_id}_{index}" for some in given for index in some.partitions)


def _classic_member(given: groups.DescribedGroupMember) -> MemberDescription:
    return MemberDescription(
        given.member_id,
        given.group_instance_id,
        given.client_id,
        given.client_host.removeprefix("/"),
        _assigned(bytes(given.member_assignment)),
    )


def _assigned(blob: bytes) -> tuple[TopicPartition, ...]:
    """Decode a member's assignment, opaque to the broker; empty for members that are not consumers."""
    if not blob:
        return ()
    try:
        assignment = ConsumerProtocolAssignment.from_bytes(blob)
    except ValueError:
        return ()
    return tuple(
        TopicPartition(topic.topic, index)
        for topic in assignment.assigned_partitions
        for index in topic.partitions
    )
