"""The metrics of groups: offsets, lag and owners of their partitions, computed when a page is made.

A broker shows the groups that it coordinates, so that each group is on one page of the cluster. The names
are those that dashboards of group lag know. Their number is limited: groups and partitions come from clients.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Container, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.broker.groups.classic.events import GroupState
from ottla.broker.groups.classic.group_metadata import CONSUMER_PROTOCOL_TYPE
from ottla.broker.metrics.registry import MetricName
from ottla.broker.peers.client import latest_of
from ottla.broker.runtime.loop_budget import SLICE
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.log_offsets import ListOffsetsResponse
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.groups.classic.group import Group
    from ottla.broker.groups.offsets.partition_state import HostedGroup
    from ottla.broker.peers.client import Peer
    from ottla.broker.replication.replicas import Replicas

ENDS_EVERY_MS: Final = 10_000
_UNASKED_ROUNDS: Final = 30
"""Rounds after the last page in which other leaders are still asked."""
LONGEST_NAME: Final = 256
"""Of a group, and of a client: each sample repeats them. A group of a longer name is left out."""
_SEEN_PER_SHOWN: Final = 2
"""Topics and partitions of assignments that are looked at for each partition that may be shown."""


class LogEnds(Protocol):
    """The ends of partitions, as consumers see them."""

    def end_of(self, partition: TopicPartition) -> int | None:
        """Return the offset behind the last record that consumers may read; None where it is not known."""
        ...

    def partitions_of(self, topic: str) -> Container[int] | None:
        """Return the numbers of the partitions of a topic; nothing for one that does not exist."""
        ...


class Owner(NamedTuple):
    """The member that a partition is assigned to."""

    client_id: str
    client_host: str


NO_OWNER: Final = Owner("", "")


class GroupLag:
    """Makes the samples of the groups of this broker, of `most` partitions in all."""

    def __init__(self, groups: Callable[[], Iterable[HostedGroup]], ends: LogEnds, most: int) -> None:
        self._groups = groups
        self._ends = ends
        self._most = most

    def samples(self) -> Iterator[tuple[MetricName, float] | None]:
        """Yield every sample, and None at the end of a step without one. Groups may change between two."""
        left, hidden = self._most, 0
        for hosted in self._groups():
            if max(len(hosted.offsets), 1) > left or len(hosted.group.group_id) > LONGEST_NAME:
                hidden += len(hosted.offsets)
                yield None
                continue
            owners = yield from self._owners(hosted.classic, left)
            partitions = {*hosted.offsets, *owners}
            cost = max(len(partitions), 1)  # a group without partitions has a sample, too
            if cost > left:
                hidden += len(partitions)
                continue
            left -= cost
            yield _name("members", hosted), hosted.group.member_count
            for partition in sorted(partitions):
                yield from self._of_partition(hosted, partition, owners.get(partition, NO_OWNER))
        yield MetricName("ottla.broker", "ConsumerGroups", "PartitionsNotShown"), hidden

    def _owners(self, group: Group | None, most: int) -> Generator[None, None, dict[TopicPartition, Owner]]:
        """Yield between steps; return the members of a stable group of consumers by their partitions.

        Only of partitions that exist: clients make assignments, and may make anything. It ends at more than
        `most` partitions, also where they are as many because they do not exist or are named again.
        """
        owners: dict[TopicPartition, Owner] = {}
        if (
            group is None
            or group.state is not GroupState.STABLE
            or group.protocol_type != CONSUMER_PROTOCOL_TYPE
        ):
            return owners
        seen = 0
        for member in group.members:
            owner = Owner(member.client_id[:LONGEST_NAME], member.client_host)
            for partition in self._assigned(member.assignment):
                seen += 1
                if partition is not None:
                    owners[partition] = owner
                if len(owners) > most or seen > _SEEN_PER_SHOWN * most:
                    return owners
                if seen % SLICE == 0:
                    yield
            yield
        return owners

    def _assigned(self, assignment: bytes) -> Iterator[TopicPartition | None]:
        """Yield the partitions of an assignment that exist, and None for each topic and other partition."""
        try:
            for topic, indexes in _topics_of(assignment):
                yield None
                existing = self._ends.partitions_of(topic)
                if not existing:
                    continue
                for (index,) in indexes:
                    yield TopicPartition(topic, index) if index in existing else None
        except (ValueError, struct.error):  # clients made it
            return

    def _of_partition(
        self, hosted: HostedGroup, partition: TopicPartition, owner: Owner
    ) -> Iterator[tuple[MetricName, float]]:
        is_owned = owner != NO_OWNER
        yield _name("owner", hosted, partition, **owner._asdict()), int(is_owned)
        committed = hosted.offsets.get(partition)
        if committed is None:
            return
        yield _name("current_offset", hosted, partition), committed.offset
        end = self._ends.end_of(partition)
        if end is not None:
            yield _name("lag", hosted, partition), end - committed.offset


def _name(name: str, hosted: HostedGroup, partition: TopicPartition | None = None, **tags: str) -> MetricName:
    tags["consumergroup"] = hosted.group.group_id
    if partition is not None:
        tags |= {"topic": partition.topic, "partition": str(partition.partition)}
    return MetricName("kafka", "consumergroup", name, tuple(sorted(tags.items())))


def _topics_of(assignment: bytes) -> Iterator[tuple[str, Iterator[tuple[int]]]]:
    """Yield each topic of a `ConsumerProtocolAssignment` with its partitions, which are not read before.

    Decoded at once, an assignment of 50 KB takes milliseconds. Raises struct.error where it is cut off.
    """
    if not assignment:
        return
    (topics,) = struct.unpack_from(">i", assignment, 2)  # behind the version
    at = 6
    for _ in range(topics):
        (length,) = struct.unpack_from(">H", assignment, at)
        topic = assignment[at + 2 : at + 2 + length].decode()
        (count,) = struct.unpack_from(">I", assignment, at + 2 + length)
        begin, at = at + 6 + length, at + 6 + length + 4 * count
        yield topic, struct.iter_unpack(">i", memoryview(assignment)[begin:at])


class ClusterLogEnds:
    """Knows the ends of replicas here, and asks the leaders of other partitions from time to time.

    Only for as long as pages are made: a partition that a page has named is asked for until the next page,
    or for five minutes.
    """

    def __init__(self, replicas: Replicas, metadata: MetadataCache, connect: Callable[[int], Peer]) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._connect = connect
        self._named: set[TopicPartition] = set()
        self._wanted: set[TopicPartition] = set()
        self._unasked_rounds = 0
        self._ends: dict[TopicPartition, int] = {}

    def end_of(self, partition: TopicPartition) -> int | None:
        """Return the high watermark, of a follower's replica or another leader some time ago."""
        hosted = self._replicas.hosted(partition)
        if hosted is not None:
            return hosted.high_watermark
        self._named.add(partition)
        return self._ends.get(partition)

    def partitions_of(self, topic: str) -> Container[int] | None:
        """Return the numbers of the partitions of a topic; nothing for one that does not exist."""
        known = self._metadata.topic(topic)
        return None if known is None else known.partitions

    async def refresh(self) -> None:
        """Ask each leader of partitions that have no replica here; those that do not answer are left out."""
        if self._named:
            self._wanted, self._named, self._unasked_rounds = self._named, set(), 0
        elif (unasked := self._unasked_rounds + 1) > _UNASKED_ROUNDS:
            self._wanted = set()
        else:
            self._unasked_rounds = unasked
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in sorted(self._wanted):
            if (leader := self._metadata.leader_of(partition)) is not None:
                by_leader[leader].append(partition)
        ends: dict[TopicPartition, int] = {}
        for leader, partitions in by_leader.items():
            ends |= await self._asked(leader, partitions)
        self._ends = ends

    async def _asked(self, leader: int, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        peer = self._connect(leader)
        try:
            response = await peer.send(latest_of(partitions), ListOffsetsResponse)
        except (KafkaError, OSError):
            return {}  # it moves or starts: the next round asks again
        finally:
            await peer.close()
        return {
            TopicPartition(topic.name, found.partition_index): found.offset
            for topic in response.topics
            for found in topic.partitions
            if found.error_code == ErrorCode.NONE
        }
