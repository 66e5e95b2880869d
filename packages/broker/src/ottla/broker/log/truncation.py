"""Truncating a log: decide on the loop, cut the files on a thread, settle on the loop.

Between decision and settlement the log takes no appends, and reads find no records in the segments that
change: an empty placeholder stands in their place. The log end stays as it was until then.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.broker.log.recovery.producer_snapshots import drop_snapshots, rebuilt_producers
from ottla.broker.log.segments.scan import check_entries, locate
from ottla.broker.log.segments.segment import Segment
from ottla.broker.log.segments.segments import create_segment
from ottla.broker.log.state.outcomes import EpochsTruncated, Truncated, TruncationBegun
from ottla.broker.log.state.producer_state import ProducerStates
from ottla.protocol.errors import KafkaStorageError, OffsetOutOfRange

if TYPE_CHECKING:
    from ottla.broker.config import LogConfig
    from ottla.broker.log.files.file_system import Files
    from ottla.broker.log.state.log_state import LogState

_SEARCHED_WITHOUT_INDEX_BYTES = 4096


@dataclass(slots=True, eq=False, repr=False)
class TruncationPlan:
    """Everything that has to be done to the files before the log ends at `offset` or below."""

    files: Files
    directory: Path
    config: LogConfig
    offset: int
    restart_at: int
    """The new start of the log if no record at or above this offset is left."""
    recovery_point: int
    """The recovery point before: records below it that are left are on the disk."""
    write_recovery_point: Callable[[], None] | None
    """Writes the lowered recovery point; None when it was low enough."""
    kept: list[Segment]
    """Copies of the segments in front of the cut."""
    cut: Segment | None
    """A copy of the segment that is cut; None when all segments are dropped."""
    dropped: list[Segment]
    """The segments behind the cut, the newest first."""

    # found by the run
    last: Segment | None = None
    """The segment that is the last one now."""
    log_end_offset: int = -1
    producers: ProducerStates | None = None

    def outcome(self) -> Truncated:
        """The state of the log once the plan was run."""
        assert self.last is not None
        assert self.producers is not None
        restarted, end = self.last is not self.cut, self.log_end_offset
        return Truncated(
            self.last,
            end,
            # The rest of the cut segment was synced, and nothing has changed in front of it.
            recovery_point=end if restarted else min(self.recovery_point, end),
            producers=self.producers,
            epochs_end_offset=-1 if restarted else min(self.offset, end),
            restarted=restarted,
        )

    def run(self) -> None:
        """Change the files and wait for the disk: for a thread.

        Dropped records must not come back behind those that are appended next, so all of it is synced.
        """
        if self.write_recovery_point is not None:
            self.write_recovery_point()
        # Only now: recovery takes segments below the recovery point for whole; these lose file after file.
        for segment in self.dropped:
            self._unlink(segment.mark_deleted())
        end = self._cut(self.cut) if self.cut is not None else -1
        if end < self.restart_at:
            self._restart()
            return
        self.last, self.log_end_offset = self.cut, end
        drop_snapshots(self.files, self.directory, lambda at: at > end)
        self.files.sync_dir(self.directory)
        segments = [*self.kept, self.cut] if self.cut is not None else self.kept
        self.producers = rebuilt_producers(self.files, self.directory, segments, self.restart_at, end)
        for segment in segments:
            segment.close()

    def _unlink(self, paths: list[Path]) -> None:
        for path in paths:
            self.files.unlink(path)

    def _cut(self, segment: Segment) -> int:
        """Truncate one segment in front of the batch that holds the offset; returns its end offset."""
        start = 0
        if segment.size >= _SEARCHED_WITHOUT_INDEX_BYTES:
            start = segment.offsets.lookup(self.offset).position
        entry = locate(segment.file, start, segment.size, self.offset)
        position, end = segment.size, self.offset
        if entry is not None:
            position, end = entry.position, max(segment.base_offset, min(self.offset, entry.base_offset))
        segment.activate(self.config.segment_index_bytes, keep=True)
        segment.offsets.truncate_to(end)
        segment.times.truncate_to(end)
        segment.transactions.truncate_to(end)
        segment.file.truncate(position)
        segment.size = position
        largest = _largest_timestamp(segment)
        segment.set_max_timestamp(*largest)
        segment.times.maybe_append(*largest, last_one=True)
        segment.offsets.trim()
        segment.times.trim()
        for file in segment.to_sync(indexes=True):
            file.sync()
        return end

    def _restart(self) -> None:
        """Drop the rest and create an empty segment."""
        for segment in [*([self.cut] if self.cut is not None else []), *reversed(self.kept)]:
            self._unlink(segment.mark_deleted())
        drop_snapshots(self.files, self.directory, lambda _: True)
        created = create_segment(self.files, self.directory, self.restart_at, self.config)
        created.close_indexes()
        self.files.sync_dir(self.directory)
        self.last, self.log_end_offset = created, self.restart_at
        self.producers = ProducerStates(end_offset=self.restart_at)


def _largest_timestamp(segment: Segment) -> tuple[int, int]:
    """The largest timestamp of a segment whose newest index entry may be behind its end."""
    best = segment.times.last.timestamp_ms, segment.times.last.offset
    start = segment.offsets.lookup(max(best[1], segment.base_offset)).position
    for entry in check_entries(segment.file, start, segment.size):
        if entry.max_timestamp > best[0]:
            best = entry.max_timestamp, entry.last_offset
    return best


class Truncation:
    """Truncates one log.

    `begin` or `begin_restart`, then `run_on_thread`. After any failure the log is offline: an
    OSError, or files whose content is corrupt.
    """

    def __init__(self, log: LogState, resume_flushes: Callable[[], None]) -> None:
        self._log = log
        self._resume_flushes = resume_flushes
        self._running: asyncio.Future[None] | None = None

    async def idle(self) -> None:
        """Wait until no thread changes the segments; the log knows how the last truncation ended.

        The wait for a replacement of segments is that for its renames; the cleaning behind it ends by itself.
        """
        while True:
            if self._running is not None:
                await asyncio.wait([self._running])
            elif (plan := self._log.segments.replacing) is not None:
                await plan.settled.wait()
            else:
                return

    # ---- decide

    def begin(self, offset: int) -> TruncationPlan | None:
        """Plan to drop every batch with a record at or above `offset`; None if there is none.

        A follower truncates before its first fetch in a new epoch, or replicas diverge (KIP-101): epochs that
        begin at the new end are dropped too, even those without a record. The caller informs the replication
        core once the plan is settled: until then the high watermark may be above the log end. Raises
        `OffsetOutOfRange` below the log start, `KafkaStorageError`.
        """
        log = self._log
        if offset < log.log_start_offset:
            raise OffsetOutOfRange(f"cannot cut {log} to {offset}")
        self._check_idle()
        with self._failing():
            if offset >= log.log_end_offset:
                log.apply(EpochsTruncated(log.log_end_offset))
                return None
            return self._begun(offset, restart_at=log.log_start_offset, cut=True)

    def begin_restart(self, offset: int) -> TruncationPlan:
        """Plan to drop all records and to start again at `offset`. Raises `KafkaStorageError`."""
        self._check_idle()
        with self._failing():
            return self._begun(offset, restart_at=offset, cut=False)

    def _check_idle(self) -> None:
        log = self._log
        if log.offline is not None:
            raise KafkaStorageError(f"{log} is offline: {log.offline}")
        if log.is_changing_segments:
            raise KafkaStorageError(f"the segments of {log} are being changed")

    def _begun(self, offset: int, *, restart_at: int, cut: bool) -> TruncationPlan:
        log = self._log
        changed = log.segments.since(offset) if cut else list(log.segments)
        begun = TruncationBegun(
            changed,
            Segment.placeholder(changed[0]),
            min(log.recovery_point, changed[0].base_offset if cut else 0),
            _lowered(log.cleaned_offset, offset) if cut else None,
        )
        plan = TruncationPlan(
            log.files,
            log.directory,
            log.config,
            offset,
            restart_at,
            log.recovery_point,
            log.write_lowered if begun.recovery_point < log.recovery_point else None,
            [segment.copy() for segment in log.segments.all[: len(log.segments) - len(changed)]],
            changed[0].copy() if cut else None,
            list(reversed(changed[1:] if cut else changed)),
        )
        for segment in changed:
            segment.close()  # also the mappings of its indexes: a file must not shrink under one
        log.apply(begun)
        return plan

    # ---- run and settle

    async def run_on_thread(
        self, plan: TruncationPlan | None, settled: Callable[[], None] = lambda: None
    ) -> int:
        """Carry out a plan; returns the new log end. Raises `KafkaStorageError`.

        `settled` is called on the loop together with the change of the log end, also when the caller was
        cancelled meanwhile: the thread cannot be stopped.
        """
        if plan is None:
            settled()
            return self._log.log_end_offset

        def ended(result: asyncio.Future[None]) -> None:
            self._running = None
            error = None if result.cancelled() else result.exception()
            if isinstance(error, Exception):
                self._log.fail(_as_os_error(error))
            elif error is None and not result.cancelled():
                self._settle_or_fail(plan, settled)
            self._resume_flushes()

        self._running = running = asyncio.get_running_loop().run_in_executor(None, plan.run)
        running.add_done_callback(ended)
        with self._failing():
            await asyncio.shield(running)
        if self._log.offline is not None:
            raise KafkaStorageError(f"{self._log} cannot be truncated: {self._log.offline}")
        return self._log.log_end_offset

    def _settle_or_fail(self, plan: TruncationPlan, settled: Callable[[], None]) -> None:
        if self._log.offline is not None:
            return  # deleted or closed meanwhile
        try:
            self.settle(plan)
        except Exception as error:
            self._log.fail(_as_os_error(error))
        else:
            settled()

    def settle(self, plan: TruncationPlan) -> None:
        """Make the outcome of a plan that was run the state of the log, all but the high watermark."""
        truncated = plan.outcome()
        truncated.last.activate(self._log.config.segment_index_bytes, keep=True)
        self._log.apply(truncated)

    def _failing(self) -> _Failing:
        return _Failing(self._log)


def _lowered(cleaned_offset: int | None, offset: int) -> int | None:
    return None if cleaned_offset is None else min(cleaned_offset, offset)


def _as_os_error(error: Exception) -> OSError:
    if isinstance(error, OSError):
        return error
    return OSError(errno.EIO, f"{type(error).__name__}: {error}")


class _Failing:
    """Takes the log offline at an exception and raises `KafkaStorageError` instead."""

    def __init__(self, log: LogState) -> None:
        self._log = log

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self._log.fail(_as_os_error(error))
            raise KafkaStorageError(f"{self._log} cannot be truncated: {error}") from error
