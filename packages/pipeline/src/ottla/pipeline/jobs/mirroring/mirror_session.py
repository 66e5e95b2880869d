"""The open connections of a mirror, and the work that both engines share beside copying."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ottla.admin import EARLIEST, LATEST, Admin
from ottla.client.cluster import NoSuchTopic, Topic
from ottla.client.config import ClientConfig
from ottla.pipeline.errors import NotSupported
from ottla.pipeline.jobs.mirroring.cluster_pair import ClusterPair
from ottla.pipeline.jobs.mirroring.offset_mapping import (
    Found,
    MappingReader,
    MappingWriter,
    OffsetMapping,
    Origin,
    make_mapping_topic,
    mapping_reader,
)
from ottla.pipeline.jobs.mirroring.offset_spans import Span
from ottla.pipeline.jobs.mirroring.record_copier import fence, require_coordinator
from ottla.pipeline.jobs.mirroring.topics_and_groups import (
    ReplicationCycle,
    circular_topics,
    cluster_id,
    make_copy,
    move_groups,
    origins_of,
    wanted_topics,
)
from ottla.pipeline.jobs.progress_report import Interval
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.pipeline.jobs.mirroring.mirror_declaration import MirrorDeclaration

log = logging.getLogger(__name__)


@dataclass
class MirrorSession:
    """The open connections of a mirror, and the state of both clusters. Made by `open_session`."""

    mirror: MirrorDeclaration
    clusters: ClusterPair
    source: Admin
    target: Admin
    reader: MappingReader
    """The reader of the target's mapping; `mapping` holds what it has read."""
    mapping: OffsetMapping
    producer: Producer
    source_id: str
    target_id: str
    stack: AsyncExitStack
    """Closes connections that are opened later."""

    def __post_init__(self) -> None:
        self._writer = MappingWriter(self.mapping, self.clusters.mapping_topic, self.producer)
        self._made: dict[str, int] = {}
        groups = self.mirror.groups
        self._group_moves = None if groups is None else Interval(groups.every, time.monotonic() * 1_000)
        self._is_new = not self.mapping.spans
        self._beyond = OffsetMapping("")
        self._source_reader: MappingReader | None = None

    async def partitions(self) -> list[TopicPartition]:
        """Return the partitions to copy, after creating their copies and their first entries in the mapping.

        Raises ReplicationCycle, NoSuchTopic.
        """
        topics = await self._without_cycles(
            await wanted_topics(self.source, self.mirror.source.topics, self.mirror.wants)
        )
        for topic in topics:
            if self._made.get(topic.name) != len(topic.partitions):
                name = self.clusters.copy_name(topic.name)
                await make_copy(self.source, self.target, name, topic, self.clusters.mapping_topic)
                self._made[topic.name] = len(topic.partitions)
        found = [
            TopicPartition(topic.name, number) for topic in topics for number in sorted(topic.partitions)
        ]
        await self._begin([partition for partition in found if self.mapping.last(partition) is None])
        return found

    async def catch_up(self) -> None:
        """Read new entries of the mapping, and thin out old ones."""
        await self.reader.read_into(self.mapping)
        await self.thin_out()

    async def thin_out(self) -> None:
        """Remove older spans of partitions that have too many."""
        await self._writer.thin_out()

    async def move_groups(self, *, now: bool = False) -> None:
        """Translate the offsets of groups to the target if that is due, or `now`."""
        groups = self.mirror.groups
        if groups is None:
            return
        assert self._group_moves is not None
        if not (now or self._group_moves.is_due(time.monotonic() * 1_000)):
            return
        await move_groups(self.source, self.target, groups.pattern, self.mapping.spans, self.clusters.copy_of)
        self._group_moves.restart(time.monotonic() * 1_000)

    # --- replication cycles

    async def _without_cycles(self, topics: list[Topic]) -> list[Topic]:
        """Announce the copies of topics, and return the topics that form no cycle."""
        topics = self._without(topics, await self._circular(topics))
        if new := await self._announce(topics):
            # A mirror in the opposite direction may have started at the same time: both have announced their
            # copies, and at least one sees that now.
            found = await self._circular(topics)
            taken_back = {self.clusters.copy_name(name) for name in found}
            await self._writer.set_origins({name: None for name in new if name in taken_back})
            topics = self._without(topics, found)
        return topics

    async def _circular(self, topics: Iterable[Topic]) -> dict[str, Origin]:
        known = await self._origins_in_source()
        return circular_topics([topic.name for topic in topics], known, self.target_id)

    def _without(self, topics: list[Topic], found: dict[str, Origin]) -> list[Topic]:
        for name, origin in found.items():
            if self.mirror.source.topics:
                raise ReplicationCycle(name, origin.mirror)
            if name not in self.clusters.ignored:
                log.warning(
                    "topic not copied: it is a copy of one of the target's",
                    extra={"topic": name, "mirror": origin.mirror},
                )
        self.clusters = replace(self.clusters, ignored=self.clusters.ignored | found.keys())
        return [topic for topic in topics if topic.name not in self.clusters.ignored]

    async def _announce(self, topics: Iterable[Topic]) -> list[str]:
        """Write the origins of copies to the target; return the copies whose origin is new."""
        copies = {topic.name: self.clusters.copy_name(topic.name) for topic in topics}
        wanted = origins_of(copies, await self._origins_in_source(), self.mirror.name, self.source_id)
        new = {copy: origin for copy, origin in wanted.items() if self.mapping.origins.get(copy) != origin}
        await self._writer.set_origins(new)
        return list(new)

    async def _origins_in_source(self) -> dict[str, Origin]:
        """Return the origins of topics of the source that are copies themselves."""
        if self.source_id == self.target_id:
            await self.reader.read_into(self.mapping)
            return self.mapping.origins
        if self._source_reader is None:
            try:
                await self.source.topics.describe(self.clusters.mapping_topic)
            except NoSuchTopic:
                return {}
            reading = mapping_reader(
                self.clusters.source_config().client, self.source, self.clusters.mapping_topic
            )
            self._source_reader = await self.stack.enter_async_context(reading)
            self._source_reader.begin()
        await self._source_reader.read_into(self._beyond)
        return self._beyond.origins

    # --- first offsets

    async def _begin(self, new: list[TopicPartition]) -> None:
        """Store where new partitions begin, before any record of them is copied.

        Partitions that appear later are copied from their beginning, because records were written before they
        were noticed.
        """
        is_first, self._is_new = self._is_new, False
        if not new:
            return
        edge = LATEST if is_first and self.mirror.source.starting_offsets == "latest" else EARLIEST
        starts = await self.source.offsets.find(dict.fromkeys(new, edge), read_committed=True)
        ends = await self.target.offsets.find(dict.fromkeys(map(self.clusters.copy_of, new), LATEST))
        first: Found = [
            (partition, Span(starts[partition], ends[self.clusters.copy_of(partition)], 0))
            for partition in new
        ]
        names = {partition.topic: self.clusters.copy_name(partition.topic) for partition in new}
        await self._writer.add(names, first, {})


@asynccontextmanager
async def open_session(mirror: MirrorDeclaration) -> AsyncIterator[MirrorSession]:
    """Connect to both clusters and read the mapping. Raises NotSupported, ReplicationCycle."""
    clusters = await _chosen(mirror)
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(_admin(clusters.source_config().client))
        target = await stack.enter_async_context(_admin(clusters.target_client()))
        await make_mapping_topic(target, clusters.mapping_topic)
        reading = mapping_reader(clusters.target_client(), target, clusters.mapping_topic)
        reader = await stack.enter_async_context(reading)
        mapping = OffsetMapping(mirror.name)
        reader.begin()
        await reader.read_into(mapping)
        plain = replace(clusters, transactional=False).producer_config()
        producer = await stack.enter_async_context(Producer(config=plain))
        ids = await cluster_id(source), await cluster_id(target)
        yield MirrorSession(mirror, clusters, source, target, reader, mapping, producer, *ids, stack)


async def _chosen(mirror: MirrorDeclaration) -> ClusterPair:
    """Return the cluster pair, with transactions if they are wanted and available; fences earlier runs."""
    clusters = mirror.clusters().with_profiles()
    if mirror.delivery == "dedupe":
        return clusters
    wanted = replace(clusters, transactional=True)
    await require_coordinator(wanted.producer_config())
    if await fence(wanted.producer_config()):
        return wanted
    if mirror.delivery == "exactly-once":
        raise NotSupported(
            "delivery=exactly-once needs transactions, and the target does not let this mirror use "
            "them. delivery=dedupe compares the copies with the originals at its start, and writes "
            "no record twice either"
        )
    return clusters


def _admin(client: ClientConfig) -> Admin:
    return Admin(client.bootstrap_servers, client)
