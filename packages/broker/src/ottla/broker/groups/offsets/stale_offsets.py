"""Offsets of topics that were deleted while no coordinator of the group was there to drop them.

A deletion is published once, and only coordinators that have loaded their groups by then drop the offsets.
Those of a coordinator that was down would stand for the next topic of that name, and its readers would begin
in its middle. So each offset is stored with the id of its topic, and it is stale if the topic has another id
now, or does not exist. Three rules keep the offsets that are in use:

- Nothing is decided by metadata that have not arrived: a load waits for them, and a topic that they do not
  name is looked for in ZooKeeper.
- Times are not compared: clocks differ, and every topic looks new in a ZooKeeper restored from a copy.
- An offset without an id, as Apache Kafka before 4.1 writes it, is stale only if its topic does not exist.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ottla.broker.cluster.metadata import NO_ID
from ottla.broker.groups.offsets.committed_offsets import CommittedOffset
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.groups.offsets.partition_state import HostedGroup
    from ottla.broker.runtime.background_tasks import BackgroundTasks
    from ottla.broker.runtime.loop_budget import LoopBudget

log = logging.getLogger(__name__)

Forget: TypeAlias = Callable[["HostedGroup", list[TopicPartition]], int]
_IsStale: TypeAlias = Callable[[TopicPartition, CommittedOffset], bool]


class ExistingTopics(Protocol):
    """The topics in ZooKeeper."""

    async def existing(self) -> frozenset[str] | None:
        """The names of all topics, None while ZooKeeper does not answer."""
        ...

    async def published(self) -> Mapping[str, int] | None:
        """How many partitions of each topic a controller publishes, None while that is unknown."""
        ...


class StaleOffsets:
    """Finds the offsets whose topic was deleted, and drops them with a tombstone each, as a deletion does."""

    def __init__(
        self,
        groups: Iterable[HostedGroup],
        forget: Forget,
        *,
        metadata: MetadataCache,
        topics: ExistingTopics,
        budget: LoopBudget,
        tasks: BackgroundTasks,
    ) -> None:
        """`groups` are all that are hosted here; `forget` drops offsets of one with their tombstones."""
        self._groups = groups
        self._forget = forget
        self._metadata = metadata
        self._topics = topics
        self._budget = budget
        self._tasks = tasks
        self._undecided: set[str] = set()
        """Topics whose offsets are compared again: once they are published, and whenever offsets expire."""

    async def metadata_arrived(self) -> None:
        """Wait, within a bound, until a controller has sent the metadata of the cluster."""
        await self._metadata.known(self._topics.published)

    def is_stale(self, partition: TopicPartition, committed: CommittedOffset) -> bool:
        """Whether the topic has another id now than it had at the commit."""
        topic_id = self._metadata.topic_id(partition.topic)
        return topic_id != committed.topic_id and NO_ID not in (topic_id, committed.topic_id)

    def published(self, topics: Collection[str], replaced: Collection[str]) -> None:
        """A controller has published these topics; `replaced` are the ones that had another id before."""
        affected = self._undecided.intersection(topics).union(replaced)
        if affected:
            self.begin_drop(self._groups, affected)

    async def drop_undecided(self) -> None:
        """Compare the offsets of topics that could not be compared before."""
        if self._undecided:
            await self.drop(self._groups, frozenset(self._undecided))

    def begin_drop(self, groups: Iterable[HostedGroup], topics: Collection[str] | None = None) -> None:
        """Drop as `drop` does, in a task."""
        self._tasks.spawn(self.drop(list(groups), topics), "drop-stale-offsets")

    async def drop(self, groups: Iterable[HostedGroup], topics: Collection[str] | None = None) -> None:
        """Drop the stale offsets of these groups; `topics` are the only ones to compare, None all."""
        groups = list(groups)
        self._undecided.difference_update(topics or ())
        unknown: set[str] = set()

        def has_other_id(partition: TopicPartition, committed: CommittedOffset) -> bool:
            if topics is not None and partition.topic not in topics:
                return False
            if partition.topic not in self._metadata:
                unknown.add(partition.topic)
            return self.is_stale(partition, committed)

        await self._drop_where(has_other_id, groups)
        missing = await self._missing(unknown)
        if missing:
            await self._drop_where(
                lambda partition, _: partition.topic in missing and partition.topic not in self._metadata,
                groups,
            )
        appeared = {topic for topic in unknown if topic in self._metadata}
        if appeared:  # their publication found nothing undecided
            await self.drop(groups, appeared)

    async def _missing(self, unknown: set[str]) -> frozenset[str]:
        """Return which topics do not exist; the others are compared when they are published."""
        existing = await self._topics.existing() if unknown else None
        if existing is None:
            self._undecided |= unknown
            return frozenset()
        self._undecided |= unknown & existing
        return frozenset(unknown - existing)

    async def _drop_where(self, is_stale: _IsStale, groups: Iterable[HostedGroup]) -> None:
        turn, dropped = self._budget.turn(), 0
        for hosted in groups:
            stale = [
                (partition, committed)
                async for partition, committed in turn.over(hosted.offsets.all().items())
                if is_stale(partition, committed)
            ]
            dropped += self._drop(hosted, stale)
        if dropped:
            log.info("offsets of deleted topics dropped", extra={"offsets": dropped})

    def _drop(self, hosted: HostedGroup, stale: Iterable[tuple[TopicPartition, CommittedOffset]]) -> int:
        """Drop the offsets of one group that have not changed since they were compared.

        An offset that a pending commit or an open transaction may replace stays undecided: its tombstone
        would stand behind that commit in the log.
        """
        offsets = hosted.offsets
        unchanged = [partition for partition, committed in stale if offsets.get(partition) is committed]
        settled = [partition for partition in unchanged if not offsets.is_unstable(partition)]
        self._undecided.update(partition.topic for partition in unchanged if offsets.is_unstable(partition))
        return self._forget(hosted, settled) if settled else 0
