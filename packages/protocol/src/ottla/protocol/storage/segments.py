"""Names in a log directory, and the entries of a segment file."""

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.records import BATCH_HEADER_SIZE, BatchHeader, CorruptRecords, magic_at, read_header
from ottla.protocol.records import split_batches as _split
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.topics import TopicPartition

__all__ = [
    "CLEANED_SUFFIX",
    "CLEAN_SHUTDOWN_FILE",
    "DELETED_SUFFIX",
    "LOCK_FILE",
    "SWAP_SUFFIX",
    "DirectoryKind",
    "FileName",
    "PartitionDirectory",
    "SegmentFile",
    "delete_directory_name",
    "directory_name",
    "file_name",
    "future_directory_name",
    "iter_headers",
    "iter_stored",
    "iter_unconsumed",
    "parse_directory_name",
    "parse_file_name",
    "stray_directory_name",
]

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

_LONGEST_NAME = 255


class SegmentFile(StrEnum):
    """The files of one segment, all named by its base offset."""

    LOG = ".log"
    OFFSET_INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TRANSACTION_INDEX = ".txnindex"
    PRODUCER_SNAPSHOT = ".snapshot"


class FileName(NamedTuple):
    """A segment file's name taken apart; `suffix` is "", ".deleted", ".cleaned" or ".swap"."""

    base_offset: int
    kind: SegmentFile
    suffix: str = ""


_FILE_NAME = re.compile(
    r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(|\.deleted|\.cleaned|\.swap)"
)


def file_name(base_offset: int, kind: SegmentFile, suffix: str = "") -> str:
    """The offset in twenty digits, so that names sort as offsets do, and the extension."""
    return f"{base_offset:020d}{kind}{suffix}"


def parse_file_name(name: str) -> FileName | None:
    """Undo `file_name`; None for a file that belongs to no segment."""
    match = _FILE_NAME.fullmatch(name)
    if match is None:
        return None
    return FileName(int(match[1]), SegmentFile(match[2]), match[3])


class DirectoryKind(StrEnum):
    """The purpose of a partition's directory, by the end of its name."""

    CURRENT = ""
    DELETE = "-delete"
    FUTURE = "-future"
    STRAY = "-stray"


class PartitionDirectory(NamedTuple):
    """A partition directory's name taken apart. In a long topic's name, DELETE and STRAY have cut off the
    end.
    """

    topic_partition: TopicPartition
    kind: DirectoryKind


_MARKED = re.compile(r"(\S+)-(\S+)\.(\S+)(-delete|-future|-stray)")
_PARTITION = re.compile(r"\d{1,10}")


def directory_name(topic_partition: TopicPartition) -> str:
    """`topic-partition`."""
    return f"{topic_partition.topic}-{topic_partition.partition}"


def delete_directory_name(topic_partition: TopicPartition, unique_id: UUID) -> str:
    """The name for a partition that is being deleted, short enough for every file system."""
    return _capped_name(topic_partition, unique_id, DirectoryKind.DELETE)


def stray_directory_name(topic_partition: TopicPartition, unique_id: UUID) -> str:
    """The name for a partition that this broker should not have, short enough for every file system."""
    return _capped_name(topic_partition, unique_id, DirectoryKind.STRAY)


def future_directory_name(topic_partition: TopicPartition, unique_id: UUID) -> str:
    """The name for a copy that will replace the partition's directory in another log directory."""
    return f"{directory_name(topic_partition)}.{unique_id.hex}{DirectoryKind.FUTURE}"


def _capped_name(topic_partition: TopicPartition, unique_id: UUID, kind: DirectoryKind) -> str:
    tail = f"-{topic_partition.partition}.{unique_id.hex}{kind}"
    return topic_partition.topic[: _LONGEST_NAME - len(tail)] + tail


def parse_directory_name(name: str) -> PartitionDirectory:
    """Undo the functions above. The partition stands after the last dash: topics may have dashes too.

    Raises CorruptStorage for a name that is not a partition's.
    """
    kind = next((k for k in DirectoryKind if k and name.endswith(k)), DirectoryKind.CURRENT)
    if kind and not _MARKED.fullmatch(name):
        raise CorruptStorage(f"directory {name!r} ends in {kind} and has no unique id")
    plain = name[: name.rindex(".")] if kind else name
    topic, _, partition = plain.rpartition("-")
    if not topic or not _PARTITION.fullmatch(partition):
        raise CorruptStorage(f"directory {name!r} is not named topic-partition")
    return PartitionDirectory(TopicPartition(topic, int(partition)), kind)


ReadAt = Callable[[int, int], bytes | memoryview]
"""`read_at(position, size)`: at most `size` bytes, fewer only at the end of the file, as `os.pread`."""


def iter_stored(
    read_at: ReadAt, start: int, end: int, *, chunk_bytes: int = 1 << 20
) -> Iterator[tuple[int, memoryview]]:
    """Yield position and bytes of every entry between two positions, of any magic; checksums are not checked.

    Reads chunks of `chunk_bytes`, and more for a larger entry. Raises CorruptStorage with the position of the
    first bytes that are no entry, or that go beyond `end`; entries before them were yielded.
    """
    chunk_bytes = max(chunk_bytes, BATCH_HEADER_SIZE)
    position = start
    while position < end:
        chunk = memoryview(read_at(position, min(chunk_bytes, end - position)))
        taken = 0
        for entry in _whole_entries(chunk, position):
            yield position + taken, entry
            taken += len(entry)
        if not taken:
            # larger than a chunk, or torn
            chunk_bytes = max(chunk_bytes, _size_of_entry(chunk, position, end))
        position += taken


Consume = Callable[[memoryview, int], int]
"""`consume(entries, position)`: how many bytes of whole entries it has dealt with, 0 for none."""


def iter_unconsumed(
    read_at: ReadAt, start: int, end: int, consume: Consume, *, chunk_bytes: int = 1 << 20
) -> Iterator[tuple[int, memoryview]]:
    """Yield as `iter_stored`, without the entries that `consume` takes.

    It is asked at the begin of each chunk and behind each entry that was yielded, with the rest of the chunk,
    whose last entry may be torn.
    """
    chunk_bytes = max(chunk_bytes, BATCH_HEADER_SIZE)
    position = start
    while position < end:
        chunk, begin = memoryview(read_at(position, min(chunk_bytes, end - position))), position
        while True:
            position += consume(chunk[position - begin :], position)
            entry = next(_whole_entries(chunk[position - begin :], position), None)
            if entry is None:
                break
            yield position, entry
            position += len(entry)
        if position == begin:
            chunk_bytes = max(chunk_bytes, _size_of_entry(chunk, position, end))


def _whole_entries(chunk: memoryview, position: int) -> Iterator[memoryview]:
    taken = 0
    try:
        for entry in _split(chunk, torn_tail=True):
            yield entry
            taken += len(entry)
    except CorruptRecords as error:
        raise CorruptStorage(str(error), position + taken) from None


def _size_of_entry(chunk: memoryview, position: int, end: int) -> int:
    if len(chunk) >= 12:
        size = 12 + int.from_bytes(chunk[8:12], "big", signed=True)
        if len(chunk) < size <= end - position and len(chunk) > 16:
            return size
    raise CorruptStorage(f"the entry at byte {position} is cut off at byte {end}", position)


def iter_headers(read_at: ReadAt, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """The headers of the v2 batches of a log file with their positions, reading nothing else.

    Raises CorruptStorage, with its position, for anything but whole v2 batches between the two positions.
    """
    position = start
    while position < end:
        header = _read_header(memoryview(read_at(position, BATCH_HEADER_SIZE)), position)
        if header.size_in_bytes > end - position:
            raise CorruptStorage(f"the batch at byte {position} is cut off at byte {end}", position)
        yield position, header
        position += header.size_in_bytes


def _read_header(data: memoryview, position: int) -> BatchHeader:
    try:
        if magic_at(data) != 2:
            raise CorruptStorage(f"the entry at byte {position} is of magic {magic_at(data)}", position)
        return read_header(data)
    except CorruptRecords as error:
        raise CorruptStorage(str(error), position) from None
