"""Consumer groups: list, describe, delete, read and reset their offsets, and how far each one is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ottla.admin.offsets import LATEST, Offsets
from ottla.admin.topics import Topics
from ottla.client.cluster import Cluster, raise_for
from ottla.client.errors import Need
from ottla.client.group_metadata import commit_without_member
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import ErrorCode, GroupIdNotFound
from ottla.protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from ottla.protocol.stored_messages import ConsumerProtocolAssignment
from ottla.protocol.topics import TopicPartition, by_topic

NOTHING_COMMITTED = -1


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group's name and state; the state is empty where the broker is too old to say (KIP-518)."""

    name: str
    state: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group and its assigned partitions."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset of a partition; `lag` counts the records from there to the end."""

    partition: TopicPartition
    offset: int
    end_offset: int
    metadata: str = ""

    @property
    def lag(self) -> int:
        """Records still to be read; negative for a commit beyond the end, as in Kafka."""
        return self.end_offset - self.offset


Commits = list[CommittedOffset]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members."""

    name: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: tuple[MemberDescription, ...] = field(default_factory=tuple)


class Groups:
    """Consumer groups of a cluster, requested from their coordinators."""

    def __init__(self, cluster: Cluster, offsets: Offsets) -> None:
        self._cluster = cluster
        self._offsets = offsets

    async def list(self) -> list[GroupListing]:
        """Return the groups of all brokers, sorted by name."""

        async def ask() -> list[GroupListing]:
            await self._cluster.refresh([])
            found: dict[str, GroupListing] = {}
            for node_id in sorted(self._cluster.nodes):
                response = await self._cluster.send(node_id, ListGroupsRequest(), ListGroupsResponse)
                raise_for(response.error_code)
                for listed in response.groups:
                    found[listed.group_id] = GroupListing(
                        listed.group_id, listed.group_state, listed.protocol_type
                    )
            return [found[name] for name in sorted(found)]

        return await self._cluster.retry("listing groups", ask)

    async def describe(self, name: str) -> GroupDescription:
        """Return a group and its members. Raises GroupIdNotFound for one that does not exist."""

        async def ask() -> GroupDescription:
            request = DescribeGroupsRequest(groups=[name])
            response = await self._cluster.send_to_coordinator(name, request, DescribeGroupsResponse)
            (group,) = response.groups
            self._cluster.raise_coordinator_error(name, group.error_code, Operation.DESCRIBE)
            coordinator = await self._cluster.coordinator(name)  # known by now
            if group.group_state == "Dead":
                raise GroupIdNotFound(f"group {name!r} does not exist")
            members = tuple(_member(member) for member in group.members)
            return GroupDescription(
                name, group.group_state, group.protocol_type, group.protocol_data, coordinator, members
            )

        return await self._cluster.retry(f"describing group {name!r}", ask)

    async def committed(
        self, name: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Return a group's committed offsets and their metadata; None requests all partitions.

        Partitions without a commit are left out; those that do not exist any more are not.
        """
        wanted = None if partitions is None else list(partitions)
        request = OffsetFetchRequest(group_id=name, topics=None if wanted is None else _fetch_topics(wanted))

        async def ask() -> dict[TopicPartition, tuple[int, str]]:
            response = await self._cluster.send_to_coordinator(name, request, OffsetFetchResponse)
            self._cluster.raise_coordinator_error(name, response.error_code, Operation.DESCRIBE)
            found: dict[TopicPartition, tuple[int, str]] = {}
            for topic in response.topics:
                for answer in topic.partitions:
                    need = Need(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
                    self._cluster.raise_coordinator_error(name, answer.error_code, Operation.DESCRIBE, need)
                    if answer.committed_offset != NOTHING_COMMITTED:
                        partition = TopicPartition(topic.name, answer.partition_index)
                        found[partition] = (answer.committed_offset, answer.metadata or "")
            return found

        return await self._cluster.retry(f"reading the offsets of group {name!r}", ask)

    async def offsets(self, name: str, partitions: Iterable[TopicPartition] | None = None) -> Commits:
        """Return a group's committed offsets with each partition's end; None requests all partitions.

        Partitions without a commit are left out.
        """
        committed = await self.committed(name, partitions)
        ends = await self._offsets.find(dict.fromkeys(committed, LATEST)) if committed else {}
        return [
            CommittedOffset(partition, offset, ends[partition], metadata)
            for partition, (offset, metadata) in sorted(committed.items())
        ]

    async def commit(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members. Raises NonEmptyGroup."""
        await commit_without_member(self._cluster, name, offsets)

    async def delete_offsets(self, name: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete a group's committed offsets of some partitions (KIP-496)."""
        topics = [
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=[
                    OffsetDeleteRequestPartition(partition_index=partition.partition) for partition in found
                ],
            )
            for topic, found in by_topic(partitions).items()
        ]

        async def ask() -> None:
            request = OffsetDeleteRequest(group_id=name, topics=topics)
            response = await self._cluster.send_to_coordinator(name, request, OffsetDeleteResponse)
            self._cluster.raise_coordinator_error(name, response.error_code, Operation.DELETE)
            for topic in response.topics:
                for partition in topic.partitions:
                    raise_for(
                        partition.error_code, None, Need(Operation.READ, ResourceType.TOPIC, topic.name)
                    )

        await self._cluster.retry(f"deleting offsets of group {name!r}", ask)

    async def delete(self, name: str) -> None:
        """Delete a group with its offsets. Raises NonEmptyGroup, GroupIdNotFound."""

        async def ask() -> None:
            request = DeleteGroupsRequest(groups_names=[name])
            response = await self._cluster.send_to_coordinator(name, request, DeleteGroupsResponse)
            for result in response.results:
                if result.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                    raise GroupIdNotFound(f"group {name!r} does not exist")
                self._cluster.raise_coordinator_error(name, result.error_code, Operation.DELETE)

        await self._cluster.retry(f"deleting group {name!r}", ask)


def _member(given: DescribedGroupMember) -> MemberDescription:
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


def _fetch_topics(partitions: Iterable[TopicPartition]) -> list[OffsetFetchRequestTopic]:
    return [
        OffsetFetchRequestTopic(name=topic, partition_indexes=[partition.partition for partition in found])
        for topic, found in by_topic(partitions).items()
    ]


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """The progress of a group in a partition that it has committed or that a member owns.

    `offset` is None without a commit, `end_offset` for a partition that was deleted or whose leader is away.
    """

    partition: TopicPartition
    offset: int | None
    end_offset: int | None
    owner: MemberDescription | None = None

    @property
    def lag(self) -> int | None:
        """Records still to be read; negative for a commit beyond the end, as in Kafka; None if not known."""
        if self.offset is None or self.end_offset is None:
            return None
        return self.end_offset - self.offset


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group with its members, and its progress by partition, sorted."""

    description: GroupDescription
    partitions: tuple[PartitionProgress, ...]

    @property
    def beyond_the_end(self) -> list[PartitionProgress]:
        """Partitions whose commit is beyond the end: `auto_offset_reset` decides where the group goes on."""
        return [partition for partition in self.partitions if partition.lag is not None and partition.lag < 0]


async def read_progress(groups: Groups, offsets: Offsets, topics: Topics, name: str) -> GroupProgress:
    """Read the progress of a group. Raises GroupIdNotFound."""
    description = await groups.describe(name)
    committed = {partition: offset for partition, (offset, _) in (await groups.committed(name)).items()}
    owners = {partition: member for member in description.members for partition in member.partitions}
    chosen = sorted({*committed, *owners})
    known = {topic.name: topic.partitions for topic in await topics.list(internal=True)} if chosen else {}
    existing = [partition for partition in chosen if partition.partition in known.get(partition.topic, ())]
    ends = await offsets.find_reachable(dict.fromkeys(existing, LATEST))
    progress = [
        PartitionProgress(partition, committed.get(partition), ends.get(partition), owners.get(partition))
        for partition in chosen
    ]
    return GroupProgress(description, tuple(progress))
