"""Forcing a log to the disk: what has to be synced, and appends that wait for it together."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ottla.broker.log.checkpoints import write_leader_epochs
from ottla.broker.log.files import RUN_OUT, File, Files
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.storage.checkpoints import EpochStart

if TYPE_CHECKING:
    from ottla.broker.log.segment import Segment


@dataclass(slots=True)
class FlushPlan:
    """Everything that has to reach the disk before offsets below `offset` are safe."""

    files: Files
    directory: Path
    offset: int
    truncations: int
    """How often the log had been truncated: after another time, `offset` is not what it was."""
    to_sync: list[File] = field(default_factory=list)
    paths_to_sync: list[Path] = field(default_factory=list)
    leader_epochs: tuple[EpochStart, ...] | None = None
    names_changed: bool = False
    is_new: bool = False
    sealed: list[Segment] = field(default_factory=list)
    """The segments among what is synced that were sealed before."""
    records_synced: bool = False

    def run(self) -> None:
        """Do it. Blocks: for a thread. After an OSError nothing may be retried: the kernel forgets what it
        could not write, and the next fsync would succeed.
        """
        for file in self.to_sync:
            file.sync()
        self.records_synced = True
        for path in self.paths_to_sync:
            if self.files.exists(path):
                self.files.open(path).sync()
        if self.leader_epochs is not None:
            write_leader_epochs(self.files, self.directory, self.leader_epochs, sync=True)
        if self.names_changed:
            self.files.sync_dir(self.directory)
        if self.is_new:
            self.files.sync_dir(self.directory.parent)

    def may_be_repeated(self, error: OSError) -> bool:
        """Whether, after this error, another plan can do what this one did not.

        Records that could not be synced are lost to the kernel. The small files are written from the start
        each time.
        """
        return self.records_synced and error.errno in RUN_OUT


class Flushable(Protocol):
    """What group commit needs of a log."""

    @property
    def log_end_offset(self) -> int: ...

    @property
    def recovery_point(self) -> int: ...

    def begin_flush(self) -> FlushPlan: ...

    def end_flush(self, plan: FlushPlan) -> None: ...

    def flush(self) -> None: ...

    def flush_failed(self, plan: FlushPlan, error: OSError) -> None: ...


class GroupCommit:
    """Lets appends wait for the disk together: one sync for all that were made while the last one ran.

    No task is owned: the sync runs on the loop's executor, and its end is a callback.
    """

    __slots__ = ("_busy", "_log", "_number", "_waiting")

    def __init__(self, log: Flushable) -> None:
        self._log = log
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = 0
        self._busy = False

    @property
    def busy(self) -> bool:
        """Whether a sync is under way, or about to begin."""
        return self._busy

    async def wait(self, offset: int) -> None:
        """Wait until everything below `offset` is on the disk. Raises `KafkaStorageError` when it
        cannot be.
        """
        if self._log.recovery_point >= offset:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._number += 1
        heapq.heappush(self._waiting, (offset, self._number, future))
        self.start(loop)
        await future

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Flush soon: once the other appends of this turn of the loop were made, unless one is under way."""
        if not self._busy:
            self._busy = True
            (loop or asyncio.get_running_loop()).call_soon(self._begin)

    def start_or_run(self) -> None:
        """`start`, or flush at once where no event loop runs."""
        try:
            self.start(asyncio.get_running_loop())
        except RuntimeError:
            self._log.flush()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        plan = self._log.begin_flush()
        loop.run_in_executor(None, plan.run).add_done_callback(self._ended(plan))

    def _ended(self, plan: FlushPlan) -> Callable[[asyncio.Future[None]], None]:
        def ended(result: asyncio.Future[None]) -> None:
            self._busy = False
            error = None if result.cancelled() else result.exception()
            if result.cancelled() or error is not None:
                self._failed(plan, error)
                return
            self._log.end_flush(plan)
            self._release()

        return ended

    def _release(self) -> None:
        waiting, safe = self._waiting, self._log.recovery_point
        # Behind the log's end nothing is waited for any more: it was truncated.
        end = self._log.log_end_offset
        while waiting and (waiting[0][0] <= safe or waiting[0][0] > end):
            future = heapq.heappop(waiting)[2]
            if not future.done():
                future.set_result(None)
        if any(not future.done() for _, _, future in waiting):
            self.start()
        else:
            waiting.clear()

    def _failed(self, plan: FlushPlan, error: BaseException | None) -> None:
        if isinstance(error, OSError):
            self._log.flush_failed(plan, error)
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(KafkaStorageError(f"the log cannot be forced to disk: {error}"))
