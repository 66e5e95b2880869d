"""Copies of logs in other log directories, which take their places: Kafka's `-future` logs.

A copy is filled under a `-future` name. Then it gets the partition's name, marked as a copy, while the log in
the other directory still takes appends; so a start may find a partition twice, one of them marked, and goes
on with the one that ends later. Only when all of the copy is on the disk is the older log renamed away. Where
the older log's directory has failed before that, the mark says that the copy has taken its place: the
partition is served without that directory, and the older log is discarded when the directory returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.broker.log.files.file_system import write_atomically
from ottla.broker.log.state.outcomes import Failed, LogStartMoved, TookPlace
from ottla.protocol.errors import InvalidTopicException
from ottla.protocol.storage.segments import delete_directory_name, directory_name, future_directory_name

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.log.files.file_system import Files
    from ottla.broker.log.files.pending_deletions import PendingDeletions
    from ottla.broker.log.hosting.directories import LogDirectories, LogDirectory
    from ottla.broker.log.log import Log
    from ottla.protocol.topics import TopicPartition

_log = logging.getLogger(__name__)

MARKER: Final = "copy-of-other-directory"
"""The file that marks a copy under the partition's own name, beside the log that it replaces elsewhere."""
_TOOK_PLACE: Final = b"took its place"
"""The content of that file once the older log is obsolete."""
LONGEST_NAME: Final = 255


class FutureLogs:
    """The copies of one broker, by partition. Lives on the event loop; what blocks runs on threads."""

    def __init__(
        self,
        files: Files,
        directories: LogDirectories,
        deletions: PendingDeletions,
        unique_id: Callable[[], UUID],
        now_ms: Callable[[], int],
    ) -> None:
        self._files = files
        self._directories = directories
        self._deletions = deletions
        self._unique_id = unique_id
        self._now_ms = now_ms
        self._all: dict[TopicPartition, Log] = {}
        self._replaced: dict[TopicPartition, tuple[Log, Log]] = {}
        """The copies that have taken the places of older logs, and those, until their files are deleted."""

    def __iter__(self) -> Iterator[tuple[TopicPartition, Log]]:
        return iter(list(self._all.items()))

    @property
    def replaced(self) -> list[TopicPartition]:
        """The partitions whose older logs are still there, beside the copies that took their places."""
        return list(self._replaced)

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The copy of a partition's log."""
        return self._all.get(topic_partition)

    def add(self, directory: LogDirectory, copy: Log) -> None:
        """Take in a copy that was created, or found at a start; of two, the one found first stays."""
        if copy.topic_partition in self._all:
            self._remove_files(directory, copy)
            return
        self._all[copy.topic_partition] = directory.futures[copy.topic_partition] = copy

    def path_in(self, directory: LogDirectory, topic_partition: TopicPartition) -> Path:
        """A new name for a copy. Raises `InvalidTopicException` where that would be too long."""
        name = future_directory_name(topic_partition, self._unique_id())
        if len(name.encode()) > LONGEST_NAME:
            raise InvalidTopicException(f"{topic_partition} cannot be moved: its topic's name is too long")
        return directory.path / name

    def drop(self, topic_partition: TopicPartition) -> None:
        """Delete a copy, if there is one."""
        copy = self._all.pop(topic_partition, None)
        if copy is not None:
            directory = self._directories.of(copy)
            directory.futures.pop(topic_partition, None)
            self._remove_files(directory, copy)

    def partition_deleted(self, topic_partition: TopicPartition) -> None:
        """Delete a copy, and a log that a copy has replaced: a start would take it for the log."""
        self.drop(topic_partition)
        _, older = self._replaced.pop(topic_partition, (None, None))
        if older is not None and self.is_named(older):
            self._remove_files(self._directories.of(older), older)

    def directory_failed(self, directory: LogDirectory, error: OSError) -> None:
        """Forget the copies in a directory that went offline; their files stay."""
        for topic_partition, copy in directory.futures.items():
            copy.apply(Failed(error))
            self._all.pop(topic_partition, None)
        directory.futures = {}
        for topic_partition, (copy, older) in list(self._replaced.items()):
            if self._directories.of(copy) is directory:
                del self._replaced[topic_partition]
                older.abandon()

    def _remove_files(self, directory: LogDirectory, removed: Log) -> None:
        try:
            self._rename_away(directory, removed)
        except OSError as error:
            _log.warning(
                "directory not deleted", extra={"path": str(removed.directory), "reason": str(error)}
            )
            removed.abandon()

    def _rename_away(self, directory: LogDirectory, removed: Log) -> None:
        target = directory.path / delete_directory_name(removed.topic_partition, self._unique_id())
        self._files.rename(removed.directory, target)
        removed.deleted(target)
        directory.names_changed = True
        due_ms = self._now_ms() + removed.config.file_delete_delay_ms
        self._deletions.add(due_ms, [target], directory)

    # ---- taking the place of the older log

    def is_named(self, log: Log) -> bool:
        """Whether a log has the partition's own name."""
        return log.directory.name == directory_name(log.topic_partition)

    async def give_name(self, copy: Log) -> None:
        """Give a copy the partition's own name, durably. Raises OSError and `KafkaStorageError`."""
        await copy.durable()
        await asyncio.to_thread(self._mark, copy.directory)
        while copy.commit.busy:  # a flush knows the files by their names
            await copy.durable()
        if self._all.get(copy.topic_partition) is not copy:
            return  # dropped meanwhile
        target = copy.directory.with_name(directory_name(copy.topic_partition))
        self._files.rename(copy.directory, target)
        copy.renamed(target)
        await asyncio.to_thread(self._files.sync_dir, target.parent)

    def _mark(self, directory: Path, content: bytes = b"") -> None:
        write_atomically(self._files, directory / MARKER, content)
        self._files.sync_dir(directory)

    def exchange(self, copy: Log, older: Log) -> None:
        """Make a named copy the partition's log; both hold the same records, and nothing is awaited.

        The caller gives the high watermark on.
        """
        topic_partition = copy.topic_partition
        copy.apply(
            TookPlace(older.leader_epochs.entries, older.log_start_offset, older.producers, older.config)
        )
        source, target = self._directories.of(older), self._directories.of(copy)
        del self._all[topic_partition], target.futures[topic_partition]
        del source.logs[topic_partition]
        target.logs[topic_partition] = copy
        self._replaced[topic_partition] = (copy, older)

    async def retire(self, topic_partition: TopicPartition) -> None:
        """Delete the older log of a replaced pair once all of the copy is on the disk.

        Raises OSError and `KafkaStorageError`; then it is to be called again.
        """
        pair = self._replaced[topic_partition]
        copy, older = pair
        source, target = self._directories.of(older), self._directories.of(copy)
        if older.offline is None and source.offline is None:
            await older.durable()  # produce requests may wait for it
        await copy.durable()
        await asyncio.to_thread(target.write_checkpoints)
        if self._replaced.get(topic_partition) is not pair:
            return  # deleted meanwhile
        if source.offline is not None:
            older.abandon()
        else:
            if self.is_named(older):
                self._rename_away(source, older)
            await asyncio.to_thread(self._files.sync_dir, source.path)
        # A directory that is offline may hold an older log: this one, or that of an earlier move.
        settle = self.mark_as_current if self._directories.has_offline else self.unmark
        await asyncio.to_thread(settle, copy)
        self._replaced.pop(topic_partition, None)

    # ---- at a start

    def choose(self, log: Log, other: Log) -> tuple[Log, Log] | None:
        """Of two logs of a partition, return the one to go on with and the other; None if none is a copy."""
        marked = [self.is_marked(log), self.is_marked(other)]
        if not any(marked):
            return None

        def rank(ranked: Log, is_marked: bool) -> tuple[int, int, bool]:
            return ranked.leader_epochs.latest, ranked.log_end_offset, is_marked

        is_obsolete = any(map(self.took_place, (log, other)))
        if is_obsolete and sum(marked) == 1:
            kept, left = (log, other) if marked[0] else (other, log)
        else:
            kept, left = (log, other) if rank(log, marked[0]) >= rank(other, marked[1]) else (other, log)
        if is_obsolete:
            self.mark_as_current(kept)  # a third log, in a directory that is offline, stays obsolete
        # The checkpoint of the copy's directory may not know yet what was deleted from the older log.
        start = min(left.log_start_offset, kept.log_end_offset)
        if start > kept.log_start_offset:
            kept.apply(LogStartMoved(start))
        return kept, left

    def discard(self, removed: Log) -> None:
        """Remove a log that `choose` has not chosen."""
        self._remove_files(self._directories.of(removed), removed)

    def is_marked(self, log: Log) -> bool:
        """Whether a log is a copy whose older log may still be somewhere. Blocks."""
        return self._files.exists(log.directory / MARKER)

    def took_place(self, log: Log) -> bool:
        """Whether a log is a copy whose older log is obsolete, wherever that is. Blocks."""
        return self.is_marked(log) and self._files.read(log.directory / MARKER) == _TOOK_PLACE

    def mark_as_current(self, log: Log) -> None:
        """Note that a log was a copy and has taken the older log's place. Blocks."""
        self._mark(log.directory, _TOOK_PLACE)

    def unmark(self, log: Log) -> None:
        """Forget that a log was a copy. Blocks."""
        self._files.unlink(log.directory / MARKER)
        self._files.sync_dir(log.directory)

    def drop_orphans(self, current: Callable[[TopicPartition], Log | None]) -> None:
        """Delete copies of partitions that are gone, or that are in the same directory."""
        for topic_partition, copy in self:
            of = current(topic_partition)
            if of is None or of.directory.parent == copy.directory.parent:
                self.drop(topic_partition)
