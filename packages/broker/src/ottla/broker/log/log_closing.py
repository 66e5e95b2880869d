"""Close a log: seal and flush it, or abandon it when its directory was renamed or has failed."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.log.append.log_end import LogEnd
    from ottla.broker.log.flushing import Flushing
    from ottla.broker.log.segments.segments import Segments


class Closeable(Protocol):
    """The parts of a log that closing it reads and changes."""

    topic_partition: TopicPartition
    directory: Path
    offline: OSError | None

    @property
    def is_truncating(self) -> bool: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def segments(self) -> Segments: ...

    @property
    def log_end(self) -> LogEnd: ...

    @property
    def flushing(self) -> Flushing: ...

    def fail(self, error: OSError) -> None: ...


def close(log: Closeable) -> None:
    """Close a log so that the next start needs no recovery. Blocks. Raises `KafkaStorageError`."""
    if log.is_truncating or log.segments.replacing is not None:
        raise KafkaStorageError(f"{log.topic_partition}: its segments are being changed")
    if log.offline is None:
        try:
            log.log_end.seal()
            _rebuild_lost(log)
            log.flushing.segment_sealed(log.log_end.segment)
            log.flushing.take_snapshot(log.log_end_offset)
        except OSError as error:
            log.fail(error)
            raise KafkaStorageError(f"{log.topic_partition} cannot be closed: {error}") from error
        log.flushing.flush()
    abandon(log)


def _rebuild_lost(log: Closeable) -> None:
    for segment in log.segments:
        if segment.has_lost_index:
            segment.close_indexes()
            segment.rebuild_lost()
            segment.indexes_lost = False


def abandon(log: Closeable) -> None:
    """Close all files of a log without a write."""
    log.log_end.max_plain_bytes = 0
    log.log_end.write = _no_write  # the old one would keep a deleted file open, and its room in use
    log.segments.close()
    log.offline = log.offline or OSError(errno.EBADF, "the log was closed")


def moved_to(log: Closeable, directory: Path) -> None:
    """Follow the rename of a log's directory: the log is being deleted and takes no more appends."""
    log.offline = OSError(errno.ENOENT, "the log was deleted")
    follow_rename(log, directory)
    abandon(log)


def follow_rename(log: Closeable, directory: Path) -> None:
    """Follow the rename of a log's directory: the log goes on there."""
    log.directory = directory
    log.segments.moved_to(directory)


def _no_write(data: bytes | bytearray | memoryview, position: int) -> None:
    raise OSError(errno.EBADF, "the log was closed")
