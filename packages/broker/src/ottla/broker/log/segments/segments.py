"""The segments of one log, oldest first: find, add, drop, replace."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.broker.log.compaction.replacement import ReplacementPlan, check_replacement
from ottla.broker.log.files.file_system import Files
from ottla.broker.log.files.open_files import OpenSegments
from ottla.broker.log.segments.segment import Segment

if TYPE_CHECKING:
    from ottla.broker.config import LogConfig


class SegmentLeftBehind(OSError):
    """A segment was not created, and removing its files failed too: a start would load them."""


class SegmentsChanged(ValueError):
    """Segments are not in their log any more, or others work on them."""


def create_segment(files: Files, directory: Path, base_offset: int, config: LogConfig) -> Segment:
    """Create the files of a new segment and open them for writing; it is in no list yet.

    After an OSError no file is left. Raises `SegmentLeftBehind` when removing them failed too: records must
    not be appended across its base offset then.
    """
    segment = Segment(files, directory, base_offset)
    try:
        segment.create(preallocate_bytes=config.segment_bytes if config.preallocate else 0)
        segment.activate(config.segment_index_bytes, keep=False)
    except OSError:
        _remove_begun(segment)
        raise
    return segment


def _remove_begun(segment: Segment) -> None:
    try:
        for path in segment.mark_deleted():
            segment.files.unlink(path)
    except OSError as worse:
        raise SegmentLeftBehind(worse.errno, worse.strerror or str(worse)) from worse


class Segments:
    """The list of a log's segments; the last one is active.

    Lives on the event loop. Files are opened when they are needed; of the sealed segments only some stay open
    (`OpenSegments`).
    """

    __slots__ = ("_open", "all", "bases", "directory", "files", "replacing", "resume")

    def __init__(
        self,
        files: Files,
        directory: Path,
        segments: Sequence[Segment],
        open_segments: OpenSegments,
    ) -> None:
        self.files = files
        self.directory = directory
        self.all: list[Segment] = []
        """For reading; only the methods here change it."""
        self._open = open_segments
        self.replacing: ReplacementPlan | None = None
        """The replacement that is under way: its old segments may not be dropped before it is settled."""
        self.resume: dict[int, tuple[Segment, int]] = {}
        """Offsets that readers of sealed segments most likely ask for next, with their positions."""
        self._set(list(segments))

    def _set(self, segments: list[Segment]) -> None:
        kept = set(segments)
        self._open.forget(segment for segment in self.all if segment not in kept)
        self.all = segments
        self.bases = [segment.base_offset for segment in segments]
        """The base offsets, for bisect."""
        self.resume.clear()

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.all)

    def __getitem__(self, number: int) -> Segment:
        return self.all[number]

    @property
    def size_bytes(self) -> int:
        """Bytes in all log files."""
        return sum(segment.size for segment in self.all)

    # ---- finding

    def find(self, offset: int) -> Segment:
        """The segment that holds an offset, if the log has it."""
        return self.all[max(0, bisect_right(self.bases, offset) - 1)]

    def since(self, offset: int) -> list[Segment]:
        """The segment that holds an offset, and those behind it."""
        return self.all[max(0, bisect_right(self.bases, offset) - 1) :]

    def opening(self, segment: Segment) -> None:
        """Note that a sealed segment is about to be opened; closes others if there are too many."""
        if not segment.active and segment not in self._open:
            self._open.opening(segment)

    # ---- changing

    def add(self, segment: Segment) -> None:
        """Make a new segment the active one; the one before is sealed."""
        if self.all:
            self._open.opening(self.all[-1])
        self.all.append(segment)
        self.bases.append(segment.base_offset)

    def drop_first(self, count: int) -> list[Segment]:
        """Take the oldest segments out of the list."""
        dropped = self.all[:count]
        self._set(self.all[count:])
        return dropped

    def drop_since(self, offset: int) -> list[Segment]:
        """Take the segment that holds an offset, and those behind it, out of the list."""
        dropped = self.since(offset)
        self._set(self.all[: len(self.all) - len(dropped)])
        return dropped

    def replace_active(self, segment: Segment) -> None:
        """Put a segment in the place of the active one."""
        self._set([*self.all[:-1], segment])

    # ---- replacing

    @property
    def droppable(self) -> int:
        """How many of the oldest segments no replacement is working on."""
        return len(self.all) if self.replacing is None else self.all.index(self.replacing.old[0])

    def plan_replace(
        self, old: Sequence[Segment], new: Sequence[Segment], new_end: int | None = None
    ) -> ReplacementPlan:
        """Plan to put cleaned segments in the place of old ones, which are pinned; `begin_replace` is next.

        `new_end` is the offset behind the last entry of `new`, read here without it.

        `old` are sealed segments in a row whose records are on the disk; `new` are complete, closed and named
        `.cleaned`. The old ones are read until the end. Raises ValueError for segments that cannot stand for
        the old ones (see `replacement`); `SegmentsChanged` when the old ones are no row of the log any more,
        or pinned by others, and while another replacement is under way; OSError and CorruptStorage when the
        old ones cannot be opened. Nothing is pinned then.
        """
        first = self.all.index(old[0]) if old and old[0] in self.all else 0
        behind = first + len(old)
        is_idle = self.replacing is None and not any(segment.is_pinned for segment in old)
        if not is_idle or self.all[first:behind] != list(old):
            raise SegmentsChanged(f"{list(old)} cannot be replaced now")
        check_replacement(old, new, self.bases[behind] if behind < len(self.all) else None, new_end)
        self._pin(old)
        return ReplacementPlan(self.files, self.directory, list(old), list(new))

    def begin_replace(self, plan: ReplacementPlan) -> None:
        """Begin a replacement: its plan is to be run on a thread, then `settle_replace`."""
        self.replacing = plan

    def _pin(self, segments: Sequence[Segment]) -> None:
        """Pin all segments or none."""
        try:
            for segment in segments:
                segment.pin()
        except BaseException:
            self._unpin(segments)
            raise

    def _unpin(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            segment.unpin()
            segment.close()

    def settle_replace(self, plan: ReplacementPlan) -> None:
        """Settle a plan that was run: reads use the new segments, unless the run has failed.

        After a failure some files may have their new names already: the log goes offline, and the next start
        undoes or completes the replacement. The old segments stay pinned, so that they are still read without
        the names of their files.
        """
        if self.replacing is not plan:
            return
        self.replacing = None
        plan.settled.set()
        if plan.is_done:
            first = self.all.index(plan.old[0])
            new = [
                Segment(self.files, self.directory, segment.base_offset, segment.size) for segment in plan.new
            ]
            self._set([*self.all[:first], *new, *self.all[first + len(plan.old) :]])
            self._unpin(plan.old)

    # ---- closing

    def rebuild_lost(self) -> None:
        """Build the indexes again that another program has cut. Blocks."""
        for segment in self.all:
            if segment.has_lost_index:
                segment.close_indexes()
                segment.rebuild_lost()
                segment.indexes_lost = False

    def moved_to(self, directory: Path) -> None:
        """Follow the rename of the log's directory."""
        self.directory = directory
        for segment in self.all:
            segment.moved_to(directory)

    def close(self) -> None:
        """Close all files; a reader keeps those it reads open."""
        self._open.forget(self.all)
        for segment in self.all:
            segment.close()
