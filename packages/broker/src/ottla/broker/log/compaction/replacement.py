"""Replacing segments of a log by cleaned ones so that a crash leaves all old or all new ones.

The steps, as Apache Kafka's: the new segments are written as `.cleaned`, renamed to `.swap`, the old ones are
renamed to `.deleted`, and `.swap` is taken off the new ones. Recovery (`finish_replacement`) finds one of
these states:

- A `.cleaned` file: not all new segments are complete. They are deleted; the old ones are untouched.
- `.swap` log files and no `.cleaned`: the new segments are complete and on the disk. The rest of the old ones
  is deleted, and `.swap` is taken off.
- Neither: nothing was begun, or all is done. `.deleted` files are deleted.

The offsets in the `.swap` files tell which old segments they replace, so the new ones have to begin where the
old ones begin and to reach into the last of them: a cleaner keeps the last batch, empty if need be. The disk
may make several renames durable in any order. Therefore directory syncs stand between the steps: the lowest
segment loses `.cleaned` last and `.swap` first, and log files lose `.swap` before their indexes do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.broker.log.segments.scan import walk
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.segments import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    SWAP_SUFFIX,
    FileName,
    SegmentFile,
    file_name,
    parse_file_name,
)

if TYPE_CHECKING:
    from ottla.broker.log.files.file_system import Files
    from ottla.broker.log.segments.segment import Segment

_INDEXES = (SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX, SegmentFile.TRANSACTION_INDEX)


@dataclass(slots=True)
class ReplacementPlan:
    """The segments to replace, and those that replace them."""

    files: Files
    directory: Path
    old: list[Segment]
    new: list[Segment]
    """Named `.cleaned`; nothing more is written to them."""
    deleted: list[Path] = field(default_factory=list)
    """The outcome: the files of the old segments, to be unlinked."""
    is_done: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the replacement is settled or given up, on the loop."""

    def run(self) -> None:
        """Put the new segments in the place of the old ones. Blocks: for a thread."""
        # Once the new log file has its name, nothing of a single new segment can be missing but indexes
        # that recovery builds again. An index of aborted transactions it cannot build.
        is_rebuilt = len(self.new) == 1 and not self._has_transactions()
        for segment in self.new:
            for path in self._paths(segment, CLEANED_SUFFIX, (SegmentFile.LOG, *_INDEXES)):
                self.files.open(path).sync()
        if not is_rebuilt:
            self._sync_names()
        for segment in reversed(self.new):
            self._rename(segment, CLEANED_SUFFIX, SWAP_SUFFIX, (*_INDEXES, SegmentFile.LOG))
            self._sync_names()
        self._mark_old_deleted()
        self._sync_names()
        for segment in self.new:
            self._rename(segment, SWAP_SUFFIX, "", (SegmentFile.LOG,))
            self._sync_names()
            self._rename(segment, SWAP_SUFFIX, "", _INDEXES)
        if not is_rebuilt:
            self._sync_names()
        self.is_done = True

    def _has_transactions(self) -> bool:
        return any(
            self._paths(segment, CLEANED_SUFFIX, (SegmentFile.TRANSACTION_INDEX,)) for segment in self.new
        )

    def _mark_old_deleted(self) -> None:
        kept = {segment.base_offset for segment in self.new}
        for segment in self.old:
            kinds: tuple[SegmentFile, ...] = (SegmentFile.LOG, *_INDEXES)
            if segment.base_offset not in kept:
                kinds = (*kinds, SegmentFile.PRODUCER_SNAPSHOT)
            self.deleted += self._rename(segment, "", DELETED_SUFFIX, kinds)

    def _paths(self, segment: Segment, suffix: str, kinds: Iterable[SegmentFile]) -> list[Path]:
        paths = (segment.path(kind, suffix) for kind in kinds)
        return [path for path in paths if self.files.exists(path)]

    def _rename(self, segment: Segment, before: str, after: str, kinds: Iterable[SegmentFile]) -> list[Path]:
        renamed = []
        for path in self._paths(segment, before, kinds):
            target = path.with_name(path.name.removesuffix(before) + after)
            self.files.rename(path, target)
            renamed.append(target)
        return renamed

    def _sync_names(self) -> None:
        self.files.sync_dir(self.directory)


def check_replacement(
    old: Sequence[Segment], new: Sequence[Segment], following: int | None, new_end: int | None
) -> None:
    """Raise ValueError unless `new` can replace `old`; `following` is the base offset of the next segment."""
    if not old or not new or following is None:
        raise ValueError("only sealed segments can be replaced, and by at least one")
    if new[0].base_offset != old[0].base_offset:
        raise ValueError(f"the new segments begin at {new[0].base_offset}, the old at {old[0].base_offset}")
    bases = [segment.base_offset for segment in new]
    end = new[-1].read_end() if new_end is None else new_end
    if bases != sorted(set(bases)) or not old[-1].base_offset < end <= following:
        raise ValueError(f"segments {bases} that end at {end} cannot stand for {list(old)}")


# ---- recovery


def finish_replacement(files: Files, directory: Path) -> None:
    """Undo or complete a replacement that a crash interrupted, and delete `.deleted` files. Blocks."""
    names = _suffixed(files, directory)
    if not names:
        return
    # The names decide what is deleted: after a crash of the process alone they may not be on the disk yet.
    files.sync_dir(directory)
    _unlink(files, directory, [name for name in names if name.suffix == DELETED_SUFFIX])
    cleaned = [name for name in names if name.suffix == CLEANED_SUFFIX]
    swaps = [name for name in names if name.suffix == SWAP_SUFFIX]
    if cleaned:
        lowest = min(name.base_offset for name in cleaned)
        _unlink(files, directory, [name for name in swaps if name.base_offset >= lowest])
        files.sync_dir(directory)
        _unlink(files, directory, cleaned)
        swaps = [name for name in swaps if name.base_offset < lowest]
    if swaps:
        _complete(files, directory, swaps)


def _complete(files: Files, directory: Path, swaps: list[FileName]) -> None:
    # Offset and time indexes are built again.
    rebuilt = (SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX)
    _unlink(files, directory, [name for name in swaps if name.kind in rebuilt])
    logs = sorted(name.base_offset for name in swaps if name.kind is SegmentFile.LOG)
    if logs:
        end = max(_end_of_swap(files, directory, base) for base in logs)
        _unlink(files, directory, _replaced(files, directory, logs[0], end))
        files.sync_dir(directory)
    for base in logs:
        _take_swap_off(files, directory, base, SegmentFile.LOG)
        files.sync_dir(directory)
    for name in swaps:
        if name.kind is SegmentFile.TRANSACTION_INDEX:
            _take_swap_off(files, directory, name.base_offset, name.kind)
    files.sync_dir(directory)


def _replaced(files: Files, directory: Path, start: int, end: int) -> list[FileName]:
    return [
        name
        for name in map(parse_file_name, files.list(directory))
        if name is not None
        and not name.suffix
        and start <= name.base_offset < end
        and name.kind is not SegmentFile.PRODUCER_SNAPSHOT
    ]


def _end_of_swap(files: Files, directory: Path, base: int) -> int:
    file = files.open(directory / file_name(base, SegmentFile.LOG, SWAP_SUFFIX))
    end = base + 1
    with suppress(CorruptStorage):
        for entry in walk(file, 0, file.size()):
            end = entry.last_offset + 1
    return end


def _take_swap_off(files: Files, directory: Path, base: int, kind: SegmentFile) -> None:
    files.rename(directory / file_name(base, kind, SWAP_SUFFIX), directory / file_name(base, kind))


def _suffixed(files: Files, directory: Path) -> list[FileName]:
    names = map(parse_file_name, files.list(directory))
    return [name for name in names if name is not None and name.suffix]


def _unlink(files: Files, directory: Path, names: Iterable[FileName]) -> None:
    for name in names:
        files.unlink(directory / file_name(*name))
