"""Where `ottla consume` starts and stops: before the end, or between two times."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ottla.consumer.consumer import Consumer
    from ottla.protocol.topics import TopicPartition


class Range(NamedTuple):
    """The part of a topic to print; None where it is not limited."""

    tail: int | None
    since_ms: int | None
    until_ms: int | None

    def __bool__(self) -> bool:
        """Return whether anything is limited."""
        return any(limit is not None for limit in self)

    async def seek(self, consumer: Consumer) -> dict[TopicPartition, int]:
        """Seek the assigned partitions to the start; return the offsets to stop at, if there are some.

        With only an end the start is the first record.
        """
        partitions = consumer.assignment()
        ends = await consumer.end_offsets(partitions)
        if self.since_ms is not None:
            starts = await _at(consumer, self.since_ms, ends)
        else:
            starts = await consumer.beginning_offsets(partitions)
        for partition, first in starts.items():
            consumer.seek(
                partition, max(first, ends[partition] - self.tail) if self.tail is not None else first
            )
        return {} if self.until_ms is None else await _at(consumer, self.until_ms, ends)


async def _at(consumer: Consumer, time_ms: int, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the offset of the first record at or after a time in each partition, or its end."""
    found = await consumer.offsets_for_times(dict.fromkeys(ends, time_ms))
    return {
        partition: end if (at := found.get(partition)) is None else at.offset
        for partition, end in ends.items()
    }
