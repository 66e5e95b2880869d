"""The background passes over all logs: retention, flush, checkpoints, deletion, producer expiry.

Each pass is a task of its own, so that a slow one does not hold up the others. Passes take the time as an
argument: a simulator calls them itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.log.hosting.directories import LogDirectory
from ottla.broker.log.log import Log
from ottla.broker.log.recovery.lost_indexes import LostIndexes
from ottla.broker.log.retention.retention import expire
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from ottla.broker.log.hosting.registry import LogRegistry
    from ottla.broker.log.segments.segment import Segment

_log = logging.getLogger(__name__)
_cleaner_log = logging.getLogger("log-cleaner")


class Pass(NamedTuple):
    """One pass, to be run every `interval_ms` as a task called `name`."""

    name: str
    interval_ms: float
    run: Callable[[], Awaitable[object]]


class LogPasses:
    """The passes over the logs of one broker. They run on the event loop; all that blocks runs on threads."""

    def __init__(self, logs: LogRegistry) -> None:
        self._logs = logs
        self._lost_indexes = LostIndexes(logs)
        self._log_starts = asyncio.Lock()
        """Held while log starts reach the disk: retention flushes before its new ones do."""

    def scheduled(self) -> list[Pass]:
        """Every pass with its interval."""
        config = self._logs.config
        return [
            self._pass("log-retention", config.log_retention_check_interval_ms, self.retain),
            self._pass("log-flusher", min(config.log_flush_scheduler_interval_ms, 1000), self.flush_due),
            self._pass(
                "recovery-point-checkpoint",
                config.log_flush_offset_checkpoint_interval_ms,
                self.checkpoint_recovery_points,
            ),
            self._pass(
                "log-start-offset-checkpoint",
                config.log_flush_start_offset_checkpoint_interval_ms,
                self.checkpoint_log_starts,
            ),
            self._pass("delete-logs", 1000, self.delete_due),
            self._pass(
                "producer-expiration", config.producer_id_expiration_check_interval_ms, self.expire_producers
            ),
        ]

    def _pass(self, name: str, interval_ms: float, act: Callable[[int], Awaitable[object]]) -> Pass:
        clock = self._logs.environment.clock
        return Pass(name, interval_ms, lambda: act(clock.now_ms()))

    # ---- retention

    async def retain(self, now_ms: int) -> int:
        """Drop segments that are too old, too large together, or below the log start; returns how many.

        The new log starts reach the disk before the first file is renamed: otherwise a crash could bring
        back an older segment without the one behind it. Where the disk has no room for the checkpoint, the
        files are renamed and synced one by one.
        """
        async with self._log_starts:
            expired = self._expired(now_ms)
            if not expired:
                return 0
            for log, _ in expired:
                await self._flush(log, now_ms)  # with the snapshot that replaces the dropped segments
            unwritten = await self._checkpoint(LogDirectory.write_log_starts)
        for log, segments in expired:
            await self._discard(log, segments, now_ms, unwritten)
        return sum(len(segments) for _, segments in expired)

    def _expired(self, now_ms: int) -> list[tuple[Log, list[Segment]]]:
        expired = []
        for log in self._logs:
            try:
                segments = expire(log, now_ms)
            except (OSError, KafkaError) as error:
                _log.warning(
                    "retention skips a partition",
                    extra={"partition": str(log.topic_partition), "reason": str(error)},
                )
                continue
            if segments:
                expired.append((log, segments))
        return expired

    async def _discard(
        self, log: Log, segments: list[Segment], now_ms: int, unwritten: list[LogDirectory]
    ) -> None:
        if self._logs.get(log.topic_partition) is not log:
            return  # deleted meanwhile
        directory = self._logs.log_directories.of(log)
        try:
            paths = await asyncio.to_thread(_mark_deleted, log, segments, sync_each=directory in unwritten)
        except OSError as error:
            self._logs.directory_failed(directory, error)
            return
        log.unsynced.names_changed()
        _cleaner_log.info(
            "segments deleted", extra={"partition": str(log.topic_partition), "segments": len(segments)}
        )
        self._logs.deletions.add(now_ms + log.config.file_delete_delay_ms, paths, directory)

    # ---- flush

    async def flush_due(self, now_ms: int) -> int:
        """Flush logs that `flush.ms` asks for, or that have rolled; returns how many.

        Before that, indexes that another program has cut are rebuilt.
        """
        await self._lost_indexes.mend(now_ms)
        due = [
            log
            for log in self._logs.flushes()
            if log.flushing.has_sealed
            or (log.flushing.unflushed and now_ms - log.flushing.flushed_ms >= log.config.flush_ms)
        ]
        for log in due:
            await self._flush(log, now_ms)
        return len(due)

    async def _flush(self, log: Log, now_ms: int) -> None:
        plan = log.flushing.begin()
        try:
            await asyncio.to_thread(plan.run)
        except OSError as error:
            log.flushing.failed(plan, error)
            return
        log.flushing.end(plan)
        log.flushing.flushed_ms = now_ms

    # ---- checkpoints

    async def checkpoint_recovery_points(self, now_ms: int) -> list[LogDirectory]:
        """Write every directory's recovery points; returns the directories that have no room for them."""
        return await self._checkpoint(LogDirectory.write_recovery_points)

    async def checkpoint_log_starts(self, now_ms: int) -> list[LogDirectory]:
        """Write every directory's log start offsets; returns the directories that have no room for them."""
        async with self._log_starts:
            return await self._checkpoint(LogDirectory.write_log_starts)

    async def _checkpoint(self, write: Callable[[LogDirectory], None]) -> list[LogDirectory]:
        unwritten = []
        for directory in self._logs.log_directories.online():
            try:
                await asyncio.to_thread(write, directory)
            except OSError as error:
                unwritten.append(directory)
                self._logs.retry_or_fail(directory, error)
        return unwritten

    # ---- deletion and expiry

    async def delete_due(self, now_ms: int) -> int:
        """Delete files and directories whose `file.delete.delay.ms` has passed; returns how many."""
        return await self._logs.deletions.delete_due(now_ms)

    async def expire_producers(self, now_ms: int) -> int:
        """Drop producers that wrote nothing for `producer.id.expiration.ms`; returns how many."""
        expiration_ms = self._logs.config.producer_id_expiration_ms
        return sum(log.producers.expire(now_ms, expiration_ms) for log in self._logs)


def _mark_deleted(log: Log, segments: list[Segment], *, sync_each: bool) -> list[Path]:
    paths = []
    for segment in segments:
        paths += segment.mark_deleted()
        if sync_each:
            log.files.sync_dir(log.directory)
    return paths
