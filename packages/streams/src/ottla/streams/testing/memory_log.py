"""Topics in memory: records of partitions with the offsets that a broker would give, and an admin of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self
from uuid import UUID

from ottla.admin import EARLIEST
from ottla.client.cluster import NoSuchTopic
from ottla.consumer import ConsumerRecord
from ottla.protocol.errors import TopicAlreadyExists
from ottla.protocol.topics import TopicPartition

Headers = tuple[tuple[str, bytes | None], ...]
_MARKER: Final = None


class PartitionLog:
    """One partition. It begins at offset 0, and nothing is ever removed from it."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self._entries: list[ConsumerRecord | None] = []

    @property
    def end_offset(self) -> int:
        """One past the last offset."""
        return len(self._entries)

    @property
    def records(self) -> list[ConsumerRecord]:
        """All records."""
        return [entry for entry in self._entries if entry is not _MARKER]

    def append(self, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers) -> int:
        """Append a record and return its offset."""
        topic, number = self.partition
        offset = len(self._entries)
        self._entries.append(ConsumerRecord(topic, number, offset, timestamp_ms, key, value, headers))
        return offset

    def append_marker(self) -> None:
        """Append the marker that ends a transaction: it takes an offset, and is never delivered."""
        self._entries.append(_MARKER)

    def read(self, offset: int, max_records: int) -> tuple[list[ConsumerRecord], int]:
        """Return records from an offset on, and the offset to continue at, which is after markers."""
        found: list[ConsumerRecord] = []
        while offset < len(self._entries):
            entry = self._entries[offset]
            if entry is not _MARKER:
                if len(found) == max_records:
                    break
                found.append(entry)
            offset += 1
        return found, offset


class MemoryLog:
    """All topics. A topic is created, with `default_partitions`, when it is first written or read."""

    def __init__(self, default_partitions: int) -> None:
        self._default_partitions = default_partitions
        self._topics: dict[str, tuple[PartitionLog, ...]] = {}
        self._ids: dict[str, UUID] = {}
        self._watchers: set[Callable[[], None]] = set()

    def create(self, topic: str, partitions: int | None = None) -> None:
        """Create a topic. Raises TopicAlreadyExists."""
        if topic in self._topics:
            raise TopicAlreadyExists(f"topic {topic!r} exists")
        count = self._default_partitions if partitions is None else partitions
        self._topics[topic] = tuple(PartitionLog(TopicPartition(topic, number)) for number in range(count))
        self._ids[topic] = UUID(int=len(self._ids) + 1)

    def ensure(self, topics: Iterable[str]) -> None:
        """Create those topics that do not exist."""
        for topic in topics:
            if topic not in self._topics:
                self.create(topic)

    @property
    def topics(self) -> Mapping[str, Sequence[PartitionLog]]:
        """The partitions of each topic."""
        return self._topics

    def partitions(self, topic: str) -> Sequence[PartitionLog]:
        """Return the partitions of a topic. Raises NoSuchTopic."""
        if topic not in self._topics:
            raise NoSuchTopic(topic)
        return self._topics[topic]

    def topic_id(self, topic: str) -> UUID:
        """Return the id of a topic."""
        return self._ids[topic]

    def partition(self, partition: TopicPartition) -> PartitionLog:
        """Return a partition. Raises NoSuchTopic, and ValueError for a number that a topic does not have."""
        partitions = self.partitions(partition.topic)
        if not 0 <= partition.partition < len(partitions):
            raise ValueError(f"topic {partition.topic!r} has no partition {partition.partition}")
        return partitions[partition.partition]

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call a function after each change."""
        self._watchers.add(on_change)

    def unwatch(self, on_change: Callable[[], None]) -> None:
        """Call it no more."""
        self._watchers.discard(on_change)

    def changed(self) -> None:
        """Wake the readers: there are records."""
        for watcher in tuple(self._watchers):
            watcher()


@dataclass(frozen=True)
class MemoryTopic:
    """The description of a topic."""

    name: str
    id: UUID
    partitions: tuple[int, ...]


class MemoryTopics:
    """Creates and describes topics."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    async def describe(self, name: str) -> MemoryTopic:
        """Return the description of a topic. Raises NoSuchTopic."""
        numbers = tuple(range(len(self._log.partitions(name))))
        return MemoryTopic(name, self._log.topic_id(name), numbers)

    async def create(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; its settings change nothing. Raises TopicAlreadyExists."""
        self._log.create(name, None if partitions < 1 else partitions)


class MemoryOffsets:
    """Finds the ends of partitions."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    async def find(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the first offset, or the end, of each partition."""
        return {
            partition: 0 if which == EARLIEST else self._log.partition(partition).end_offset
            for partition, which in wanted.items()
        }


class MemoryAdmin:
    """Reads and changes a cluster in memory."""

    def __init__(self, log: MemoryLog) -> None:
        self.topics = MemoryTopics(log)
        self.offsets = MemoryOffsets(log)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
