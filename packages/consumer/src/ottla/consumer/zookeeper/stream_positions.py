"""Positions of the partitions that streams own: what was delivered, finished and committed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.protocol.topics import TopicPartition

Offsets = dict[TopicPartition, int]

UNKNOWN = -1


@dataclass(slots=True)
class StreamPosition:
    """`delivered` is the offset of the next record to deliver. Everything below `finished` is finished.

    `stored` is the offset in the offset storage as far as known, None for none.
    """

    delivered: int
    finished: int
    stored: int | None
    owned: bool = True


class StreamPositions:
    """The positions of all partitions that were ever owned."""

    def __init__(self) -> None:
        self._positions: dict[TopicPartition, StreamPosition] = {}

    def begin(self, partition: TopicPartition, offset: int, stored: int | None) -> int:
        """Own a partition that starts at `offset`; return the offset to start at.

        UNKNOWN leaves the start to the reader, which applies the reset policy. A member that gave a partition
        up, or lost it with its session, and owns it again before another member committed, continues after
        the last record it delivered: its application has the records before.
        """
        known = self._positions.get(partition)
        if known is not None and known.stored == stored:
            known.owned = True
            return known.delivered
        self._positions[partition] = StreamPosition(offset, offset, stored)
        return offset

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop owning partitions."""
        for partition in partitions:
            if partition in self._positions:
                self._positions[partition].owned = False

    def delivered(self, partition: TopicPartition, offset: int) -> None:
        """Mark the record at an offset as delivered, and all before it as finished."""
        position = self._positions.get(partition)
        # The same record again says nothing new: it may have been committed on demand meanwhile.
        if position is not None and position.owned and position.delivered != offset + 1:
            position.delivered = offset + 1
            position.finished = offset

    def finished(self, partition: TopicPartition, offset: int) -> None:
        """Mark the record at an offset as finished, also after the partition was given up."""
        position = self._positions.get(partition)
        if position is not None and position.finished <= offset < position.delivered:
            position.finished = offset + 1

    def moved(self, partition: TopicPartition, offset: int) -> None:
        """Continue a partition at an offset; all below it is finished."""
        position = self._positions.get(partition)
        if position is not None and position.owned:
            position.delivered = position.finished = offset

    def uncommitted(self, *, delivered: bool = False) -> Offsets:
        """Return the finished offsets that are not committed; with `delivered`, the delivered ones."""
        ends = {
            partition: position.delivered if delivered else position.finished
            for partition, position in self._positions.items()
            if position.owned
        }
        return {
            partition: end
            for partition, end in ends.items()
            if end not in (UNKNOWN, self._positions[partition].stored)
        }

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record what the offset storage holds now."""
        for partition, offset in offsets.items():
            position = self._positions.get(partition)
            if position is not None:
                position.stored = offset
                position.finished = max(position.finished, offset)
