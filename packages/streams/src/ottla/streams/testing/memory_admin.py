"""An admin of the cluster in memory, with what streams use of `ottla.admin.Admin`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from uuid import UUID

from ottla.admin import EARLIEST
from ottla.protocol.topics import TopicPartition
from ottla.streams.testing.memory_log import MemoryLog


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
