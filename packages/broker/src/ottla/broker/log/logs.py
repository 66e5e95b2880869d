"""All logs of one broker: its log directories, their locks and checkpoints, and what is done to
them in turn.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, Self, TypeVar
from uuid import UUID

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.checkpoints import (
    read_meta_properties,
    read_offsets,
    write_meta_properties,
    write_offsets,
)
from ottla.broker.log.files import RUN_OUT, DiskFiles, Files, write_atomically
from ottla.broker.log.files import Lock as FileLock
from ottla.broker.log.log import Log
from ottla.broker.log.recovery import open_log
from ottla.broker.metrics import heartbeat
from ottla.broker.values import frozen
from ottla.protocol.errors import KafkaError, KafkaStorageError
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.checkpoints import (
    LOG_START_OFFSETS_FILE,
    RECOVERY_POINTS_FILE,
    MetaProperties,
)
from ottla.protocol.storage.segments import (
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    DirectoryKind,
    delete_directory_name,
    directory_name,
    parse_directory_name,
    stray_directory_name,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.environment import Environment
    from ottla.broker.log.segment import Segment
    from ottla.broker.metrics import Metrics

log = logging.getLogger(__name__)
_cleaner_log = logging.getLogger("log-cleaner")

_T = TypeVar("_T")
_TICK_S: Final = 1.0


class LogDirectoryRefused(RuntimeError):
    """The log directories cannot be used; the message is one line that says what to do."""


@dataclass(slots=True, eq=False)
class LogDirectory:
    """One of `log.dirs`."""

    path: Path
    lock: FileLock | None = None
    clean: bool = False
    offline: OSError | None = None
    meta: MetaProperties | None = None
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    """As they are on the disk."""
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    """As they are on the disk."""
    writing: Lock = field(default_factory=Lock)
    """Checkpoints are written by threads and, when a log is cut, by the loop."""
    aside: bool = False
    """Whether partitions were set aside, perhaps not on the disk yet."""


@frozen
class PartitionSize:
    """What a partition takes in a log directory."""

    topic_partition: TopicPartition
    size_bytes: int
    log_end_offset: int


@frozen
class DirectoryDescription:
    """One log directory as DescribeLogDirs tells it."""

    path: Path
    error: OSError | None
    partitions: list[PartitionSize]
    total_bytes: int = -1
    usable_bytes: int = -1


@dataclass(slots=True)
class _Doomed:
    due_ms: int
    paths: list[Path]
    directory: LogDirectory


class Logs:
    """The logs of one broker. Lives on the event loop; what blocks runs on threads.

    `lock`, `identify`, `open`, then use, then `close` and `unlock`. The passes (`retain`, `flush_due`,
    `checkpoint`, `delete_due`, `expire_producers`) are called with the time by `run`, or by a simulator.
    """

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        metrics: Metrics | None = None,
        files: Files | None = None,
    ) -> None:
        self._config = config
        self._environment = environment
        self._metrics = metrics
        self._files: Files = files or DiskFiles()
        self._directories: list[LogDirectory] = []
        self._logs: dict[TopicPartition, Log] = {}
        self._homes: dict[TopicPartition, LogDirectory] = {}
        self._doomed: list[_Doomed] = []
        self._is_closing = False
        self._failed_at_once: list[LogDirectory] = []
        self.on_directory_failed: list[Callable[[list[TopicPartition]], None]] = []
        """Told, on the loop, which partitions went with a directory."""
        self._loop: asyncio.AbstractEventLoop | None = None

    # ---- locks and identity

    async def lock(self) -> None:
        """Take the directories, making those that are missing, and read whose they are.

        Raises `LogDirectoryRefused` for one that is used by another broker, named twice, inside of another,
        or of another broker or cluster than the others; also when none can be used.
        """
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._lock_all)

    def _lock_all(self) -> None:
        for path in checked_paths(self._config.data_dirs):
            directory = LogDirectory(path)
            self._directories.append(directory)
            try:
                self._lock_one(directory)
            except OSError as error:
                log.error("the log directory %s is offline: %s", path, error)
                directory.offline = error
            except LogDirectoryRefused:
                self._unlock_all()
                raise
        if all(one.offline for one in self._directories):
            first = self._directories[0]
            self._unlock_all()
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
        missing = [one for one in (path, *path.parents) if not self._files.exists(one)]
        self._files.make_dirs(path)
        for one in missing:
            self._files.sync_dir(one.parent)

    async def unlock(self) -> None:
        """Give the directories back."""
        self._unlock_all()

    def _unlock_all(self) -> None:
        for directory in self._directories:
            if directory.lock is not None:
                directory.lock.release()
                directory.lock = None

    @property
    def meta_properties(self) -> MetaProperties | None:
        """Whose the directories are; None when they are nobody's. Raises `LogDirectoryRefused` for
        several's.
        """
        known = {one.meta for one in self._directories if one.meta is not None}
        if len(known) > 1:
            told = "; ".join(
                f"{one.path}: broker {one.meta.broker_id} of cluster {one.meta.cluster_id}"
                for one in self._directories
                if one.meta is not None
            )
            raise LogDirectoryRefused(f"the log directories belong to different brokers: {told}")
        return next(iter(known), None)

    def identify(self, broker_id: int, cluster_id: str) -> None:
        """Write whose the directories are. Raises `LogDirectoryRefused` when they are somebody else's."""
        stored, mine = self.meta_properties, MetaProperties(cluster_id, broker_id)
        if stored is not None:
            _check_identity(self._directories[0].path, stored, mine)
        for directory in self._online():
            if directory.meta != mine:
                write_meta_properties(self._files, directory.path, mine)
                directory.meta = mine

    # ---- opening and closing

    async def open(self, log_config: Callable[[str], LogConfig] | None = None) -> None:
        """Open every log there is; after a crash, recover it. `log_config` gives a topic's configuration.

        A directory that cannot be read goes offline; the others are served.
        """
        self._loop = asyncio.get_running_loop()
        defaults = LogConfig.from_broker(self._config)
        await asyncio.to_thread(self._open_all, log_config or (lambda _: defaults))
        self._measure()

    def _open_all(self, log_config: Callable[[str], LogConfig]) -> None:
        for directory in self._online():
            try:
                self._open_directory(directory, log_config)
            except OSError as error:
                self._fail(directory, error)

    def _open_directory(self, directory: LogDirectory, log_config: Callable[[str], LogConfig]) -> None:
        files, path = self._files, directory.path
        directory.clean = files.exists(path / CLEAN_SHUTDOWN_FILE)
        if directory.clean:
            files.unlink(path / CLEAN_SHUTDOWN_FILE)
            files.sync_dir(path)
        directory.recovery_points = read_offsets(files, path / RECOVERY_POINTS_FILE) or {}
        directory.log_starts = read_offsets(files, path / LOG_START_OFFSETS_FILE) or {}
        found = list(self._partitions_in(directory))
        began_ms = self._environment.clock.monotonic_ms()
        if found and not directory.clean:
            log.warning("recovering %d partitions in %s: it was not closed cleanly", len(found), path)
        with ThreadPoolExecutor(self._config.num_recovery_threads_per_data_dir, "log-recovery") as threads:
            opened = threads.map(lambda one: self._load(directory, one[0], one[1], log_config), found)
            for topic_partition, one in zip((tp for tp, _ in found), opened, strict=True):
                if one is not None:
                    self._take(directory, topic_partition, one)
        took_ms = self._environment.clock.monotonic_ms() - began_ms
        log.info("opened %d partitions in %s in %d ms", len(found), path, took_ms)

    def _partitions_in(self, directory: LogDirectory) -> Iterator[tuple[TopicPartition, Path]]:
        files = self._files
        for name in files.list(directory.path):
            path = directory.path / name
            if not files.is_dir(path):
                continue
            try:
                parsed = parse_directory_name(name)
            except CorruptStorage:
                continue  # not a partition's
            match parsed.kind:
                case DirectoryKind.DELETE:
                    self._doomed.append(_Doomed(0, [path], directory))
                case DirectoryKind.CURRENT:
                    yield parsed.topic_partition, path
                case _:
                    log.info("leaving %s alone", path)

    def _load(
        self,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        path: Path,
        log_config: Callable[[str], LogConfig],
    ) -> Log | None:
        config = log_config(topic_partition.topic)
        opened = open_log(
            self._files,
            path,
            topic_partition,
            config,
            clean=directory.clean,
            log_start_offset=directory.log_starts.get(topic_partition, 0),
            recovery_point=directory.recovery_points.get(topic_partition, 0),
            chance=self._environment.random,
            failed=self._failure_of(directory),
            lowered=lambda: self._write_recovery_points(directory),
        )
        if not directory.clean:
            try:
                opened.flush()
            except KafkaStorageError:
                return None
        opened.flushed_ms = self._environment.clock.now_ms()
        return opened

    def _take(self, directory: LogDirectory, topic_partition: TopicPartition, opened: Log) -> None:
        if topic_partition in self._logs:
            raise LogDirectoryRefused(
                f"{topic_partition} is in {self._logs[topic_partition].directory.parent} and in "
                f"{directory.path}: move the one that is not wanted away"
            )
        self._logs[topic_partition] = opened
        self._homes[topic_partition] = directory

    async def close(self) -> None:
        """Close all logs so that the next start needs no recovery. What cannot be written goes offline.

        None is made or deleted from here on: a controller of this process works on for a moment, and what it
        began is taken up again after the next start.
        """
        self._is_closing = True
        logs = [(one, self._homes[topic_partition]) for topic_partition, one in self._logs.items()]
        await asyncio.to_thread(self._close_all, logs)

    def _close_all(self, logs: list[tuple[Log, LogDirectory]]) -> None:
        for directory in self._online():
            try:
                self._each([one for one, home in logs if home is directory], Log.close)
                self._checkpoint_directory(directory)
                write_atomically(
                    self._files,
                    directory.path / CLEAN_SHUTDOWN_FILE,
                    json.dumps({"version": 0, "brokerEpoch": -1}).encode(),
                )
            except (OSError, KafkaError) as error:
                log.error("%s was not closed cleanly: %s", directory.path, error)
        for one, _ in logs:
            one.abandon()

    def _refuse_when_closing(self, topic_partition: TopicPartition) -> None:
        if self._is_closing:
            raise KafkaStorageError(f"{topic_partition}: the broker stops")

    def _each(self, logs: list[Log], act: Callable[[Log], None]) -> None:
        with ThreadPoolExecutor(self._config.num_recovery_threads_per_data_dir, "log-closing") as threads:
            list(threads.map(act, logs))

    async def __aenter__(self) -> Self:
        await self.lock()
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        await self.unlock()

    # ---- finding, making, deleting

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
        return [one.path for one in self._online()]

    @property
    def has_offline_directories(self) -> bool:
        """Whether any of `log.dirs` cannot be used."""
        return any(one.offline for one in self._directories)

    @property
    def all_offline(self) -> bool:
        """Whether none is left: the broker has to stop."""
        return all(one.offline for one in self._directories)

    def _online(self) -> list[LogDirectory]:
        return [one for one in self._directories if one.offline is None]

    def create(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID | None = None,
        config: LogConfig | None = None,
        *,
        is_new: bool = True,
    ) -> Log:
        """Make a log in the directory that has the fewest, or return the one there is.

        A partition that is not new may be in a directory that is offline: none is made then. Raises
        `KafkaStorageError`.
        """
        known = self._logs.get(topic_partition)
        if known is not None:
            return known
        self._refuse_when_closing(topic_partition)
        if not is_new and self.has_offline_directories:
            raise KafkaStorageError(f"{topic_partition} may be in a log directory that is offline")
        if not self._online():
            raise KafkaStorageError("all log directories are offline")
        directory = min(self._online(), key=self._partitions_count)
        try:
            made = self._make(
                directory, topic_partition, topic_id, config or LogConfig.from_broker(self._config)
            )
        except OSError as error:
            self._remove_begun(directory, topic_partition)
            raise KafkaStorageError(f"no log can be made in {directory.path}: {error}") from error
        self._take(directory, topic_partition, made)
        self._measure_log(made)
        return made

    def _remove_begun(self, directory: LogDirectory, topic_partition: TopicPartition) -> None:
        """Leave nothing of a log that could not be made: the next start would take it for one."""
        path = directory.path / directory_name(topic_partition)
        try:
            if self._files.exists(path):
                self._files.remove_tree(path)
        except OSError as error:
            log.warning("%s is not removed: %s", path, error)

    def _partitions_count(self, directory: LogDirectory) -> int:
        return sum(1 for home in self._homes.values() if home is directory)

    def _make(
        self,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        config: LogConfig,
    ) -> Log:
        self._forget_predecessor(directory, topic_partition)
        made = open_log(
            self._files,
            directory.path / directory_name(topic_partition),
            topic_partition,
            config,
            clean=True,
            topic_id=topic_id,
            is_new=True,
            chance=self._environment.random,
            failed=self._failure_of(directory),
            lowered=lambda: self._write_recovery_points(directory),
        )
        made.flushed_ms = self._environment.clock.now_ms()
        return made

    async def make_way(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Have nothing of deleted partitions in the way of new ones of these names: `create` waits for the
        disk otherwise.
        """
        names = [one for one in topic_partitions if one not in self._logs]
        if any(self._is_in_the_way(directory, one) for directory in self._online() for one in names):
            await asyncio.to_thread(self._make_way, names)

    def _is_in_the_way(self, directory: LogDirectory, topic_partition: TopicPartition) -> bool:
        return (
            directory.aside
            or topic_partition in directory.recovery_points
            or topic_partition in directory.log_starts
        )

    def _make_way(self, topic_partitions: list[TopicPartition]) -> None:
        for directory in self._online():
            try:
                for one in topic_partitions:
                    self._forget_predecessor(directory, one)
            except OSError as error:
                log.warning("%s still knows deleted partitions: %s", directory.path, error)

    def _forget_predecessor(self, directory: LogDirectory, topic_partition: TopicPartition) -> None:
        """A deleted partition of the same name must not come back, nor lend its offsets to the new one."""
        if directory.aside:
            self._files.sync_dir(directory.path)
            directory.aside = False
        if topic_partition in directory.recovery_points or topic_partition in directory.log_starts:
            self._checkpoint_directory(directory)

    def delete(self, topic_partition: TopicPartition) -> None:
        """Forget a partition at once; its files go after `file.delete.delay.ms`. Raises
        `KafkaStorageError`.
        """
        gone = self._set_aside(topic_partition, delete_directory_name)
        if gone is not None:
            due_ms = self._environment.clock.now_ms() + gone.config.file_delete_delay_ms
            self._doomed.append(_Doomed(due_ms, [gone.directory], self._directory_at(gone.directory.parent)))

    def mark_stray(self, topic_partition: TopicPartition) -> None:
        """Forget a partition that this broker should not have; its files stay, for a person to look at."""
        self._set_aside(topic_partition, stray_directory_name)

    def _set_aside(
        self, topic_partition: TopicPartition, name_for: Callable[[TopicPartition, UUID], str]
    ) -> Log | None:
        gone = self._logs.get(topic_partition)
        if gone is None:
            return None
        self._refuse_when_closing(topic_partition)
        home = self._homes[topic_partition]
        target = home.path / name_for(topic_partition, self._unique_id())
        try:
            self._files.rename(gone.directory, target)
        except OSError as error:
            self._not_done(home, error)
            raise KafkaStorageError(f"{topic_partition} cannot be deleted: {error}") from error
        del self._logs[topic_partition], self._homes[topic_partition]
        gone.moved_to(target)
        home.aside = True
        self._unmeasure_log(topic_partition)
        return gone

    def _unique_id(self) -> UUID:
        return UUID(int=self._environment.random.getrandbits(128), version=4)

    def _directory_at(self, path: Path) -> LogDirectory:
        return next(one for one in self._directories if one.path == path)

    def describe(self) -> list[DirectoryDescription]:
        """Every log directory with what is in it. Asks the system for free space, nothing else."""
        return [self._describe(one) for one in self._directories]

    def _describe(self, directory: LogDirectory) -> DirectoryDescription:
        if directory.offline is not None:
            return DirectoryDescription(directory.path, directory.offline, [])
        mine = [one for tp, one in self._logs.items() if self._homes[tp] is directory]
        sizes = [PartitionSize(one.topic_partition, one.size_bytes, one.log_end_offset) for one in mine]
        try:
            return DirectoryDescription(directory.path, None, sizes, *self._files.space(directory.path))
        except OSError as error:
            return DirectoryDescription(directory.path, error, [])

    # ---- failing

    def _failure_of(self, directory: LogDirectory) -> Callable[[OSError], None]:
        def failed(error: OSError) -> None:
            # Threads report too: the rest happens on the loop.
            if self._loop is None or self._loop.is_closed():
                self._fail(directory, error)
            else:
                self._loop.call_soon_threadsafe(self._fail, directory, error)

        return failed

    def _fail(self, directory: LogDirectory, error: OSError) -> None:
        """Use a directory no more; nothing is retried: after a failed fsync the next one would lie."""
        if directory.offline is not None:
            return
        directory.offline = error
        gone = [tp for tp, home in self._homes.items() if home is directory]
        log.error("the log directory %s is offline, with %d partitions: %s", directory.path, len(gone), error)
        for topic_partition in gone:
            lost = self._logs.pop(topic_partition)
            lost.offline = lost.offline or error
            del self._homes[topic_partition]
            self._unmeasure_log(topic_partition)
        for listener in self.on_directory_failed:
            listener(gone)

    def _not_done(self, directory: LogDirectory, error: OSError) -> None:
        """Give a directory up, unless something has only run out: then the next pass tries again."""
        if error.errno in RUN_OUT:
            log.warning("%s: %s; it is tried again", directory.path, error)
        else:
            self._fail(directory, error)

    # ---- passes

    async def run(self) -> None:
        """Do the passes when they are due, until cancelled."""
        clock, config = self._environment.clock, self._config
        passes: list[tuple[float, Callable[[int], Awaitable[object]]]] = [
            (config.log_retention_check_interval_ms, self.retain),
            (min(config.log_flush_scheduler_interval_ms, 1000), self.flush_due),
            (config.log_flush_offset_checkpoint_interval_ms, self.checkpoint),
            (config.log_flush_start_offset_checkpoint_interval_ms, self.checkpoint_log_starts),
            (1000, self.delete_due),
            (config.producer_id_expiration_check_interval_ms, self.expire_producers),
        ]
        due = [clock.monotonic_ms() + interval for interval, _ in passes]
        beat = heartbeat(self._metrics, clock.monotonic_ms, "log-manager") if self._metrics else None
        while True:
            await asyncio.sleep(_TICK_S)
            if beat is not None:
                beat()
            for number, (interval, act) in enumerate(passes):
                if clock.monotonic_ms() >= due[number]:
                    due[number] = clock.monotonic_ms() + interval
                    await self._quietly(act)

    async def _quietly(self, act: Callable[[int], Awaitable[object]]) -> None:
        try:
            await act(self._environment.clock.now_ms())
        except Exception:
            log.exception("a pass over the logs failed; it is done again later")

    async def retain(self, now_ms: int) -> int:
        """Drop the segments that are too old, too much, or below their log's start; says how many.

        The new starts reach the disk before the first file is renamed: otherwise a crash could bring back an
        older segment without the one behind it. Where the disk has no room for that, the files go one by one.
        """
        expired = []
        for one in self:
            try:
                segments = one.expire(now_ms)
            except (OSError, KafkaError) as error:
                log.warning("%s was not looked through: %s", one.topic_partition, error)
                continue
            if segments:
                expired.append((one, segments))
        if not expired:
            return 0
        for one, _ in expired:
            await self._flush(one, now_ms)  # with the snapshot that stands for what goes
        unwritten = await self.checkpoint_log_starts(now_ms)
        for one, segments in expired:
            home = self._homes.get(one.topic_partition)
            if home is None:
                continue
            discard = self._discard_in_turn if home in unwritten else Log.discard
            try:
                paths = await asyncio.to_thread(discard, one, segments)
            except OSError as error:
                self._fail(home, error)
                continue
            _cleaner_log.info("%s dropped %d segments", one.topic_partition, len(segments))
            self._doomed.append(_Doomed(now_ms + one.config.file_delete_delay_ms, paths, home))
        return sum(len(segments) for _, segments in expired)

    def _discard_in_turn(self, one: Log, segments: list[Segment]) -> list[Path]:
        paths = []
        for segment in segments:
            paths += one.discard([segment])
            self._files.sync_dir(one.directory)
        return paths

    async def flush_due(self, now_ms: int) -> int:
        """Force logs to the disk that `flush.ms` asks for, or that began a new segment; says how many."""
        due = [
            one
            for one in self
            if one.has_sealed or (one.unflushed and now_ms - one.flushed_ms >= one.config.flush_ms)
        ]
        for one in due:
            await self._flush(one, now_ms)
        return len(due)

    async def _flush(self, one: Log, now_ms: int) -> None:
        plan = one.begin_flush()
        try:
            await asyncio.to_thread(plan.run)
        except OSError as error:
            one.flush_failed(plan, error)
            return
        one.end_flush(plan)
        one.flushed_ms = now_ms

    async def checkpoint(self, now_ms: int) -> list[LogDirectory]:
        """Write every directory's recovery points; gives the directories that have no room for them."""
        return await self._checkpoint_all(RECOVERY_POINTS_FILE, _recovery_point)

    async def checkpoint_log_starts(self, now_ms: int) -> list[LogDirectory]:
        """Write every directory's log start offsets; gives the directories that have no room for them."""
        return await self._checkpoint_all(LOG_START_OFFSETS_FILE, _log_start_offset)

    async def _checkpoint_all(self, name: str, value: Callable[[Log], int]) -> list[LogDirectory]:
        unwritten = []
        for directory in self._online():
            try:
                await asyncio.to_thread(self._write_offsets, directory, name, value)
            except OSError as error:
                unwritten.append(directory)
                self._not_done(directory, error)
        return unwritten

    def _checkpoint_directory(self, directory: LogDirectory) -> None:
        self._write_recovery_points(directory)
        self._write_offsets(directory, LOG_START_OFFSETS_FILE, _log_start_offset)

    def _write_recovery_points(self, directory: LogDirectory) -> None:
        self._write_offsets(directory, RECOVERY_POINTS_FILE, _recovery_point)

    def _write_offsets(self, directory: LogDirectory, name: str, value: Callable[[Log], int]) -> None:
        # Offsets are read under the lock: what was lowered meanwhile must not be written as it was before.
        with directory.writing:
            offsets = {
                tp: value(one) for tp, one in list(self._logs.items()) if self._homes.get(tp) is directory
            }
            write_offsets(self._files, directory.path / name, offsets)
            if name == RECOVERY_POINTS_FILE:
                directory.recovery_points = offsets
            else:
                directory.log_starts = offsets

    async def delete_due(self, now_ms: int) -> int:
        """Remove the files and directories whose time has come; says how many."""
        due = [one for one in self._doomed if one.due_ms <= now_ms]
        self._doomed = [one for one in self._doomed if one.due_ms > now_ms]
        for one in due:
            if one.directory.offline is None:
                try:
                    await asyncio.to_thread(self._remove, one.paths)
                except OSError as error:
                    self._not_done(one.directory, error)
                    self._doomed.append(one)
        return sum(len(one.paths) for one in due)

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if self._files.is_dir(path):
                self._files.remove_tree(path)
            else:
                self._files.unlink(path)

    async def expire_producers(self, now_ms: int) -> int:
        """Forget producers that wrote nothing for `producer.id.expiration.ms`; says how many."""
        return sum(one.expire_producers(now_ms, self._config.producer_id_expiration_ms) for one in self)

    def configure(self, config: BrokerConfig) -> None:
        """Go by these settings from here on, as far as they may change while logs are open."""
        self._config = config

    # ---- metrics

    def _measure(self) -> None:
        if self._metrics is None:
            return
        kind = ("kafka.log", "LogManager")
        self._metrics.gauge(
            *kind, "OfflineLogDirectoryCount", lambda: sum(1 for one in self._directories if one.offline)
        )
        for one in self:
            self._measure_log(one)

    def _measure_log(self, one: Log) -> None:
        if self._metrics is None:
            return
        gauge = self._metrics.gauge
        tags = {"topic": one.topic_partition.topic, "partition": str(one.topic_partition.partition)}
        gauge("kafka.log", "Log", "Size", lambda: one.size_bytes, **tags)
        gauge("kafka.log", "Log", "NumLogSegments", lambda: len(one.segments), **tags)
        gauge("kafka.log", "Log", "LogStartOffset", lambda: one.log_start_offset, **tags)
        gauge("kafka.log", "Log", "LogEndOffset", lambda: one.log_end_offset, **tags)

    def _unmeasure_log(self, topic_partition: TopicPartition) -> None:
        if self._metrics is None:
            return
        for name in ("Size", "NumLogSegments", "LogStartOffset", "LogEndOffset"):
            self._metrics.remove(
                "kafka.log",
                "Log",
                name,
                topic=topic_partition.topic,
                partition=str(topic_partition.partition),
            )


def _recovery_point(one: Log) -> int:
    return one.recovery_point


def _log_start_offset(one: Log) -> int:
    return one.log_start_offset


def checked_paths(names: Iterable[str]) -> list[Path]:
    """The directories by their real paths. Raises `LogDirectoryRefused` for one that is there twice or
    nested.
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
