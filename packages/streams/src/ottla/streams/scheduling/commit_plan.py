"""The offset and metadata that one commit of a partition writes. Pure."""

from __future__ import annotations

from bisect import bisect_right

from ottla.protocol.topics import TopicPartition
from ottla.streams.scheduling.finished_offsets import Ranges, encode
from ottla.streams.scheduling.frontier import Frontier


class CommitPlan:
    """An offset and its metadata, fixed when the plan was made (implements `seams.Plan`)."""

    __slots__ = ("_ranges", "is_complete", "metadata", "offset", "owner", "partition")

    def __init__(
        self, partition: TopicPartition, offset: int, metadata: str, ranges: Ranges, is_complete: bool,
        owner: object,
    ) -> None:  # fmt: skip
        self.partition = partition
        self.offset = offset
        self.metadata = metadata
        self.is_complete = is_complete
        self.owner = owner
        """The assignment that the plan was made for: a later one of the same partition is another."""
        self._ranges = ranges

    def __repr__(self) -> str:
        return f"CommitPlan({self.partition}, {self.offset}, {len(self.metadata)} bytes of metadata)"

    @property
    def end(self) -> int:
        """One past the highest offset that it covers."""
        return self._ranges[-1][1] if self._ranges else self.offset

    def covers(self, offset: int) -> bool:
        """Return whether a record is known finished once this is committed."""
        if offset < self.offset:
            return True
        before = bisect_right(self._ranges, offset, key=lambda known: known[0]) - 1
        return before >= 0 and offset < self._ranges[before][1]


def commit_plan(
    partition: TopicPartition, frontier: Frontier, max_bytes: int, owner: object
) -> CommitPlan | None:
    """Return what may be committed now; None while no position is known."""
    position = frontier.position
    if position is None:
        return None
    finished = frontier.finished_ranges()
    metadata, count = encode(partition, position, finished, max_bytes)
    return CommitPlan(partition, position, metadata, finished[:count], count == len(finished), owner)
