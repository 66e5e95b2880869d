"""Where a consumer is in each partition. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.protocol.topics import TopicPartition


class Positions:
    """The next offset of each partition that is read; a partition without one must be looked up first."""

    def __init__(self) -> None:
        self._next: dict[TopicPartition, int | None] = {}
        self._paused: set[TopicPartition] = set()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions from now on; those that were read already keep their place."""
        wanted = list(dict.fromkeys(partitions))
        self._next = {each: self._next.get(each) for each in wanted}
        self._paused &= set(wanted)

    @property
    def assigned(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return list(self._next)

    def missing(self) -> list[TopicPartition]:
        """Return partitions without a position."""
        return [each for each, offset in self._next.items() if offset is None]

    def seek(self, partition: TopicPartition, offset: int | None) -> None:
        """Read a partition from an offset; None has it looked up again. Raises KeyError if not assigned."""
        if partition not in self._next:
            raise KeyError(f"{partition} is not assigned")
        self._next[partition] = offset

    def moved(self, partition: TopicPartition, since: int, to: int) -> bool:
        """Go on from `since` to `to`; False when somebody sought meanwhile, and what was read is void."""
        if self._next.get(partition) != since:
            return False
        self._next[partition] = to
        return True

    def position(self, partition: TopicPartition) -> int | None:
        """Return the next offset of a partition."""
        return self._next.get(partition)

    def all(self) -> dict[TopicPartition, int]:
        """Return all positions that are known."""
        return {each: offset for each, offset in self._next.items() if offset is not None}

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch nothing of some partitions until they are resumed."""
        self._paused.update(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch partitions again."""
        self._paused.difference_update(partitions)

    def fetchable(self) -> Mapping[TopicPartition, int]:
        """Return what may be fetched, with offsets."""
        return {each: offset for each, offset in self.all().items() if each not in self._paused}
