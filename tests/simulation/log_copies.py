"""Records in the logs of a simulated cluster; a dead broker's log counts as it was left."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from ottla.broker.log.files.checkpoints import read_topic_id
from ottla.protocol.records import iter_records, validate_batches
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.segments import DirectoryKind, parse_directory_name
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.log.files.fake_files import MemoryFiles
    from ottla.broker.log.files.file_system import Files
    from ottla.broker.log.log import Log

_DATA: Final = Path("/data")


class Entry(NamedTuple):
    """One record of a log."""

    epoch: int
    value: bytes
    producer: tuple[int, int, int]
    """Producer id, epoch and sequence of the record."""


@dataclass
class LogCopy:
    """The records of one replica from offset `start` on, and the bytes that they were read from."""

    topic_id: UUID | None
    start: int = 0
    data: bytes = b""
    entries: list[Entry] = field(default_factory=list)
    checked: int = 0
    """Acknowledged records that were found in it, of those in the order of their acknowledgement."""

    @property
    def end(self) -> int:
        """The log end offset."""
        return self.start + len(self.entries)

    def at(self, offset: int) -> Entry | None:
        """The record at an offset."""
        index = offset - self.start
        return self.entries[index] if 0 <= index < len(self.entries) else None

    def read(self, log: Log) -> None:
        """Read what is new in a log; after a truncation read it anew."""
        self.take(
            next(iter(log.segments)).base_offset,
            b"".join(one.file.pread(one.size, 0) for one in log.segments),
        )

    def take(self, start: int, data: bytes) -> None:
        """Take over what the segments hold now."""
        if len(data) == len(self.data) and data == self.data:
            return
        if not data.startswith(self.data):
            self.entries, self.data, self.checked = [], b"", 0
        if not self.data:
            self.start = start
        self.entries += entries_of(data[len(self.data) :])
        self.data = data


def entries_of(batches: bytes) -> list[Entry]:
    """Read whole batches."""
    if not batches:
        return []
    found = []
    for header in validate_batches(batches):
        batch = batches[header.position : header.position + header.size_in_bytes]
        for number, record in enumerate(iter_records(batch)):
            has_sequence = header.producer_id >= 0 and not header.is_control
            sequence = header.base_sequence + number if has_sequence else -1
            producer = (header.producer_id, header.producer_epoch, sequence)
            found.append(Entry(header.partition_leader_epoch, bytes(record.value or b""), producer))
    return found


class LogCopies:
    """The copies of all replicas, by broker and partition."""

    def __init__(self) -> None:
        self._copies: dict[tuple[int, TopicPartition], LogCopy] = {}

    def of(self, broker_id: int, partition: TopicPartition) -> LogCopy | None:
        """The last known content of a replica."""
        return self._copies.get((broker_id, partition))

    def update(self, broker_id: int, log: Log) -> LogCopy:
        """Read a log that may have changed; while it is truncated, its files."""
        key = (broker_id, log.topic_partition)
        copy = self._copies.get(key)
        if copy is None or copy.topic_id != log.topic_id:
            copy = self._copies[key] = LogCopy(log.topic_id)
        if log.is_truncating:
            copy.take(*_read_segments(log.files, log.directory))
        else:
            copy.read(log)
        return copy

    def keep(self, broker_id: int, partitions: set[TopicPartition]) -> None:
        """Forget the replicas of a broker that it has deleted."""
        for key in [one for one in self._copies if one[0] == broker_id and one[1] not in partitions]:
            del self._copies[key]

    def read_disk(self, broker_id: int, disk: MemoryFiles) -> None:
        """Read the replicas of a broker that is down from its disk, with those that it has just made."""
        for name in disk.list(_DATA):
            if disk.is_dir(_DATA / name) and (found := _partition_of(name)) is not None:
                topic_id = read_topic_id(disk, _DATA / name)
                if topic_id is not None and (broker_id, found) not in self._copies:
                    self._copies[broker_id, found] = LogCopy(topic_id)
        for key, copy in list(self._copies.items()):
            if key[0] != broker_id:
                continue
            directory = _DATA / f"{key[1].topic}-{key[1].partition}"
            if not disk.is_dir(directory):
                del self._copies[key]
                continue
            copy.take(*_read_segments(disk, directory))


def _read_segments(files: Files, directory: Path) -> tuple[int, bytes]:
    """Return the base offset of a partition's first segment file, and the bytes of all of them."""
    segments = sorted(one for one in files.list(directory) if one.endswith(".log"))
    return int(segments[0][:-4]), b"".join(files.read(directory / one) for one in segments)


def _partition_of(directory: str) -> TopicPartition | None:
    """Return the partition whose log a directory holds, if it holds one."""
    try:
        name = parse_directory_name(directory)
    except CorruptStorage:
        return None
    return name.topic_partition if name.kind is DirectoryKind.CURRENT else None
