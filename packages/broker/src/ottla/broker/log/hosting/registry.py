"""The logs that one broker hosts, as Kafka's LogManager: open, close, find, create, delete."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.files.file_system import RUN_OUT, DiskFiles, Files
from ottla.broker.log.files.open_files import OpenSegments, PartitionRoom
from ottla.broker.log.files.pending_deletions import PendingDeletions
from ottla.broker.log.hosting.directories import (
    DirectoryDescription,
    LogDirectories,
    LogDirectory,
    LogDirectoryRefused,
)
from ottla.broker.log.hosting.future_logs import FutureLogs
from ottla.broker.log.hosting.log_opening import LogOpener
from ottla.broker.log.hosting.metrics import LogMetrics
from ottla.broker.log.log import Log
from ottla.broker.log.state.outcomes import Failed
from ottla.protocol.errors import KafkaError, KafkaStorageError
from ottla.protocol.storage.checkpoints import MetaProperties
from ottla.protocol.storage.segments import (
    delete_directory_name,
    directory_name,
    stray_directory_name,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.metrics import Metrics
    from ottla.broker.runtime.environment import Environment

_log = logging.getLogger(__name__)

CLOSING_THREADS: Final = 4
"""Logs that are closed at once, at least: fsyncs of several files share their wait for the disk."""


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
        self._flushes: dict[Log, None] = {}
        """Logs of which a flush may be due."""
        open_segments = OpenSegments(config.max_open_segment_files, self._logs.__len__)
        self._opener = LogOpener(
            self.files,
            environment,
            self.deletions,
            open_segments,
            self.directory_failed,
            self._failure_of,
            self._directory_full,
            self._no_room,
        )
        self.room = PartitionRoom(environment.clock.monotonic_ms)
        self._is_closing = False
        self.on_directory_failed: list[Callable[[list[TopicPartition]], None]] = []
        """Called on the loop with the partitions that a failed directory held."""
        self.on_room_changed: list[Callable[[Path, bool], None]] = []
        """Called on the loop with a directory, and whether it is full."""
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
        directories = self.log_directories
        self._gauges.add_directories(lambda: directories.offline_count, lambda: directories.full_count)
        for log in self:
            self._gauges.add(log)

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
        for log in filter(self.futures.is_marked, self):
            if not self.has_offline_directories:
                self.futures.unmark(log)
            elif not self.futures.took_place(log):
                _log.error(
                    "partition offline: its newest log may be in an offline directory",
                    extra={"partition": str(log.topic_partition)},
                )
                del self._logs[log.topic_partition], self.log_directories.of(log).logs[log.topic_partition]
                log.abandon()

    def _open_directory(self, directory: LogDirectory, log_config: Callable[[str], LogConfig]) -> None:
        directory.read()
        found = list(self._opener.find(directory))
        clock, path = self.environment.clock, directory.path
        began_ms = clock.monotonic_ms()
        if found and not directory.clean:
            _log.warning(
                "log directory recovered: it was not closed cleanly",
                extra={"path": str(path), "partitions": len(found)},
            )
        with ThreadPoolExecutor(self.config.num_recovery_threads_per_data_dir, "log-recovery") as threads:
            logs = threads.map(lambda name: self._opener.open(directory, name, log_config), found)
            for name, opened in zip(found, logs, strict=True):
                if opened is not None and name.is_future:
                    self.futures.add(directory, opened)
                elif opened is not None:
                    self._take(directory, opened)
        took_ms = round(clock.monotonic_ms() - began_ms)
        _log.info(
            "log directory opened", extra={"path": str(path), "partitions": len(found), "took_ms": took_ms}
        )

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
        directory.logs[topic_partition] = opened
        self._host(opened)

    def _host(self, log: Log) -> None:
        self._logs[log.topic_partition] = log
        log.flush_may_be_due = partial(self._flushes.__setitem__, log, None)
        log.flush_may_be_due()

    # ---- closing

    async def close(self) -> None:
        """Close all logs so that the next start needs no recovery. Logs that cannot be written go offline.

        No log is created or deleted from here on: a controller in this process may still work for a moment;
        the next start resumes its operations.
        """
        self._is_closing = True
        await self.deletions.stop()
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
                    _log.error(
                        "log directory not closed cleanly",
                        extra={"path": str(directory.path), "reason": str(error)},
                    )
            for log in its_logs:
                log.abandon()

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

    def flushes(self) -> list[Log]:
        """The logs of which a flush may be due, not the many others: it is asked for every second."""
        for log in list(self._flushes):
            if self._logs.get(log.topic_partition) is not log or not log.flushing.may_be_due:
                del self._flushes[log]
        return list(self._flushes)

    def of_topic(self, topic: str) -> list[Log]:
        """The logs of one topic."""
        return [log for tp, log in self._logs.items() if tp.topic == topic]

    def directories(self) -> list[Path]:
        """The directories that can be used."""
        return [directory.path for directory in self.log_directories.online()]

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
        return [directory.describe() for directory in self.log_directories]

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
        created = self._opener.create(directory, path, topic_partition, topic_id, config)
        self._take(directory, created)
        self.room.opened()
        self._gauges.add(created)
        return created

    def create_future(self, of: Log, directory: LogDirectory) -> Log:
        """Create an empty copy of a log in another directory. Raises `KafkaStorageError`."""
        self._refuse_when_closing(of.topic_partition)
        path = self.futures.path_in(directory, of.topic_partition)
        created = self._opener.create(directory, path, of.topic_partition, of.topic_id, of.config)
        self.futures.add(directory, created)
        self.room.opened()
        return created

    def exchange(self, copy: Log, older: Log) -> None:
        """Make a copy the partition's log; see `FutureLogs.exchange`."""
        self.futures.exchange(copy, older)
        self._host(copy)
        self._gauges.remove(copy.topic_partition)
        self._gauges.add(copy)

    async def make_way(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Forget deleted partitions of these names on a thread, before `create` has to wait for the disk."""
        names = [partition for partition in topic_partitions if partition not in self._logs]
        online = self.log_directories.online()
        if any(directory.remembers_deleted(partition) for directory in online for partition in names):
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
        if found.is_changing_segments:
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
        found.deleted(target)
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
        _log.error(
            "log directory offline",
            extra={"path": str(directory.path), "partitions": len(lost), "reason": str(error)},
        )
        for topic_partition, log in lost.items():
            log.apply(Failed(error))
            del self._logs[topic_partition]
            self._gauges.remove(topic_partition)
        self.futures.directory_failed(directory, error)
        for listener in self.on_directory_failed:
            listener(list(lost))

    def retry_or_fail(self, directory: LogDirectory, error: OSError) -> None:
        """Take a directory offline, unless only room or descriptors ran out: the next pass tries again."""
        if error.errno in RUN_OUT:
            _log.warning(
                "write to log directory tried again",
                extra={"path": str(directory.path), "reason": str(error)},
            )
        else:
            self.directory_failed(directory, error)

    # ---- full directories

    def _no_room(self, directory: LogDirectory, error: OSError) -> None:
        """Note that a write found no room; also for threads."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._directory_full, directory, error)

    def _directory_full(self, directory: LogDirectory, error: OSError) -> None:
        config, now_ms = self.config, self.environment.clock.monotonic_ms()
        least_ms, most_ms = config.log_dir_full_backoff_ms, config.log_dir_full_backoff_max_ms
        if directory.offline is None and directory.room.write_failed(now_ms, least_ms, most_ms):
            facts = {"log_dir": str(directory.path), "partitions": len(directory.logs), "reason": str(error)}
            _log.error("log directory full", extra=facts)
            self._room_changed(directory)

    async def look_for_room(self) -> list[Path]:
        """Ask the volumes of full directories for room, on a thread; call it every second or so.

        Returns the directories with room that still count as full.
        """
        waiting = []
        for directory in self.log_directories.online():
            if directory.room.is_full:
                has_room = await asyncio.to_thread(directory.has_room)
                if directory.room.looked(has_room, self.environment.clock.monotonic_ms()):
                    _log.info("log directory has room again", extra={"log_dir": str(directory.path)})
                    self._room_changed(directory)
                elif has_room:
                    waiting.append(directory.path)
        return waiting

    def _room_changed(self, directory: LogDirectory) -> None:
        for listener in self.on_room_changed:
            listener(directory.path, directory.room.is_full)


def _forget_deleted(directories: list[LogDirectory], topic_partitions: list[TopicPartition]) -> None:
    for directory in directories:
        try:
            for partition in topic_partitions:
                directory.forget_deleted(partition)
        except OSError as error:
            _log.warning(
                "deleted partitions still in the checkpoints",
                extra={"path": str(directory.path), "reason": str(error)},
            )
