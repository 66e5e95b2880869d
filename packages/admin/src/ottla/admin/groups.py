"""Groups of every type: list, describe, delete, read and reset their offsets, and how far each one is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.admin.group_descriptions import (
    CLASSIC,
    CONSUMER,
    GROUP_TYPES,
    SHARE,
    STREAMS,
    of_classic,
    of_consumer,
    of_share,
    of_streams,
)
from ottla.admin.group_descriptions import GroupDescription as GroupDescription
from ottla.admin.group_descriptions import MemberDescription as MemberDescription
from ottla.admin.group_errors import CommitsNoOffsets, NoSuchGroup
from ottla.admin.offsets import LATEST, Offsets
from ottla.admin.topics import Topics
from ottla.client.cluster import Cluster, raise_for
from ottla.client.displays import Table, Tabular
from ottla.client.errors import ClientError, Need, error_about
from ottla.client.group_metadata import commit_without_member, has_members
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.api import ApiKey, response_class
from ottla.protocol.errors import ErrorCode, GroupIdNotFound
from ottla.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from ottla.protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
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
from ottla.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
)
from ottla.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from ottla.protocol.schema import Message
from ottla.protocol.topics import TopicPartition, by_topic

NOTHING_COMMITTED = -1
_OF_ANOTHER_TYPE: Final = (
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.UNSUPPORTED_VERSION,
)
_DESCRIBING: Final[
    Mapping[str, tuple[ApiKey, Callable[[str], Message], Callable[[Any, int], GroupDescription]]]
] = {
    CLASSIC: (ApiKey.DESCRIBE_GROUPS, lambda name: DescribeGroupsRequest(groups=[name]), of_classic),
    CONSUMER: (
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        lambda name: ConsumerGroupDescribeRequest(group_ids=[name]),
        of_consumer,
    ),
    SHARE: (
        ApiKey.SHARE_GROUP_DESCRIBE,
        lambda name: ShareGroupDescribeRequest(group_ids=[name]),
        of_share,
    ),
    STREAMS: (
        ApiKey.STREAMS_GROUP_DESCRIBE,
        lambda name: StreamsGroupDescribeRequest(group_ids=[name]),
        of_streams,
    ),
}
"""By type: the API that describes its groups, a request for a group, and the reader of its answer."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group's name, state and type; the state is empty where the broker is too old to say (KIP-518)."""

    name: str
    state: str
    protocol_type: str
    type: str = CLASSIC


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
class ShareOffset:
    """The start offset of a partition in a share group, None before it has read any.

    All records below it are finished, and some from there on may be as well: the start follows only later.
    `lag` counts those from there on that are not acknowledged; None where the broker does not say (KIP-1226).
    """

    partition: TopicPartition
    start_offset: int | None
    lag: int | None = None


class Groups:
    """Groups of a cluster, requested from their coordinators."""

    def __init__(self, cluster: Cluster, offsets: Offsets) -> None:
        self._cluster = cluster
        self._offsets = offsets
        self._types: dict[str, str] = {}

    async def list(self, *, types: Iterable[str] = ()) -> list[GroupListing]:
        """Return the groups of all brokers, sorted by name: those of some types, or of every type.

        Brokers older than types have classic groups only.
        """
        wanted = {kind.lower() for kind in types} or set(GROUP_TYPES)
        if unknown := wanted - set(GROUP_TYPES):
            raise ValueError(f"there is no type {min(unknown)!r} of groups, only {', '.join(GROUP_TYPES)}")

        async def ask() -> list[GroupListing]:
            await self._cluster.refresh([])
            found: dict[str, GroupListing] = {}
            for node_id in sorted(self._cluster.nodes):
                response = await self._cluster.send(node_id, ListGroupsRequest(), ListGroupsResponse)
                raise_for(response.error_code)
                for listed in response.groups:
                    kind = listed.group_type.lower() or CLASSIC
                    found[listed.group_id] = GroupListing(
                        listed.group_id, listed.group_state, listed.protocol_type, kind
                    )
            self._types = {name: listing.type for name, listing in found.items()}
            return [found[name] for name in sorted(found) if found[name].type in wanted]

        return await self._cluster.retry("listing groups", ask)

    async def describe(self, name: str) -> GroupDescription:
        """Return a group of any type and its members. Raises GroupIdNotFound for one that does not exist.

        No request describes all types: that of the type which the group had last is sent first.
        """

        async def ask() -> GroupDescription:
            coordinator = await self._cluster.coordinator(name)
            last = self._types.get(name, CLASSIC)
            for kind in sorted(GROUP_TYPES, key=lambda kind: kind != last):
                if (found := await self._describe_as(kind, name, coordinator)) is not None:
                    self._types[name] = kind
                    return found
            raise NoSuchGroup(name)

        return await self._cluster.retry(f"describing group {name!r}", ask)

    async def _describe_as(self, kind: str, name: str, coordinator: int) -> GroupDescription | None:
        """Return a group of one type; None where it has another, or the broker has no groups of that type."""
        key, ask, read = _DESCRIBING[kind]
        if kind != CLASSIC and not await self._serves(name, coordinator, key):
            return None
        response = await self._cluster.send_to_coordinator(name, ask(name), response_class(key))
        (group,) = response.groups  # type: ignore[attr-defined]
        if group.error_code in _OF_ANOTHER_TYPE or group.group_state == "Dead":
            return None
        self._raise(name, group.error_code, Operation.DESCRIBE, getattr(group, "error_message", None))
        return read(group, coordinator)

    async def _serves(self, name: str, coordinator: int, key: ApiKey) -> bool:
        try:
            return key in (await self._cluster.connection(coordinator)).versions
        except ClientError:
            self._cluster.forget_coordinator(name)  # it may be gone, and another broker may have taken over
            raise

    def _raise(self, name: str, code: int, operation: Operation, message: str | None = None) -> None:
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise error_about(code, message or f"topics that group {name!r} reads")
        self._cluster.raise_coordinator_error(name, code, operation)

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

        Partitions without a commit are left out. Raises CommitsNoOffsets for a share group.
        """
        committed = await self.committed(name, partitions)
        if not committed and await self._is_share_group(name):
            raise CommitsNoOffsets(name)
        ends = await self._offsets.find(dict.fromkeys(committed, LATEST)) if committed else {}
        return [
            CommittedOffset(partition, offset, ends[partition], metadata)
            for partition, (offset, metadata) in sorted(committed.items())
        ]

    async def _is_share_group(self, name: str) -> bool:
        try:
            return (await self.describe(name)).type == SHARE
        except GroupIdNotFound:
            return False

    async def commit(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members. Raises NonEmptyGroup."""
        await commit_without_member(self._cluster, name, offsets)

    async def share_offsets(
        self, name: str, partitions: Iterable[TopicPartition] | None = None
    ) -> Sequence[ShareOffset]:
        """Return the offsets of a share group, sorted; None requests all partitions that have one."""
        topics = None
        if partitions is not None:
            topics = [
                DescribeShareGroupOffsetsRequestTopic(
                    topic_name=topic, partitions=[p.partition for p in some]
                )
                for topic, some in by_topic(partitions).items()
            ]
        asked = DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=topics)
        request = DescribeShareGroupOffsetsRequest(groups=[asked])

        async def ask() -> Sequence[ShareOffset]:
            response = await self._cluster.send_to_coordinator(
                name, request, DescribeShareGroupOffsetsResponse
            )
            (group,) = response.groups
            self._raise_share_error(name, group.error_code, group.error_message, Operation.DESCRIBE)
            found = []
            for topic in group.topics:
                for answer in topic.partitions:
                    need = Need(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic_name)
                    raise_for(answer.error_code, answer.error_message, need)
                    partition = TopicPartition(topic.topic_name, answer.partition_index)
                    start = answer.start_offset if answer.start_offset >= 0 else None
                    found.append(ShareOffset(partition, start, answer.lag if answer.lag >= 0 else None))
            return sorted(found, key=lambda offset: offset.partition)

        return await self._cluster.retry(f"reading the offsets of share group {name!r}", ask)

    async def alter_share_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set where a share group without members goes on. Raises NonEmptyGroup, GroupIdNotFound."""
        topics = [
            AlterShareGroupOffsetsRequestTopic(
                topic_name=topic,
                partitions=[
                    AlterShareGroupOffsetsRequestPartition(
                        partition_index=partition.partition, start_offset=offsets[partition]
                    )
                    for partition in some
                ],
            )
            for topic, some in by_topic(offsets).items()
        ]

        async def ask() -> None:
            request = AlterShareGroupOffsetsRequest(group_id=name, topics=topics)
            response = await self._cluster.send_to_coordinator(name, request, AlterShareGroupOffsetsResponse)
            self._raise_share_error(name, response.error_code, response.error_message, Operation.READ)
            for topic in response.responses:
                need = Need(Operation.READ, ResourceType.TOPIC, topic.topic_name)
                for answer in topic.partitions:
                    raise_for(answer.error_code, answer.error_message, need)

        await self._cluster.retry(f"setting the offsets of share group {name!r}", ask)

    async def delete_share_offsets(self, name: str, topics: Iterable[str]) -> None:
        """Delete the offsets of topics from a share group without members. Raises NonEmptyGroup."""
        named = [DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]

        async def ask() -> None:
            request = DeleteShareGroupOffsetsRequest(group_id=name, topics=named)
            response = await self._cluster.send_to_coordinator(name, request, DeleteShareGroupOffsetsResponse)
            self._raise_share_error(name, response.error_code, response.error_message, Operation.DELETE)
            for topic in response.responses:
                need = Need(Operation.READ, ResourceType.TOPIC, topic.topic_name)
                raise_for(topic.error_code, topic.error_message, need)

        await self._cluster.retry(f"deleting offsets of share group {name!r}", ask)

    def _raise_share_error(self, name: str, code: int, message: str | None, operation: Operation) -> None:
        if code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise GroupIdNotFound(f"share group {name!r} does not exist")
        if code == ErrorCode.NON_EMPTY_GROUP:
            raise has_members(name)
        self._raise(name, code, operation, message)

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
                    raise NoSuchGroup(name)
                if result.error_code == ErrorCode.NON_EMPTY_GROUP:
                    raise has_members(name)
                self._cluster.raise_coordinator_error(name, result.error_code, Operation.DELETE)

        await self._cluster.retry(f"deleting group {name!r}", ask)


def _fetch_topics(partitions: Iterable[TopicPartition]) -> list[OffsetFetchRequestTopic]:
    return [
        OffsetFetchRequestTopic(name=topic, partition_indexes=[partition.partition for partition in found])
        for topic, found in by_topic(partitions).items()
    ]


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """The progress of a group in a partition that it has committed or that a member owns.

    `offset` is None without a commit, `end_offset` for a partition that was deleted or whose leader is away.
    In a share group `owners` may be many, and `unacknowledged` is the lag as the broker counts it.
    """

    partition: TopicPartition
    offset: int | None
    end_offset: int | None
    owner: MemberDescription | None = None
    owners: tuple[MemberDescription, ...] = ()
    unacknowledged: int | None = None

    @property
    def lag(self) -> int | None:
        """Records still to be read; negative for a commit beyond the end, as in Kafka; None if not known."""
        if self.unacknowledged is not None:
            return self.unacknowledged
        if self.offset is None or self.end_offset is None:
            return None
        return self.end_offset - self.offset

    @property
    def position(self) -> int | None:
        """Where the group goes on: a shift counts from here. None without a commit.

        The start offset of a share group stays behind what is finished. Without a lag all records are
        finished, and the group goes on at the end; with one, no broker tells which ones are, so it goes on at
        the start offset at the earliest.
        """
        return self.end_offset if self.unacknowledged == 0 and self.end_offset is not None else self.offset

    @property
    def read(self) -> int | None:
        """A count of what the group has read, for rates; that of a share group has all that it finished."""
        lag, end = self.lag, self.end_offset
        return self.offset if lag is None or end is None else end - lag

    @property
    def acknowledged_ahead(self) -> int | None:
        """Records from the start offset of a share group on that are finished; None if not known."""
        if self.offset is None or self.end_offset is None or self.unacknowledged is None:
            return None
        return max(0, self.end_offset - self.offset - self.unacknowledged)


@dataclass(frozen=True, slots=True)
class GroupProgress(Tabular):
    """A group with its members, and its progress by partition, sorted."""

    description: GroupDescription
    partitions: tuple[PartitionProgress, ...]

    def _table(self) -> Table:
        columns = ("topic", "partition", "offset", "end", "lag", "owner")
        rows = [
            (*part.partition, part.offset, part.end_offset, part.lag, part.owner and part.owner.client_id)
            for part in self.partitions
        ]
        return Table(f"Group {self.description.name}: {self.description.state}", columns, rows)

    @property
    def beyond_the_end(self) -> list[PartitionProgress]:
        """Partitions whose commit is beyond the end: `auto_offset_reset` decides where the group goes on."""
        return [partition for partition in self.partitions if partition.lag is not None and partition.lag < 0]


async def read_progress(groups: Groups, offsets: Offsets, topics: Topics, name: str) -> GroupProgress:
    """Read the progress of a group of any type. Raises GroupIdNotFound."""
    description = await groups.describe(name)
    committed, lags = await _read_offsets(groups, description)
    owners: dict[TopicPartition, list[MemberDescription]] = {}
    for member in description.members:
        for partition in member.partitions:
            owners.setdefault(partition, []).append(member)
    chosen = {*committed, *owners}
    known = {topic.name: topic.partitions for topic in await topics.list(internal=True)} if chosen else {}
    existing = {partition for partition in chosen if partition.partition in known.get(partition.topic, ())}
    if description.type == STREAMS:
        # A task has one number for all its source topics, some of which may have fewer partitions.
        chosen = {*committed, *(owners.keys() & existing)}
    ends = await offsets.find_reachable(dict.fromkeys(sorted(existing), LATEST))
    if description.type == SHARE and committed:
        # Lags count to an end that is not older than ours, or records written between the two answers would
        # pass for finished ones where there was no lag.
        committed, lags = await _read_offsets(groups, description)
        chosen = {*chosen, *committed}
    progress = [
        PartitionProgress(
            partition, committed.get(partition), ends.get(partition),
            next(iter(owners.get(partition, ())), None), tuple(owners.get(partition, ())),
            lags.get(partition),
        )
        for partition in sorted(chosen)
    ]  # fmt: skip
    return GroupProgress(description, tuple(progress))


async def _read_offsets(
    groups: Groups, description: GroupDescription
) -> tuple[dict[TopicPartition, int | None], dict[TopicPartition, int]]:
    """Return the offsets of a group, and the lags that its coordinator counts."""
    if description.type != SHARE:
        committed = await groups.committed(description.name)
        return {partition: offset for partition, (offset, _) in committed.items()}, {}
    found = await groups.share_offsets(description.name)
    starts = {offset.partition: offset.start_offset for offset in found}
    return starts, {offset.partition: offset.lag for offset in found if offset.lag is not None}
