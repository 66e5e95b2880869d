"""Forcing a log to the disk: plan on the loop, sync on a thread, settle on the loop."""

from __future__ import annotations

import asyncio
import errno
import heapq
import logging
from collections.abc import Callable

from ottla.broker.log.state.log_state import LogState
from ottla.broker.log.state.outcomes import Flushed
from ottla.broker.log.state.unsynced import FlushPlan
from ottla.client.config_definition import MAX_LONG
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.storage.segments import SegmentFile

log = logging.getLogger(__name__)


class Flushing:
    """The flushes of one log."""

    def __init__(self, log: LogState) -> None:
        self._log = log
        self.flushed_ms = 0
        """When a flush last ended, by the broker's clock."""
        self.commit = GroupCommit(log, self)

    @property
    def unflushed(self) -> int:
        """How many records may not be on the disk."""
        return self._log.log_end_offset - self._log.recovery_point

    @property
    def has_sealed(self) -> bool:
        """Whether sealed segments may not be on the disk."""
        return self._log.unsynced.has_sealed

    @property
    def may_be_due(self) -> bool:
        """Whether a flush is due now or becomes so without another call of `flush_may_be_due`."""
        return self.has_sealed or self._log.config.flush_ms < MAX_LONG

    def begin(self) -> FlushPlan:
        """Plan a flush: to be run on a thread and given to `end` or `failed`.

        While the log is being truncated, its end is still the old one: the recovery point stays then.
        """
        state = self._log
        offset = state.recovery_point if state.is_truncating else state.log_end_offset
        plan = FlushPlan(state.files, state.directory, offset, state.truncations)
        state.unsynced.add_to(plan, state.recovery_point, state.log_end.segment, state.leader_epochs)
        return plan

    def end(self, plan: FlushPlan) -> None:
        """Settle a plan that was run: all records below its offset are on the disk.

        The log goes offline where another program has removed some of them.
        """
        lost = self._log.unsynced.lost(plan)
        if lost is not None:
            path = lost.path(SegmentFile.LOG)
            self._log.fail(FileNotFoundError(errno.ENOENT, f"{path} was removed before it was synced"))
        self._log.apply(Flushed(plan))

    def failed(self, plan: FlushPlan, error: OSError) -> None:
        """Settle a plan that failed: the log goes offline, unless the next plan can do all of it."""
        if not plan.may_be_repeated(error):
            self._log.fail(error)
            return
        self._log.note_no_room(error)
        log.warning(
            "log not flushed, tried again",
            extra={"partition": str(self._log.topic_partition), "reason": str(error)},
        )

    def flush(self) -> None:
        """Flush now. Blocks. Raises `KafkaStorageError`; the log is offline then if records were lost."""
        plan = self.begin()
        try:
            plan.run()
        except OSError as error:
            self.failed(plan, error)
            raise KafkaStorageError(
                f"{self._log.topic_partition} cannot be forced to disk: {error}"
            ) from error
        self.end(plan)
        if plan.missing and self._log.offline is not None:
            raise KafkaStorageError(f"{self._log.topic_partition} is offline: {self._log.offline}")

    async def durable(self, offset: int) -> None:
        """Wait until all records below `offset` are on the disk; appends that wait together share one sync.

        Raises `KafkaStorageError`.
        """
        if self._log.offline is not None:
            raise KafkaStorageError(f"{self._log.topic_partition} is offline: {self._log.offline}")
        await self.commit.wait(offset)


class GroupCommit:
    """Commits appends to the disk in groups: one sync for all appends made while the last one ran.

    It owns no task: the sync runs on the loop's executor, and its end is a callback.
    """

    __slots__ = ("_busy", "_flushing", "_log", "_number", "_waiting")

    def __init__(self, log: LogState, flushing: Flushing) -> None:
        self._log = log
        self._flushing = flushing
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = 0
        self._busy = False

    @property
    def busy(self) -> bool:
        """Whether a sync is under way, or about to begin."""
        return self._busy

    async def wait(self, offset: int) -> None:
        """Wait until all records below `offset` are on the disk. Raises `KafkaStorageError`."""
        if self._log.recovery_point >= offset:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._number += 1
        heapq.heappush(self._waiting, (offset, self._number, future))
        self.start(loop)
        await future

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Flush after the other appends of this turn of the loop, unless a flush is under way."""
        if not self._busy:
            self._busy = True
            (loop or asyncio.get_running_loop()).call_soon(self._begin)

    def start_or_run(self) -> None:
        """Flush soon, or at once where no event loop runs."""
        try:
            self.start(asyncio.get_running_loop())
        except RuntimeError:
            self._flushing.flush()

    def resume(self) -> None:
        """Take up the waits again that a truncation held: it was settled, or has failed."""
        if self._waiting and not self._busy:
            self._release()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            plan = self._flushing.begin()
        except OSError as error:
            # A file could not be opened: without this the waits for the disk would never end.
            self._busy = False
            self._log.fail(error)
            self._fail_waits(error)
            return
        loop.run_in_executor(None, plan.run).add_done_callback(self._ended(plan))

    def _ended(self, plan: FlushPlan) -> Callable[[asyncio.Future[None]], None]:
        def ended(result: asyncio.Future[None]) -> None:
            self._busy = False
            error = None if result.cancelled() else result.exception()
            if result.cancelled() or error is not None:
                self._failed(plan, error)
                return
            self._flushing.end(plan)
            self._release()

        return ended

    def _release(self) -> None:
        waiting, safe = self._waiting, self._log.recovery_point
        # Waits above the log end are over too: their records were truncated.
        end = self._log.log_end_offset
        while waiting and (waiting[0][0] <= safe or waiting[0][0] > end):
            future = heapq.heappop(waiting)[2]
            if not future.done():
                future.set_result(None)
        if all(future.done() for _, _, future in waiting):
            waiting.clear()
        elif self._log.offline is not None:
            self._fail_waits(None)
        elif not self._log.is_truncating:  # else the truncation calls `resume`
            self.start()

    def _failed(self, plan: FlushPlan, error: BaseException | None) -> None:
        if isinstance(error, OSError):
            self._flushing.failed(plan, error)
        self._fail_waits(error)

    def _fail_waits(self, error: BaseException | None) -> None:
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(KafkaStorageError(f"the log cannot be forced to disk: {error}"))
