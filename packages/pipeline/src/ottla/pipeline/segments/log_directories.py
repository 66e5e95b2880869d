"""Find the partitions and segments under paths."""

from __future__ import annotations

import glob
import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ottla.pipeline.errors import OptionError, SegmentsChanged
from ottla.pipeline.source.config import TopicSelection
from ottla.pipeline.source.offsets import partition_names
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.checkpoints import (
    HIGH_WATERMARKS_FILE,
    LOG_START_OFFSETS_FILE,
    decode_offset_checkpoint,
)
from ottla.protocol.storage.segments import (
    SWAP_SUFFIX,
    DirectoryKind,
    SegmentFile,
    file_name,
    parse_directory_name,
    parse_file_name,
)
from ottla.protocol.topics import INTERNAL_TOPICS, TopicPartition

log = logging.getLogger(__name__)

_TRIES = 20
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Segment:
    """A `.log` file.

    `end_offset` is the base offset of the next segment; None: this segment is active and may grow.
    """

    folder: Path
    base_offset: int
    end_offset: int | None
    size: int
    grows: bool = False
    """Whether the file may have grown since."""

    def path(self, kind: SegmentFile = SegmentFile.LOG) -> Path:
        """Return the path of one of the segment's files; only the log always exists."""
        return self.folder / file_name(self.base_offset, kind)


@dataclass(frozen=True)
class PartitionFolder:
    """The directory of a partition: all of its segments, in order, the active one last."""

    partition: TopicPartition
    folder: Path
    every: tuple[Segment, ...]
    chosen: frozenset[int] | None = None
    """Base offsets of segments whose files are given as paths; None: all segments."""

    @property
    def active(self) -> Segment:
        """The segment that the broker appends to."""
        return self.every[-1]

    @cached_property
    def closed(self) -> tuple[Segment, ...]:
        """The selected segments that do not grow any more."""
        return tuple(segment for segment in self.every[:-1] if self.chooses(segment))

    def chooses(self, segment: Segment) -> bool:
        """Whether the paths select a segment."""
        return self.chosen is None or segment.base_offset in self.chosen

    @cached_property
    def high_watermark(self) -> int | None:
        """The high watermark that the broker has checkpointed beside the partition."""
        return _checkpoint(self.folder.parent / HIGH_WATERMARKS_FILE).get(self.partition)

    @cached_property
    def log_start(self) -> int:
        """The log start offset that the broker has checkpointed, if any."""
        return _checkpoint(self.folder.parent / LOG_START_OFFSETS_FILE).get(self.partition, 0)


def find_partitions(paths: Iterable[str], wanted: TopicSelection) -> dict[TopicPartition, PartitionFolder]:
    """Return the partitions under paths, which are log directories, partition directories or single segments.

    Raises OptionError if a path has no partition, if a named topic is missing, and for a partition in two
    places: they are replicas, or parts that should not be mixed.
    """
    found: dict[TopicPartition, PartitionFolder] = {}
    for folder, chosen in _folders(paths).items():
        partition = _partition(folder)
        if partition is None or not _is_wanted(wanted, partition):
            continue
        if partition in found:
            raise OptionError(
                f"option 'path': {partition} is both in {found[partition].folder} and in {folder}: "
                "name one of them"
            )
        found[partition] = PartitionFolder(partition, folder, _segments(folder), chosen)
    _refuse_missing(wanted, found)
    return found


def _is_wanted(wanted: TopicSelection, partition: TopicPartition) -> bool:
    is_hidden = wanted.names is None and partition.topic in INTERNAL_TOPICS
    return not is_hidden and wanted.chooses(partition)


def _refuse_missing(wanted: TopicSelection, found: Iterable[TopicPartition]) -> None:
    there = frozenset(found)
    if missing := (wanted.names or frozenset()) - {partition.topic for partition in there}:
        raise OptionError(f"option 'path': no path contains topic {', '.join(map(repr, sorted(missing)))}")
    if lacking := wanted.partitions - there:
        raise OptionError(f"option 'assign': no path contains {partition_names(lacking)}")


def _folders(paths: Iterable[str]) -> dict[Path, frozenset[int] | None]:
    """Return partition directories, with base offsets where the paths name single segments."""
    found: dict[Path, frozenset[int] | None] = {}
    for path in paths:
        roots = [Path(match).absolute() for match in sorted(glob.glob(path))] or [Path(path).absolute()]
        before = len(found)
        for root in roots:
            _add(found, root)
        if len(found) == before and not any(folder in found or folder.parent in found for folder in roots):
            raise OptionError(f"option 'path': {path!r} contains no log segments")
    return found


def _add(found: dict[Path, frozenset[int] | None], place: Path) -> None:
    name = parse_file_name(place.name)
    if name is not None and place.is_file():
        if name.kind is SegmentFile.LOG and not name.suffix:
            chosen = found.get(place.parent, frozenset())
            found[place.parent] = None if chosen is None else chosen | {name.base_offset}
    elif place.is_dir():
        # The name of a log directory may look like a partition's, for example kafka-logs-1: its content
        # decides.
        inside = (
            [place]
            if _has_segments(place)
            else sorted(folder for folder in place.iterdir() if folder.is_dir())
        )
        found |= {
            folder: None for folder in inside if _partition(folder) is not None and _has_segments(folder)
        }


def _has_segments(folder: Path) -> bool:
    return any(_is_log(name) for name in os.listdir(folder))


def _is_log(name: str) -> bool:
    parsed = parse_file_name(name)
    return parsed is not None and parsed.kind is SegmentFile.LOG


def _partition(folder: Path) -> TopicPartition | None:
    """Return the partition of a directory; None if a broker deletes or moves it, or should not have it."""
    try:
        parsed = parse_directory_name(folder.name)
    except CorruptStorage:
        return None
    return parsed.topic_partition if parsed.kind is DirectoryKind.CURRENT else None


def _segments(folder: Path) -> tuple[Segment, ...]:
    """Return the segments of a partition. Raises SegmentsChanged if a replacement does not end."""
    for _ in range(_TRIES):
        found = _segments_now(folder)
        if found is not None:
            return tuple(_in_order(folder, found))
        time.sleep(_PAUSE_S)
    raise SegmentsChanged(
        f"{folder} has segments of an unfinished compaction. If its broker was killed, start it once "
        "to complete the compaction"
    )


def _segments_now(folder: Path) -> dict[int, int] | None:
    """Return base offsets and sizes; None while segments are being replaced."""
    found = {}
    for entry in os.listdir(folder):
        name = parse_file_name(entry)
        if name is None or name.kind is not SegmentFile.LOG:
            continue
        if name.suffix == SWAP_SUFFIX:
            return None
        if not name.suffix:
            try:
                found[name.base_offset] = (folder / entry).stat().st_size
            except FileNotFoundError:
                return None
    return found or None


def _in_order(folder: Path, sizes: dict[int, int]) -> Iterator[Segment]:
    bases = sorted(sizes)
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        yield Segment(folder, base, following, sizes[base])


def _checkpoint(path: Path) -> dict[TopicPartition, int]:
    """Return the offsets of a checkpoint file; none if it is missing, as beside a copied partition."""
    try:
        return decode_offset_checkpoint(path.read_bytes())
    except FileNotFoundError:
        return {}
    except CorruptStorage as error:
        log.warning("checkpoint ignored", extra={"file": str(path), "reason": str(error)})
        return {}
