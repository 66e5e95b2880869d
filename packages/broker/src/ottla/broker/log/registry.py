"""The logs that one broker hosts, as Kafka's LogManager: open, close, find, create, delete."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from uuid import UUID

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log import cut_bytes, log_closing
from ottla.broker.log.directories import (
    DirectoryDescription,
    LogDirectories,
    LogDirectory,
    LogDirectoryRefused,
)
from ottla.broker.log.files import RUN_OUT, DiskFiles, Files
from ottla.broker.log.future_logs import FutureLogs
from ottla.broker.log.log import Log
from ottla.broker.log.metrics import LogMetrics
from ottla.broker.log.open_files import OpenSegments, PartitionRoom
from ottla.broker.log.pending_deletions import PendingDeletions
from ottla.broker.log.recovery import open_log
from ottla.protocol.errors import KafkaError, KafkaStorageError
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.checkpoints import MetaProperties
from ottla.protocol.storage.segments import (
    DirectoryKind,
    PartitionDirectory,
    delete_directory_name,
    directory_name,
    parse_directory_name,
    stray_directory_name,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.environment import Environment
    from ottla.broker.metrics import Metrics

log = logging.getLogger(__name__)

CLOSING_THREADS: Final = 4
"""Logs that are closed at once, at least: fsyncs of several files share their wait for the disk."""


class _Found(NamedTuple):
    """A directory of a partition: its name taken apart, and where it is."""

    name: PartitionDirectory
    path: Path


class LogRegistry:
    """The logs of one broker. Lives on the event loop; what blocks runs on threads.

    `lock`, `identify`, `open`, then use, then `close` and `unlock`. `LogPasses` and `Cleaner` work on them.
    """

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        metrics: Metrics | None = None,
        files: Files | None = None,
    ) -> None:
        self.config = config
        self.environment = environment
        self.files: Files = files or DiskFiles()
        self.log_directories = LogDirectories(self.files)
        self.deletions = PendingDeletions(self.files, self.retry_or_fail)
        self.futures = FutureLogs(
            self.files, self.log_directories, self.deletions, self._unique_id, environment.clock.now_ms
        )
        self._gauges = LogMetrics(metrics)
        self._logs: dict[TopicPartition, Log] = {}
        self._open_segments = OpenSegments(config.max_open_segment_files, self._logs.__len__)
        self.room = PartitionRoom(environment.clock.monotonic_ms)
        self._is_closing = False
        self.on_directory_failed: list[Callable[[list[TopicPartition]], None]] = []
        """Called on the loop with the partitions that a failed directory held."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def configure(self, config: BrokerConfig) -> None:
        """Use these settings from here on, as far as they may change while logs are open."""
        self.config = config

    # ---- locks and identity

    async def lock(self) -> None:
        """Lock the directories, creating missing ones, and read their owners.

        Raises `LogDirectoryRefused` (see `LogDirectories.lock`).
        """
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.log_directories.lock, self.config.data_dirs)

    async def unlock(self) -> None:
        """Release the directories."""
        self.log_directories.unlock()

    @property
    def meta_properties(self) -> MetaProperties | None:
        """The broker and cluster the directories belong to. Raises `LogDirectoryRefused` for several."""
        return self.log_directories.meta_properties

    def identify(self, broker_id: int, cluster_id: str) -> None:
        """Write the owner into the directories. Raises `LogDirectoryRefused` when another one is there."""
        self.log_directories.identify(broker_id, cluster_id)

    # ---- opening

    async def open(self, log_config: Callable[[str], LogConfig] | None = None) -> None:
        """Open every log; after a crash, recover it. `log_config` gives a topic's configuration.

        A directory that cannot be read goes offline; the others are served.
        """
        self._loop = asyncio.get_running_loop()
        defaults = LogConfig.from_broker(self.config)
        await asyncio.to_thread(self._open_all, log_config or (lambda _: defaults))
        self._gauges.add_offline_directories(lambda: self.log_directories.offline_count)
        for one in self:
            self._gauges.add(one)

    def _open_all(self, log_config: Callable[[str], LogConfig]) -> None:
        for directory in self.log_directories.online():
            try:
                self._open_directory(directory, log_config)
            except OSError as error:
                self.directory_failed(directory, error)
        self._settle_copies()

    def _settle_copies(self) -> None:
        """Settle the moves between directories that the last life of the broker did not finish."""
        if not self.has_offline_directories:
            self.futures.drop_orphans(self._logs.get)
        for one in filter(self.futures.is_marked, self):
            if not self.has_offline_directories:
                self.futures.unmark(one)
            elif not self.futures.took_place(one):
                log.error("%s is offline: it may go on in a directory that is offline", one.topic_partition)
                del self._logs[one.topic_partition], self.log_directories.of(one).logs[one.topic_partition]
                log_closing.abandon(one)

    def _open_directory(self, directory: LogDirectory, log_config: Callable[[str], LogConfig]) -> None:
        directory.read()
        found = list(self._partitions_in(directory))
        clock, path = self.environment.clock, directory.path
        began_ms = clock.monotonic_ms()
        if found and not directory.clean:
            log.warning("recovering %d partitions in %s: it was not closed cleanly", len(found), path)
        with ThreadPoolExecutor(self.config.num_recovery_threads_per_data_dir, "log-recovery") as threads:
            opened = threads.map(lambda one: self._load(directory, one, log_config), found)
            for (name, _), one in zip(found, opened, strict=True):
                if one is not None and name.kind is DirectoryKind.FUTURE:
                    self.futures.add(directory, one)
                elif one is not None:
                    self._take(directory, one)
        log.info("opened %d partitions in %s in %d ms", len(found), path, clock.monotonic_ms() - began_ms)

    def _partitions_in(self, directory: LogDirectory) -> Iterator[_Found]:
        for name in self.files.list(directory.path):
            path = directory.path / name
            if not self.files.is_dir(path):
                continue
            try:
                parsed = parse_directory_name(name)
            except CorruptStorage:
                continue  # not a partition directory
            match parsed.kind:
                case DirectoryKind.DELETE:
                    self.deletions.add(0, [path], directory)
                case DirectoryKind.CURRENT | DirectoryKind.FUTURE:
                    yield _Found(parsed, path)
                case _:
                    log.info("leaving %s alone", path)

    def _load(
        self, directory: LogDirectory, found: _Found, log_config: Callable[[str], LogConfig]
    ) -> Log | None:
        topic_partition = found.name.topic_partition
        # The checkpoints know only logs under the partition's own name.
        is_future = found.name.kind is DirectoryKind.FUTURE
        opened = open_log(
            self.files,
            found.path,
            topic_partition,
            log_config(topic_partition.topic),
            clean=directory.clean,
            log_start_offset=0 if is_future else directory.log_starts.get(topic_partition, 0),
            recovery_point=0 if is_future else directory.recovery_points.get(topic_partition, 0),
            chance=self.environment.random,
            failed=self._failure_of(directory),
            lowered=directory.write_lowered,
            open_segments=self._open_segments,
        )
        opened.cleaned_offset = None if is_future else directory.cleaner_offsets.get(topic_partition)
        if not directory.clean:
            try:
                opened.flush()
            except KafkaStorageError:
                return None
        opened.flushing.flushed_ms = self.environment.clock.now_ms()
        for path in cut_bytes.kept_files(self.files, opened.directory):
            due_ms = self.files.modified_ms(path) + cut_bytes.KEPT_MS
            self.deletions.add(due_ms, [path], directory)
        return opened

    def _take(self, directory: LogDirectory, opened: Log) -> None:
        topic_partition = opened.topic_partition
        known = self._logs.get(topic_partition)
        if known is not None:
            chosen = self.futures.choose(known, opened)
            if chosen is None:
                raise LogDirectoryRefused(
                    f"{topic_partition} is in {known.directory.parent} and in {directory.path}: "
                    "move one of them away"
                )
            opened, other = chosen
            self.log_directories.of(known).logs.pop(topic_partition)
            self.futures.discard(other)
            directory = self.log_directories.of(opened)
        self._logs[topic_partition] = directory.logs[topic_partition] = opened

    # ---- closing

    async def close(self) -> None:
        """Close all logs so that the next start needs no recovery. Logs that cannot be written go offline.

        No log is created or deleted from here on: a controller in this process may still work for a moment;
        the next start resumes its operations.
        """
        self._is_closing = True
        logs = [
            (directory, [*directory.logs.values(), *directory.futures.values()])
            for directory in self.log_directories.online()
        ]
        await asyncio.to_thread(self._close_all, logs)

    def _close_all(self, logs: list[tuple[LogDirectory, list[Log]]]) -> None:
        for directory, its_logs in logs:
            if directory.offline is None:
                try:
                    self._close_each(its_logs)
                    directory.mark_clean()
                except (OSError, KafkaError) as error:
                    log.error("%s was not closed cleanly: %s", directory.path, error)
            for one in its_logs:
                log_closing.abandon(one)

    def _close_each(self, logs: list[Log]) -> None:
        threads_count = max(CLOSING_THREADS, self.config.num_recovery_threads_per_data_dir)
        with ThreadPoolExecutor(threads_count, "log-closing") as threads:
            list(threads.map(Log.close, logs))

    def _refuse_when_closing(self, topic_partition: TopicPartition) -> None:
        if self._is_closing:
            raise KafkaStorageError(f"{topic_partition}: the broker stops")

    async def __aenter__(self) -> Self:
        await self.lock()
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        await self.unlock()

    # ---- finding

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The log of a partition, if it is here and its directory can be used."""
        return self._logs.get(topic_partition)

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    def of_topic(self, topic: str) -> list[Log]:
        """The logs of one topic."""
        return [one for tp, one in self._logs.items() if tp.topic == topic]

    def directories(self) -> list[Path]:
        """The directories that can be used."""
        return [one.path for one in self.log_directories.online()]

    @property
    def has_offline_directories(self) -> bool:
        """Whether any of `log.dirs` cannot be used."""
        return self.log_directories.has_offline

    @property
    def all_offline(self) -> bool:
        """Whether no directory can be used: the broker has to stop."""
        return self.log_directories.all_offline

    def describe(self) -> list[DirectoryDescription]:
        """Describe every log directory. Asks the system for free space, nothing else."""
        return [one.describe() for one in self.log_directories]

    # ---- creating

    def create(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID | None = None,
        config: LogConfig | None = None,
        *,
        is_new: bool = True,
    ) -> Log:
        """Create a log in the directory with the fewest logs, or return the existing one.

        A partition that is not new may be in a directory that is offline: none is created then. Raises
        `KafkaStorageError`.
        """
        known = self._logs.get(topic_partition)
        if known is not None:
            return known
        self._refuse_when_closing(topic_partition)
        if not is_new and self.has_offline_directories:
            raise KafkaStorageError(f"{topic_partition} may be in a log directory that is offline")
        directory = self.log_directories.for_new_log(topic_partition)
        config = config or LogConfig.from_broker(self.config)
        path = directory.path / directory_name(topic_partition)
        created = self._create_in(directory, path, topic_partition, topic_id, config)
        self._take(directory, created)
        self.room.opened()
        self._gauges.add(created)
        return created

    def create_future(self, of: Log, directory: LogDirectory) -> Log:
        """Create an empty copy of a log in another directory. Raises `KafkaStorageError`."""
        self._refuse_when_closing(of.topic_partition)
        path = self.futures.path_in(directory, of.topic_partition)
        created = self._create_in(directory, path, of.topic_partition, of.topic_id, of.config)
        self.futures.add(directory, created)
        self.room.opened()
        return created

    def exchange(self, copy: Log, older: Log) -> None:
        """Let a copy be the partition's log; see `FutureLogs.exchange`."""
        self.futures.exchange(copy, older)
        self._logs[copy.topic_partition] = copy
        self._gauges.remove(copy.topic_partition)
        self._gauges.add(copy)

    def _create_in(
        self,
        directory: LogDirectory,
        path: Path,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        config: LogConfig,
    ) -> Log:
        try:
            self._check_exists(directory)
            directory.forget_deleted(topic_partition)
            return self._open_new(directory, path, topic_partition, topic_id, config)
        except OSError as error:
            self._remove_begun(path)
            raise KafkaStorageError(f"no log can be created in {directory.path}: {error}") from error

    def _check_exists(self, directory: LogDirectory) -> None:
        """Take a directory that was removed offline: made anew it would lack its lock and its owner.

        Raises OSError.
        """
        if not self.files.is_dir(directory.path):
            error = FileNotFoundError(errno.ENOENT, "the directory was removed", str(directory.path))
            self.directory_failed(directory, error)
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
            self.files,
            path,
            topic_partition,
            config,
            clean=True,
            topic_id=topic_id,
            is_new=True,
            chance=self.environment.random,
            failed=self._failure_of(directory),
            lowered=directory.write_lowered,
            open_segments=self._open_segments,
        )
        created.flushing.flushed_ms = self.environment.clock.now_ms()
        return created

    def _remove_begun(self, path: Path) -> None:
        """Remove the files of a log that could not be created: the next start would open them as a log."""
        try:
            if self.files.exists(path):
                self.files.remove_tree(path)
        except OSError as error:
            log.warning("%s is not removed: %s", path, error)

    async def make_way(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Forget deleted partitions of these names on a thread, before `create` has to wait for the disk."""
        names = [one for one in topic_partitions if one not in self._logs]
        online = self.log_directories.online()
        if any(directory.remembers_deleted(one) for directory in online for one in names):
            await asyncio.to_thread(_forget_deleted, online, names)

    # ---- deleting

    def delete(self, topic_partition: TopicPartition) -> None:
        """Forget a partition at once; its files are deleted after `file.delete.delay.ms`.

        Raises `KafkaStorageError`.
        """
        deleted = self._rename_away(topic_partition, delete_directory_name)
        if deleted is not None:
            due_ms = self.environment.clock.now_ms() + deleted.config.file_delete_delay_ms
            self.deletions.add(due_ms, [deleted.directory], self.log_directories.of(deleted))

    def mark_stray(self, topic_partition: TopicPartition) -> None:
        """Forget a partition that this broker should not have; its files stay, for an operator to inspect."""
        self._rename_away(topic_partition, stray_directory_name)

    def _rename_away(
        self, topic_partition: TopicPartition, name_for: Callable[[TopicPartition, UUID], str]
    ) -> Log | None:
        found = self._logs.get(topic_partition)
        if found is None:
            return None
        self._refuse_when_closing(topic_partition)
        if found.is_truncating or found.segments.replacing is not None:
            # A thread works on the files by their paths, which the next log of this name takes.
            raise KafkaStorageError(f"the segments of {topic_partition} are being changed")
        directory = self.log_directories.of(found)
        target = directory.path / name_for(topic_partition, self._unique_id())
        try:
            self.files.rename(found.directory, target)
        except OSError as error:
            self.retry_or_fail(directory, error)
            raise KafkaStorageError(f"{topic_partition} cannot be deleted: {error}") from error
        self.futures.partition_deleted(topic_partition)
        del self._logs[topic_partition], directory.logs[topic_partition]
        log_closing.moved_to(found, target)
        directory.names_changed = True
        self._gauges.remove(topic_partition)
        return found

    def _unique_id(self) -> UUID:
        return UUID(int=self.environment.random.getrandbits(128), version=4)

    # ---- failed directories

    def _failure_of(self, directory: LogDirectory) -> Callable[[OSError], None]:
        def failed(error: OSError) -> None:
            # Threads report too: the rest happens on the loop.
            if self._loop is None or self._loop.is_closed():
                self.directory_failed(directory, error)
            else:
                self._loop.call_soon_threadsafe(self.directory_failed, directory, error)

        return failed

    def directory_failed(self, directory: LogDirectory, error: OSError) -> None:
        """Take a directory offline for good: after a failed fsync the next one would report success."""
        if directory.offline is not None:
            return
        directory.offline = error
        lost, directory.logs = directory.logs, {}
        log.error("the log directory %s is offline, with %d partitions: %s", directory.path, len(lost), error)
        for topic_partition, one in lost.items():
            one.offline = one.offline or error
            del self._logs[topic_partition]
            self._gauges.remove(topic_partition)
        self.futures.directory_failed(directory)
        for listener in self.on_directory_failed:
            listener(list(lost))

    def retry_or_fail(self, directory: LogDirectory, error: OSError) -> None:
        """Take a directory offline, unless only room or descriptors ran out: the next pass tries again."""
        if error.errno in RUN_OUT:
            log.warning("%s: %s; it is tried again", directory.path, error)
        else:
            self.directory_failed(directory, error)


def _forget_deleted(directories: list[LogDirectory], topic_partitions: list[TopicPartition]) -> None:
    for directory in directories:
        try:
            for one in topic_partitions:
                directory.forget_deleted(one)
        except OSError as error:
            log.warning("%s still knows deleted partitions: %s", directory.path, error)
