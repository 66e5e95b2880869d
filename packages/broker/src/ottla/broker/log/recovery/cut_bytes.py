"""Bytes that recovery cuts off a damaged log: logged, and kept for a day in the partition's directory.

The bytes are in `<base offset>.<position>.cut`, the position being that in the segment's file. Apache Kafka
loads files of a partition that end in .log, .index, .timeindex, .txnindex and .snapshot, deletes those that
end in .deleted, .cleaned and .swap, and takes no notice of others; another directory beside the partitions
would keep it from starting. The files go with their partition.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.protocol.errors import KafkaError
from ottla.protocol.records import validate_batch
from ottla.protocol.storage.segments import SegmentFile

if TYPE_CHECKING:
    from ottla.broker.log.files.file_system import File, Files
    from ottla.broker.log.segments.segment import Segment

log = logging.getLogger(__name__)

KEPT_MS: Final = 24 * 3600 * 1000
CUT_SUFFIX: Final = ".cut"
_KEPT_IN: Final = "they are kept for a day in "
_WINDOW_BYTES: Final = 8 << 20
_PAGE_BYTES: Final = 4096
_HEAD_BYTES: Final = 17
"""From a batch's first byte to its magic."""
_OVERHEAD: Final = 12
_SMALLEST_BATCH: Final = 61
_MOST_IN_VAIN: Final = 4
"""How often the bytes that are cut off are read for batches that turn out to be none."""


def kept_files(files: Files, directory: Path) -> list[Path]:
    """The files of a partition with bytes that were cut."""
    return [directory / name for name in files.list(directory) if name.endswith(CUT_SUFFIX)]


# ---- one cut


def cut_off(segment: Segment, position: int, next_offset: int, reason: str) -> int:
    """Cut a segment at a position, once the bytes behind it are kept and named in the log; returns how many.

    `next_offset` follows the last intact entry. Blocks. Raises OSError when the cut itself fails.
    """
    lost = segment.size - position
    if not lost:
        return 0
    name, end = segment.path(SegmentFile.LOG), _end_of_content(segment.file, position, segment.size)
    if end == position:
        log.info("zeros cut off", extra={"path": str(name), "position": position, "bytes": lost})
    else:
        whole = whole_batches(segment.file, position, end, next_offset)
        log.warning(
            "damaged bytes cut off",
            extra={
                "path": str(name), "position": position, "bytes": lost, "last_offset": next_offset - 1,
                "reason": reason, "found": str(whole), "kept": _keep(segment, position, end),
            },
        )  # fmt: skip
    segment.file.truncate(position)
    segment.size = position
    return lost


def drop(segments: Sequence[Segment], next_offset: int) -> int:
    """Drop the segments behind a cut, the newest first, and keep their records; returns how many bytes.

    Blocks.
    """
    for segment in reversed(segments):
        whole = whole_batches(segment.file, 0, segment.size, next_offset)
        name, target = segment.path(SegmentFile.LOG), _free_name(segment, 0)
        segment.close()
        if not segment.size:
            segment.files.unlink(name)
        else:
            segment.files.rename(name, target)
            log.warning(
                "segment dropped: the log ends before it",
                extra={
                    "path": str(name), "bytes": segment.size, "last_offset": next_offset - 1,
                    "found": str(whole), "kept": f"{_KEPT_IN}{target.name}",
                },
            )  # fmt: skip
        for path in segment.mark_deleted():
            segment.files.unlink(path)
    return sum(segment.size for segment in segments)


# ---- what looks whole


class Whole(NamedTuple):
    """The batches with a right checksum in bytes that are cut off."""

    batches: int = 0
    size_bytes: int = 0
    first_offset: int = -1
    last_offset: int = -1

    def __str__(self) -> str:
        if not self.batches:
            return "no batch in them looks whole"
        return (
            f"{self.batches} batches in them, {self.size_bytes} bytes with offsets "
            f"{self.first_offset} to {self.last_offset}, look whole"
        )


def whole_batches(file: File, start: int, end: int, next_offset: int) -> Whole:
    """The v2 batches with a right checksum between two positions, wherever they begin.

    Their offsets are at or above `next_offset` and share its upper half. Values of records can look like the
    beginnings of large batches: the search ends when these have cost too much.
    """
    found = Whole()
    for base, last, size in _intact(file, start, end, next_offset):
        first = base if found.first_offset < 0 else found.first_offset
        found = Whole(found.batches + 1, found.size_bytes + size, first, last)
        next_offset = last + 1
    return found


def _intact(file: File, start: int, end: int, next_offset: int) -> Iterator[tuple[int, int, int]]:
    """Base offset, last offset and size of each intact batch."""
    begins = _beginning_near(next_offset)
    window, at, to_spend = b"", start, _MOST_IN_VAIN * (end - start)
    while at + _SMALLEST_BATCH <= end:
        window, window_at = file.pread(min(_WINDOW_BYTES, end - at), at), at
        if len(window) < _SMALLEST_BATCH:
            return
        at += max(0, len(window) - len(window.lstrip(b"\0")) - _HEAD_BYTES)
        while (match := begins.search(window, at - window_at)) is not None:
            at = window_at + match.start()
            size = _announced_size(file, at, end)
            batch = _batch_at(file, at, size) if size else None
            if batch is None or batch[0] < next_offset:
                to_spend -= size
                if to_spend < 0:
                    return
                at += 1
                continue
            yield batch
            next_offset, at = batch[1] + 1, at + batch[2]
        at = max(at, window_at + len(window) - _HEAD_BYTES + 1)


def _beginning_near(offset: int) -> re.Pattern[bytes]:
    """A batch's first bytes: an offset near another one, a length below 1 GiB, any epoch, magic 2."""
    upper = re.escape(max(0, offset).to_bytes(8, "big")[:4])
    return re.compile(upper + rb".{4}[\x00-\x3f].{3}.{4}\x02", re.DOTALL)


def _announced_size(file: File, position: int, end: int) -> int:
    """The size of a batch by its own account; 0 for one that is too small, or ends behind `end`."""
    size = int.from_bytes(file.pread(4, position + 8), "big") + _OVERHEAD
    return size if size >= _SMALLEST_BATCH and position + size <= end else 0


def _batch_at(file: File, position: int, size: int) -> tuple[int, int, int] | None:
    try:
        header = validate_batch(memoryview(file.pread(size, position)))
    except KafkaError:
        return None
    return header.base_offset, header.last_offset, size


# ---- keeping


def _end_of_content(file: File, start: int, end: int) -> int:
    """The end of the page with the last byte that is not zero: a preallocated file ends in zeros."""
    at = end
    while at > start:
        size = min(_WINDOW_BYTES, at - start)
        content = file.pread(size, at - size).rstrip(b"\0")
        if content:
            return min(end, ((at - size + len(content)) // _PAGE_BYTES + 1) * _PAGE_BYTES)
        at -= size
    return start


def _keep(segment: Segment, position: int, end: int) -> str:
    """Copy bytes of a segment into a file beside it; says where they are, or why they are nowhere."""
    try:
        name = _copied(segment, position, end)
    except OSError as error:
        return f"they are not kept: {error.strerror or error}"
    return _KEPT_IN + name


def _copied(segment: Segment, position: int, end: int) -> str:
    target = _free_name(segment, position, end)
    copy = segment.files.open(target, create=True)
    try:
        copy.truncate(0)
        for at in range(position, end, _WINDOW_BYTES):
            copy.pwrite(segment.file.pread(min(_WINDOW_BYTES, end - at), at), at - position)
        copy.sync()
    except OSError:
        segment.files.unlink(target)
        raise
    return target.name


def _free_name(segment: Segment, position: int, end: int = -1) -> Path:
    """A name that is free, or that of a file which an interrupted recovery left with a part of the bytes."""
    number, files = 1, segment.files
    while True:
        middle = f"{position}-{number}" if number > 1 else f"{position}"
        path = segment.directory / f"{segment.base_offset:020d}.{middle}{CUT_SUFFIX}"
        if not files.exists(path) or _holds_part_of(files.open(path), segment.file, position, end):
            return path
        number += 1


def _holds_part_of(kept: File, file: File, position: int, end: int) -> bool:
    size = kept.size()
    if size > end - position:
        return False
    return all(
        kept.pread(min(_WINDOW_BYTES, size - at), at)
        == file.pread(min(_WINDOW_BYTES, size - at), position + at)
        for at in range(0, size, _WINDOW_BYTES)
    )
