"""The log cleaner: it compacts the dirtiest logs of a broker, several at a time, on threads of its own.

Lives on the event loop. Each replica is cleaned by its own broker, up to what is stable there. The modules
that copy and map records are imported with the first cleaning: no start of a broker needs them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ottla.broker.log.compaction import cleaner_metrics
from ottla.broker.log.compaction.cleaner_metrics import CleanerFigures
from ottla.broker.log.compaction.cleaning_pace import CleaningStopped, Pace, Throttle
from ottla.broker.log.compaction.compaction_rules import Bounds, DirtyRange, dirtiest, dirty_range
from ottla.broker.log.files.file_system import RUN_OUT
from ottla.broker.log.segments.segments import SegmentsChanged
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.runtime.threads import MOST_CLEANER_THREADS, CleanerThreads
from ottla.protocol.errors import KafkaError
from ottla.protocol.storage import CorruptStorage

if TYPE_CHECKING:
    from pathlib import Path

    from ottla.broker.log.compaction.cleaning import Cleaned, Cleaning
    from ottla.broker.log.compaction.offset_map import OffsetMap
    from ottla.broker.log.hosting.registry import LogRegistry
    from ottla.broker.log.log import Log
    from ottla.broker.metrics import Metrics
    from ottla.protocol.topics import TopicPartition

_log = logging.getLogger("log-cleaner")

_SMALLEST_READ_BYTES: Final = 16 << 10


class Cleaner:
    """Cleans the logs of a registry: `run` as long as the broker serves, or `clean_next` once.

    A partition that cannot be cleaned, because a segment is damaged, is left alone until the next start. A
    batch whose checksum is right and whose records cannot be read stays as it is.
    """

    def __init__(self, logs: LogRegistry, metrics: Metrics | None = None) -> None:
        self._logs = logs
        self._clock = logs.environment.clock
        self._budget = logs.environment.budget
        self._throttle = Throttle(logs.config.log_cleaner_io_max_bytes_per_second)
        self._threads = CleanerThreads()
        self._busy: set[TopicPartition] = set()
        self._paused_until_ms: dict[TopicPartition, float] = {}
        self._uncleanable: dict[TopicPartition, Log] = {}
        self._unreadable: dict[TopicPartition, tuple[Log, int]] = {}
        """The last batch of each log that was named because its records cannot be read."""
        self._warnings = LimitedWarnings(_log, self._clock.monotonic_ms)
        self._woken = asyncio.Event()
        self.figures = CleanerFigures()
        paths = [directory.path for directory in logs.log_directories]
        cleaner_metrics.show(metrics, self.figures, self._clock.monotonic_ms, paths)

    # ---- the endless work

    async def run(self) -> None:
        """Clean whenever a log is dirty enough, until cancelled; the threads have ended then."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._woken.clear()
                    await self._start_cleanings(tasks)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._logs.config.log_cleaner_backoff_ms / 1000):
                            await self._woken.wait()
        finally:
            self._threads.close()

    async def _start_cleanings(self, tasks: asyncio.TaskGroup) -> None:
        while len(self._busy) < min(self._logs.config.log_cleaner_threads, MOST_CLEANER_THREADS):
            chosen = await self._choose(self._clock.now_ms())
            if chosen is None:
                return
            self._busy.add(chosen.topic_partition)
            tasks.create_task(self._clean_and_wake(chosen), name=f"clean-{chosen.topic_partition}")

    async def _clean_and_wake(self, log: Log) -> None:
        try:
            await self._clean(log, self._clock.now_ms())
        finally:
            self._busy.discard(log.topic_partition)
            self._woken.set()

    async def clean_next(self, now_ms: int) -> TopicPartition | None:
        """Clean the dirtiest log that is due; returns its partition, or None if there was none."""
        chosen = await self._choose(now_ms)
        if chosen is None:
            return None
        await self._clean(chosen, now_ms)
        return chosen.topic_partition

    # ---- choosing

    async def _choose(self, now_ms: int) -> Log | None:
        """The dirtiest log that is due and not being cleaned; it may change until its cleaning begins."""
        self._begin_look()
        found = []
        async for log in self._budget.turn().over(self._logs):
            if log.topic_partition not in self._busy and self._may_clean(log):
                with suppress(OSError, KafkaError):
                    found.append((log.topic_partition, self._dirty_range(log, now_ms), log.config))
        self.figures.dirty_ratio = max((dirty.ratio for _, dirty, _ in found), default=0.0)
        self.figures.overdue_ms = max((dirty.overdue_ms for _, dirty, _ in found), default=0)
        best = dirtiest(found)
        return self._logs.get(best[0]) if best else None

    def _may_clean(self, log: Log) -> bool:
        partition = log.topic_partition
        if not (log.config.compact and log.takes_appends) or log.segments.replacing is not None:
            return False
        paused = self._paused_until_ms.get(partition, 0) > self._clock.monotonic_ms()
        return not paused and self._uncleanable.get(partition) is not log

    def _due(self, log: Log, now_ms: int) -> DirtyRange | None:
        """The dirty range of a log that should be cleaned now."""
        if not self._may_clean(log):
            return None
        dirty = self._dirty_range(log, now_ms)
        return dirty if dirty.is_due(log.config) else None

    def _dirty_range(self, log: Log, now_ms: int) -> DirtyRange:
        settled = min(log.last_stable_offset, log.recovery_point)
        bounds = Bounds(log.cleaned_offset, log.log_start_offset, settled, log.log_end_offset)
        return dirty_range(log.segments.all, bounds, log.config, now_ms)

    def _begin_look(self) -> None:
        """Forget pauses and failures of logs that are gone."""
        self.figures.looked_at_ms = now_ms = self._clock.monotonic_ms()
        self._paused_until_ms = {
            partition: at for partition, at in self._paused_until_ms.items() if at > now_ms
        }
        kept = {
            partition: log for partition, log in self._uncleanable.items() if self._logs.get(partition) is log
        }
        self._unreadable = {
            partition: named
            for partition, named in self._unreadable.items()
            if self._logs.get(partition) is named[0]
        }
        if len(kept) != len(self._uncleanable):
            self._uncleanable = kept
            self._count_uncleanable()

    # ---- cleaning

    async def _clean(self, log: Log, now_ms: int) -> None:
        """Clean a log if that is due.

        A truncation or retention may have changed the log since it was chosen. The dirty range is therefore
        that of the turn in which `IsWanted` is made: a truncation from there on stops the cleaning.
        """
        from ottla.broker.log.compaction.segment_cleaning import MapTooSmall

        took_ms = self._stopwatch()
        try:
            dirty = self._due(log, now_ms)
            if dirty is None:
                return
            keys = self._map_for(dirty)
            cleaned = await self._cleaned(log, dirty, keys, now_ms)
        except (CleaningStopped, SegmentsChanged):
            self._pause(log)
        except OSError as error:
            self._failed(log, error)
        except MapTooSmall:
            self._leave_alone(
                log, "a batch has more keys than the offset map takes; raise log.cleaner.dedupe.buffer.size"
            )
        except (CorruptStorage, KafkaError, MemoryError, ValueError) as error:
            self._leave_alone(log, str(error))
        else:
            self._name_unreadable(log, cleaned.unreadable)
            await self._settle(log)
            self._report(log, dirty, cleaned, keys, took_ms())

    async def _cleaned(self, log: Log, dirty: DirtyRange, keys: OffsetMap, now_ms: int) -> Cleaned:
        try:
            return await self._cleaning(log, dirty, keys, now_ms).run(self._threads.run)
        finally:
            # Not here on the loop: 14 ms for the 128 MiB of the default log.cleaner.dedupe.buffer.size.
            await self._threads.run(keys.release)

    def _stopwatch(self) -> Callable[[], float]:
        began_ms = self._clock.monotonic_ms()
        return lambda: self._clock.monotonic_ms() - began_ms

    def _map_for(self, dirty: DirtyRange) -> OffsetMap:
        from ottla.broker.log.compaction.offset_map import OffsetMap, slots_for

        config = self._logs.config
        memory_bytes = config.log_cleaner_dedupe_buffer_size // max(config.log_cleaner_threads, 1)
        load_factor = min(config.log_cleaner_io_buffer_load_factor, 0.99)
        slots = slots_for(dirty.first_uncleanable - dirty.first_dirty, memory_bytes, load_factor)
        hash_key = self._logs.environment.random.getrandbits(128).to_bytes(16, "little")
        return OffsetMap(slots, load_factor, hash_key)

    def _cleaning(self, log: Log, dirty: DirtyRange, keys: OffsetMap, now_ms: int) -> Cleaning:
        from ottla.broker.log.compaction.cleaning import Cleaning, IsWanted

        config = self._logs.config
        self._throttle.bytes_per_second = config.log_cleaner_io_max_bytes_per_second
        is_wanted = IsWanted(log, lambda: self._logs.get(log.topic_partition) is log)
        io_bytes = config.log_cleaner_io_buffer_size // max(config.log_cleaner_threads, 1) // 2
        return Cleaning(
            log,
            dirty,
            keys,
            Pace(self._throttle, self._threads.stopping, self._clock.monotonic_ms, is_wanted),
            lambda paths: self._delete_later(log, paths, now_ms),
            io_bytes=max(io_bytes, _SMALLEST_READ_BYTES),
            now_ms=now_ms,
        )

    def _delete_later(self, log: Log, paths: list[Path], now_ms: int) -> None:
        directory = self._logs.log_directories.of(log)
        self._logs.deletions.add(now_ms + log.config.file_delete_delay_ms, paths, directory)

    async def _settle(self, log: Log) -> None:
        directory = self._logs.log_directories.of(log)
        try:
            await self._threads.run(directory.write_cleaner_offsets)
        except OSError as error:
            self._logs.retry_or_fail(directory, error)

    # ---- failures

    def _pause(self, log: Log) -> None:
        until_ms = self._clock.monotonic_ms() + self._logs.config.log_cleaner_backoff_ms
        self._paused_until_ms[log.topic_partition] = until_ms

    def _failed(self, log: Log, error: OSError) -> None:
        """Try again later where the log has gone or room has run out; otherwise the directory has failed."""
        self._pause(log)
        if self._logs.get(log.topic_partition) is not log or isinstance(error, FileNotFoundError):
            return
        if error.errno in RUN_OUT:
            _log.warning(
                "compaction delayed", extra={"partition": str(log.topic_partition), "reason": str(error)}
            )
        else:
            self._logs.directory_failed(self._logs.log_directories.of(log), error)

    def _leave_alone(self, log: Log, reason: str) -> None:
        _log.warning(
            "compaction of a partition given up",
            extra={"partition": str(log.topic_partition), "reason": reason},
        )
        self._uncleanable[log.topic_partition] = log
        self._count_uncleanable()

    def _count_uncleanable(self) -> None:
        counted: dict[Path, tuple[int, int]] = {}
        for log in self._uncleanable.values():
            count, size = counted.get(log.directory.parent, (0, 0))
            counted[log.directory.parent] = count + 1, size + log.segments.size_bytes
        self.figures.uncleanable = counted

    # ---- reports

    def _name_unreadable(self, log: Log, found: Mapping[int, str]) -> None:
        """Warn once of each batch that no cleaning can read, in few lines however many there are."""
        partition = log.topic_partition
        _, named_up_to = self._unreadable.get(partition, (log, -1))
        for offset in sorted(offset for offset in found if offset > named_up_to):
            self._warnings.warn(
                f"{partition} {offset}",
                "a batch is not compacted: its records cannot be read",
                extra={"partition": str(partition), "offset": offset, "reason": found[offset]},
            )
            self._unreadable[partition] = log, offset

    def _report(self, log: Log, dirty: DirtyRange, cleaned: Cleaned, keys: OffsetMap, took_ms: float) -> None:
        before, after = dirty.clean_bytes + dirty.dirty_bytes, cleaned.counts.bytes_written
        self.figures.buffer_utilization = keys.count / keys.slots
        self.figures.recopied = after / before if before else 0.0
        self.figures.clean_time_ms = took_ms
        _log.info(
            "partition compacted",
            extra={
                "partition": str(log.topic_partition), "end_offset": cleaned.end_offset,
                "bytes_before": before, "bytes_after": after, "keys": keys.count, "took_ms": took_ms,
            },
        )  # fmt: skip
