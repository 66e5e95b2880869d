"""The logs of a log directory: find those that are there, open them, and create new ones."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.log.files.file_system import NO_SPACE
from ottla.broker.log.recovery import cut_bytes
from ottla.broker.log.recovery.recovery import open_log
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.segments import DirectoryKind, PartitionDirectory, parse_directory_name

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.config import LogConfig
    from ottla.broker.log.files.file_system import Files
    from ottla.broker.log.files.open_files import OpenSegments
    from ottla.broker.log.files.pending_deletions import PendingDeletions
    from ottla.broker.log.hosting.directories import LogDirectory
    from ottla.broker.log.log import Log
    from ottla.broker.runtime.environment import Environment
    from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)


class FoundLog(NamedTuple):
    """A directory of a partition: its name taken apart, and where it is."""

    name: PartitionDirectory
    path: Path

    @property
    def is_future(self) -> bool:
        """Whether it is the copy of a log in another log directory."""
        return self.name.kind is DirectoryKind.FUTURE


class LogOpener:
    """Opens and creates the logs of one broker. What it returns belongs to the caller; it keeps none."""

    def __init__(
        self,
        files: Files,
        environment: Environment,
        deletions: PendingDeletions,
        open_segments: OpenSegments,
        directory_failed: Callable[[LogDirectory, OSError], None],
        failure_of: Callable[[LogDirectory], Callable[[OSError], None]],
        directory_full: Callable[[LogDirectory, OSError], None],
        no_room: Callable[[LogDirectory, OSError], None],
    ) -> None:
        self._files = files
        self._environment = environment
        self._deletions = deletions
        self._open_segments = open_segments
        self._directory_failed = directory_failed
        """Takes a directory offline; for the event loop."""
        self._failure_of = failure_of
        """Returns what a log of a directory calls when its files fail; threads call it, too."""
        self._directory_full = directory_full
        """Marks a directory as full; for the event loop."""
        self._no_room = no_room
        """Notes that a write into a directory found no room; threads call it, too."""

    # ---- logs that are there

    def find(self, directory: LogDirectory) -> Iterator[FoundLog]:
        """List the logs in a directory, and have the leftovers of deleted ones removed. Raises OSError."""
        for name in self._files.list(directory.path):
            path = directory.path / name
            if not self._files.is_dir(path):
                continue
            try:
                parsed = parse_directory_name(name)
            except CorruptStorage:
                continue  # not a partition directory
            match parsed.kind:
                case DirectoryKind.DELETE:
                    self._deletions.add(0, [path], directory)
                case DirectoryKind.CURRENT | DirectoryKind.FUTURE:
                    yield FoundLog(parsed, path)
                case _:
                    log.info("unknown directory ignored", extra={"path": str(path)})

    def open(
        self, directory: LogDirectory, found: FoundLog, log_config: Callable[[str], LogConfig]
    ) -> Log | None:
        """Open a log, after a crash recover and flush it; None if its disk fails. Blocks.

        Without room for the flush it is served, and recovered once more at the next start.

        `log_config` gives a topic's configuration. Raises OSError.
        """
        topic_partition = found.name.topic_partition
        # The checkpoints know only logs under the partition's own name.
        is_future = found.is_future
        opened = open_log(
            self._files,
            found.path,
            topic_partition,
            log_config(topic_partition.topic),
            clean=directory.clean,
            log_start_offset=0 if is_future else directory.log_starts.get(topic_partition, 0),
            recovery_point=0 if is_future else directory.recovery_points.get(topic_partition, 0),
            cleaned_offset=None if is_future else directory.cleaner_offsets.get(topic_partition),
            chance=self._environment.random,
            failed=self._failure_of(directory),
            full=partial(self._no_room, directory),
            write_lowered=directory.write_lowered,
            open_segments=self._open_segments,
        )
        if not directory.clean:
            try:
                opened.flush()
            except KafkaStorageError:
                if opened.offline is not None:
                    return None
        opened.flushing.flushed_ms = self._environment.clock.now_ms()
        self._delete_cut_bytes(directory, opened)
        return opened

    def _delete_cut_bytes(self, directory: LogDirectory, opened: Log) -> None:
        for path in cut_bytes.kept_files(self._files, opened.directory):
            due_ms = self._files.modified_ms(path) + cut_bytes.KEPT_MS
            self._deletions.add(due_ms, [path], directory)

    # ---- new logs

    def create(
        self,
        directory: LogDirectory,
        path: Path,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        config: LogConfig,
    ) -> Log:
        """Create an empty log at `path` in a directory.

        Raises `KafkaStorageError`, and leaves no file at `path` then; what was there before stays.
        """
        if self._files.exists(path):
            raise KafkaStorageError(f"{path} is in the way: it holds a log that was not opened")
        try:
            self._check_exists(directory)
            directory.forget_deleted(topic_partition)
            return self._open_new(directory, path, topic_partition, topic_id, config)
        except OSError as error:
            self._remove_begun(path)
            if error.errno in NO_SPACE:
                self._directory_full(directory, error)
            raise KafkaStorageError(f"no log can be created in {directory.path}: {error}") from error

    def _check_exists(self, directory: LogDirectory) -> None:
        """Take a removed directory offline: one that is made again would lack its lock and its owner.

        Raises OSError.
        """
        if not self._files.is_dir(directory.path):
            error = FileNotFoundError(errno.ENOENT, "the directory was removed", str(directory.path))
            self._directory_failed(directory, error)
            raise error

    def _open_new(
        self,
        directory: LogDirectory,
        path: Path,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        config: LogConfig,
    ) -> Log:
        created = open_log(
            self._files,
            path,
            topic_partition,
            config,
            clean=True,
            topic_id=topic_id,
            is_new=True,
            chance=self._environment.random,
            failed=self._failure_of(directory),
            full=partial(self._no_room, directory),
            write_lowered=directory.write_lowered,
            open_segments=self._open_segments,
        )
        created.flushing.flushed_ms = self._environment.clock.now_ms()
        return created

    def _remove_begun(self, path: Path) -> None:
        """Remove the files of a log that could not be created: the next start would open them as a log."""
        try:
            if self._files.exists(path):
                self._files.remove_tree(path)
        except OSError as error:
            log.warning("directory not deleted", extra={"path": str(path), "reason": str(error)})
