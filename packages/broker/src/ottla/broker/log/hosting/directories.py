"""The log directories of one broker: locks, identity, checkpoints, and the placement of new logs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from ottla.broker.log.files.checkpoints import (
    read_meta_properties,
    read_offsets,
    write_meta_properties,
    write_offsets,
)
from ottla.broker.log.files.file_system import Files, write_atomically
from ottla.broker.log.files.file_system import Lock as FileLock
from ottla.protocol.errors import KafkaStorageError, LogDirNotFound
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.checkpoints import (
    CLEANER_OFFSETS_FILE,
    LOG_START_OFFSETS_FILE,
    RECOVERY_POINTS_FILE,
    MetaProperties,
)
from ottla.protocol.storage.segments import CLEAN_SHUTDOWN_FILE, LOCK_FILE
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from ottla.broker.log.log import Log

_log = logging.getLogger(__name__)

MAX_PREFERRED: Final = 10_000
"""Partitions whose directory is remembered before they are created."""


LEAST_ROOM_BYTES: Final = 1 << 30
LEAST_ROOM_PART: Final = 0.05
"""A full directory has room again from that much on, or from that part of a smaller volume on."""
PROBE_FILE: Final = ".room"
PROBE_BYTES: Final = 1 << 20
CALM_MS: Final = 600_000
"""A directory that had room for this long is not taken for one that fills up again and again."""


class LogDirectoryRefused(RuntimeError):
    """The log directories cannot be used; the message is one line that says what to do."""


@frozen
class PartitionSize:
    """The size and the end of one log in a log directory."""

    topic_partition: TopicPartition
    size_bytes: int
    log_end_offset: int
    is_future: bool = False
    """Whether it is a copy that will take the place of a log in another directory."""


@frozen
class DirectoryDescription:
    """One log directory as DescribeLogDirs shows it."""

    path: Path
    error: OSError | None
    partitions: list[PartitionSize]
    total_bytes: int = -1
    usable_bytes: int = -1


@dataclass(slots=True, eq=False, repr=False)
class DirectoryRoom:
    """Whether a log directory is full: from a write that found no room, until it has had room for a while.

    Pure. A directory that fills up again soon has to have room for twice as long the next time: retention may
    free a segment, which the next minute takes, and leaderships should not come and go with it.
    """

    is_full: bool = False
    backoff_ms: float = 0.0
    """How long it has to have room before it is no longer full."""
    _changed_ms: float = float("-inf")
    _room_since_ms: float | None = None

    def write_failed(self, now_ms: float, first_backoff_ms: float, max_backoff_ms: float) -> bool:
        """A write found no room; returns whether the directory is full from now on and was not before."""
        self._room_since_ms = None
        if self.is_full:
            return False
        is_soon = now_ms - self._changed_ms < CALM_MS
        self.backoff_ms = min(2 * self.backoff_ms, max_backoff_ms) if is_soon else first_backoff_ms
        self.is_full, self._changed_ms = True, now_ms
        return True

    def looked(self, has_room: bool, now_ms: float) -> bool:
        """The volume was asked; returns whether the directory has room from now on and had none before."""
        if not self.is_full or not has_room:
            self._room_since_ms = None
            return False
        if self._room_since_ms is None:
            self._room_since_ms = now_ms
        if now_ms - self._room_since_ms < self.backoff_ms:
            return False
        self.is_full, self._changed_ms = False, now_ms
        return True


@dataclass(slots=True, eq=False, repr=False)
class LogDirectory:
    """One of `log.dirs`, with the logs in it."""

    path: Path
    files: Files
    logs: dict[TopicPartition, Log] = field(default_factory=dict)
    futures: dict[TopicPartition, Log] = field(default_factory=dict)
    """Copies that will take the places of logs in other directories."""
    lock: FileLock | None = None
    clean: bool = False
    """Whether the last broker closed all its logs before it stopped."""
    offline: OSError | None = None
    """Why the directory cannot be used any more."""
    room: DirectoryRoom = field(default_factory=DirectoryRoom)
    meta: MetaProperties | None = None
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    """The content of the checkpoint file."""
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    """The content of the checkpoint file."""
    cleaner_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The content of the checkpoint file."""
    names_changed: bool = False
    """Whether a partition's directory was renamed and the new name may not be on the disk."""
    _points_lock: Lock = field(default_factory=Lock)
    _starts_lock: Lock = field(default_factory=Lock)
    _cleaner_lock: Lock = field(default_factory=Lock)
    """Several threads write checkpoints, but each file one at a time."""

    # ---- start and stop

    def read(self) -> None:
        """Read the checkpoints and whether the last stop was clean; from here on it is not. Blocks."""
        marker = self.path / CLEAN_SHUTDOWN_FILE
        self.clean = self.files.exists(marker)
        if self.clean:
            self.files.unlink(marker)
            self.files.sync_dir(self.path)
        self.recovery_points = read_offsets(self.files, self.path / RECOVERY_POINTS_FILE) or {}
        self.log_starts = read_offsets(self.files, self.path / LOG_START_OFFSETS_FILE) or {}
        self.cleaner_offsets = read_offsets(self.files, self.path / CLEANER_OFFSETS_FILE) or {}

    def mark_clean(self) -> None:
        """Write the checkpoints and that the stop was clean. Blocks."""
        self.write_checkpoints()
        content = json.dumps({"version": 0, "brokerEpoch": -1}).encode()
        write_atomically(self.files, self.path / CLEAN_SHUTDOWN_FILE, content)

    # ---- checkpoints

    def write_checkpoints(self) -> None:
        """Write recovery points and log start offsets. Blocks."""
        self.write_recovery_points()
        self.write_log_starts()

    def write_recovery_points(self) -> None:
        """Write the recovery points of all logs. Blocks."""
        # Offsets are read under the lock: one lowered meanwhile must not be written as it was before.
        with self._points_lock:
            points = {tp: log.recovery_point for tp, log in list(self.logs.items())}
            write_offsets(self.files, self.path / RECOVERY_POINTS_FILE, points)
            self.recovery_points = points

    def write_log_starts(self) -> None:
        """Write the log start offsets of all logs. Blocks."""
        with self._starts_lock:
            starts = {tp: log.log_start_offset for tp, log in list(self.logs.items())}
            write_offsets(self.files, self.path / LOG_START_OFFSETS_FILE, starts)
            self.log_starts = starts

    def write_cleaner_offsets(self) -> None:
        """Write where the last cleaning of each compacted log ended. Blocks."""
        with self._cleaner_lock:
            self._write_cleaner_offsets()

    def _write_cleaner_offsets(self) -> None:
        offsets = {
            tp: log.cleaned_offset for tp, log in list(self.logs.items()) if log.cleaned_offset is not None
        }
        write_offsets(self.files, self.path / CLEANER_OFFSETS_FILE, offsets)
        self.cleaner_offsets = offsets

    def write_lowered(self) -> None:
        """Write the offsets that a truncation has lowered. Blocks."""
        self.write_recovery_points()
        logs = self.logs
        with self._cleaner_lock:  # what another thread writes may have been read before the truncation
            written = self.cleaner_offsets.items()
            if any(tp in logs and (logs[tp].cleaned_offset or 0) < at for tp, at in written):
                self._write_cleaner_offsets()

    # ---- deleted partitions

    def remembers_deleted(self, topic_partition: TopicPartition) -> bool:
        """Whether the disk may still hold names or offsets of a deleted partition of this name."""
        return (
            self.names_changed
            or topic_partition in self.recovery_points
            or topic_partition in self.log_starts
            or topic_partition in self.cleaner_offsets
        )

    def forget_deleted(self, topic_partition: TopicPartition) -> None:
        """Make sure that a deleted partition neither reappears nor lends its offsets to a new one. Blocks."""
        if self.names_changed:
            self.files.sync_dir(self.path)
            self.names_changed = False
        if topic_partition in self.recovery_points or topic_partition in self.log_starts:
            self.write_checkpoints()
        if topic_partition in self.cleaner_offsets:
            self.write_cleaner_offsets()

    # ---- room

    def has_room(self) -> bool:
        """Return whether the volume has a part of its space free, and gives some of it. Blocks.

        Quotas, and space that the system reserves, show only where space is taken.
        """
        try:
            total_bytes, usable_bytes = self.files.space(self.path)
            if usable_bytes < min(LEAST_ROOM_BYTES, LEAST_ROOM_PART * total_bytes):
                return False
            probe = self.path / PROBE_FILE
            try:
                self.files.open(probe, create=True).reserve(0, PROBE_BYTES)
            finally:
                self.files.unlink(probe)
        except OSError:
            return False
        return True

    def describe(self) -> DirectoryDescription:
        """Describe the directory and its logs. Asks the system for free space, nothing else.

        A full directory has no usable bytes, although the volume may have some.
        """
        if self.offline is not None:
            return DirectoryDescription(self.path, self.offline, [])
        sizes = [
            PartitionSize(tp, log.segments.size_bytes, log.log_end_offset, is_future)
            for is_future, logs in ((False, self.logs), (True, self.futures))
            for tp, log in logs.items()
        ]
        try:
            total_bytes, usable_bytes = self.files.space(self.path)
            usable_bytes = 0 if self.room.is_full else usable_bytes
            return DirectoryDescription(self.path, None, sizes, total_bytes, usable_bytes)
        except OSError as error:
            return DirectoryDescription(self.path, error, [])


class LogDirectories:
    """All of `log.dirs`: locks, owners, and which of them are online."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._all: list[LogDirectory] = []
        self._preferred: dict[TopicPartition, LogDirectory] = {}

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._all)

    def online(self) -> list[LogDirectory]:
        """The directories that can be used."""
        return [directory for directory in self._all if directory.offline is None]

    @property
    def has_offline(self) -> bool:
        """Whether any cannot be used."""
        return any(directory.offline for directory in self._all)

    @property
    def all_offline(self) -> bool:
        """Whether none can be used."""
        return all(directory.offline for directory in self._all)

    @property
    def full_count(self) -> int:
        """How many have no room."""
        return sum(1 for directory in self.online() if directory.room.is_full)

    @property
    def offline_count(self) -> int:
        """How many cannot be used."""
        return sum(1 for directory in self._all if directory.offline)

    def of(self, log: Log) -> LogDirectory:
        """The directory that a log is in."""
        path = log.directory.parent
        return next(directory for directory in self._all if directory.path == path)

    def named(self, path: str) -> LogDirectory:
        """The directory with this path. Raises `LogDirNotFound`, and `KafkaStorageError` if it is offline."""
        found = self._find(path)
        if found is None:
            try:
                found = self._find(str(Path(path).resolve()))
            except (OSError, ValueError):  # no path at all: a zero byte, a loop of links
                raise LogDirNotFound(f"{path!r} is not in log.dirs") from None
        if found is None:
            raise LogDirNotFound(f"{path} is not in log.dirs")
        if found.offline is not None:
            raise KafkaStorageError(f"{path} is offline")
        return found

    def _find(self, path: str) -> LogDirectory | None:
        return next((directory for directory in self._all if str(directory.path) == path), None)

    def prefer(self, topic_partition: TopicPartition, directory: LogDirectory) -> None:
        """Create the log of this partition in a directory, if it is created; bounded, the oldest go first."""
        self._preferred.pop(topic_partition, None)
        self._preferred[topic_partition] = directory
        if len(self._preferred) > MAX_PREFERRED:
            del self._preferred[next(iter(self._preferred))]

    def for_new_log(self, topic_partition: TopicPartition | None = None) -> LogDirectory:
        """The preferred directory of a partition, or the one with the fewest logs of those with room.

        Raises `KafkaStorageError` when all are offline.
        """
        online = self.online()
        if not online:
            raise KafkaStorageError("all log directories are offline")
        preferred = self._preferred.pop(topic_partition, None) if topic_partition else None
        if preferred is not None and preferred.offline is None:
            return preferred
        return min(online, key=lambda directory: (directory.room.is_full, len(directory.logs)))

    # ---- locks

    def lock(self, names: Iterable[str]) -> None:
        """Lock the directories, creating missing ones, and read their owners. Blocks.

        Raises `LogDirectoryRefused` for one that another broker uses, that is named twice or inside of
        another, or that belongs to another broker or cluster; also when none can be used.
        """
        for path in checked_paths(names):
            directory = LogDirectory(path, self._files)
            self._all.append(directory)
            try:
                self._lock_one(directory)
            except OSError as error:
                _log.error("log directory offline", extra={"path": str(path), "reason": str(error)})
                directory.offline = error
            except LogDirectoryRefused:
                self.unlock()
                raise
        if self.all_offline:
            first = self._all[0]
            self.unlock()
            raise LogDirectoryRefused(f"no log directory can be used: {first.path}: {first.offline}")

    def _lock_one(self, directory: LogDirectory) -> None:
        path = directory.path
        self._make_durably(path)
        directory.lock = self._files.lock(path / LOCK_FILE)
        if directory.lock is None:
            raise LogDirectoryRefused(
                f"another broker uses the log directory {path}: stop it, or give this one another log.dirs"
            )
        try:
            directory.meta = read_meta_properties(self._files, path)
        except CorruptStorage as error:
            raise LogDirectoryRefused(
                f"{path}/meta.properties cannot be used ({error}): restore it, or remove it if the directory "
                "belongs to this broker"
            ) from None

    def _make_durably(self, path: Path) -> None:
        missing = [folder for folder in (path, *path.parents) if not self._files.exists(folder)]
        self._files.make_dirs(path)
        for folder in missing:
            self._files.sync_dir(folder.parent)

    def unlock(self) -> None:
        """Release all locks."""
        for directory in self._all:
            if directory.lock is not None:
                directory.lock.release()
                directory.lock = None

    # ---- identity

    @property
    def meta_properties(self) -> MetaProperties | None:
        """The broker and cluster the directories belong to; None when they belong to none.

        Raises `LogDirectoryRefused` when they belong to several.
        """
        known = {directory.meta for directory in self._all if directory.meta is not None}
        if len(known) > 1:
            owners = "; ".join(
                f"{directory.path}: broker {directory.meta.broker_id} of cluster {directory.meta.cluster_id}"
                for directory in self._all
                if directory.meta is not None
            )
            raise LogDirectoryRefused(f"the log directories belong to different brokers: {owners}")
        return next(iter(known), None)

    def identify(self, broker_id: int, cluster_id: str) -> None:
        """Write the owner into every directory. Raises `LogDirectoryRefused` when another one is there."""
        stored, mine = self.meta_properties, MetaProperties(cluster_id, broker_id)
        if stored is not None:
            _check_identity(self._all[0].path, stored, mine)
        for directory in self.online():
            if directory.meta != mine:
                write_meta_properties(self._files, directory.path, mine)
                directory.meta = mine


def checked_paths(names: Iterable[str]) -> list[Path]:
    """The directories by their real paths.

    Raises `LogDirectoryRefused` for a directory that is named twice or is inside of another one.
    """
    paths = [Path(name).resolve() for name in names]
    for number, path in enumerate(paths):
        for other in paths[number + 1 :]:
            if path == other:
                raise LogDirectoryRefused(f"log.dirs names {path} twice: name every directory once")
            if path in other.parents or other in path.parents:
                inner, outer = (other, path) if path in other.parents else (path, other)
                raise LogDirectoryRefused(
                    f"log.dirs has {inner} inside of {outer}: use directories side by side"
                )
    return paths


def _check_identity(path: Path, stored: MetaProperties, mine: MetaProperties) -> None:
    if stored.broker_id not in (None, mine.broker_id):
        raise LogDirectoryRefused(
            f"{path} belongs to broker {stored.broker_id}, not to {mine.broker_id}: "
            f"set broker.id={stored.broker_id} or use another log.dirs"
        )
    if stored.cluster_id not in (None, mine.cluster_id):
        raise LogDirectoryRefused(
            f"{path} belongs to cluster {stored.cluster_id}, not to {mine.cluster_id}: "
            "check zookeeper.connect or use another log.dirs"
        )
