"""The offsets that may be committed: those below the lowest offset that is not finished. Pure.

Parallel work finishes out of order. Committing past an unfinished record would lose it in a crash, so the
commit waits at the frontier, and the finished offsets after it go into the commit metadata.
"""

from __future__ import annotations

from bisect import bisect_right

from ottla.protocol.topics import TopicPartition
from ottla.streams.scheduling._core import StartedOffsets
from ottla.streams.scheduling.finished_offsets import Ranges, encode


class Frontier(StartedOffsets):
    """The offsets of one partition from the lowest unfinished one on.

    Offsets are started in ascending order, with gaps where compaction or control records left them: a gap
    belongs to the offsets before it. `known` are ranges that an earlier reader finished. What runs once per
    record is native (`_core.pyx`).
    """

    __slots__ = ("_known",)

    def __init__(self, position: int | None = None, known: Ranges = ()) -> None:
        super().__init__(position)
        self._known = [
            known_range for known_range in known if position is not None and known_range[1] > position
        ]
        self.has_known = bool(self._known)

    @property
    def position(self) -> int | None:
        """The offset to commit: every record below it is finished. None: nothing is known yet."""
        return self.lowest_unfinished

    @property
    def span(self) -> int:
        """The distance from the position to the last offset that is started or known finished."""
        position, following = self.position, self.next_offset
        if position is None or following is None:
            return 0
        return max(following, self._known[-1][1] if self._known else 0) - position

    @property
    def known_ranges(self) -> int:
        """The number of ranges that an earlier reader finished, not reached yet."""
        return len(self._known)

    def advance(self, next_offset: int) -> None:
        """Register that no record below an offset comes any more."""
        if self.pass_to(next_offset):
            self._drop_known(next_offset)

    def finished_ranges(self) -> list[tuple[int, int]]:
        """Return the finished offsets after the position, as ascending ranges with a gap between them."""
        found = self.finished_started()
        for known in self._known:
            _append(found, max(known[0], self.next_offset or 0), known[1])
        return found

    def _is_known(self, offset: int) -> bool:
        self._drop_known(offset)
        return bool(self._known) and self._known[0][0] <= offset

    def _drop_known(self, offset: int) -> None:
        passed = bisect_right(self._known, offset, key=lambda known: known[1])
        del self._known[:passed]
        self.has_known = bool(self._known)


def _append(found: list[tuple[int, int]], first: int, end: int) -> None:
    if found and found[-1][1] >= first:
        found[-1] = (found[-1][0], max(end, found[-1][1]))
    elif first < end:
        found.append((first, end))


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
