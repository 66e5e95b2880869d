"""Forcing a log to the disk: plan on the loop, sync on a thread, settle on the loop."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from ottla.broker.log.files.checkpoints import write_leader_epochs
from ottla.broker.log.files.file_system import RUN_OUT, File, Files
from ottla.broker.log.recovery.producer_snapshots import take_snapshot
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.storage.checkpoints import EpochStart
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.log.append.log_end import LogEnd
    from ottla.broker.log.leader_epochs import LeaderEpochs
    from ottla.broker.log.producer_state import ProducerStates
    from ottla.broker.log.segments.segment import Segment

log = logging.getLogger(__name__)


class EpochsFile:
    """The leader epochs of one log on the disk. The loop and threads write it, one at a time."""

    __slots__ = ("_files", "_lock", "_written", "version")

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = Lock()
        self.version = 0
        """Rises with every change of the epochs."""
        self._written = 0

    def changed(self, directory: Path, entries: tuple[EpochStart, ...]) -> None:
        """Write changed epochs without a sync, unless a thread writes: a flush brings them to the disk."""
        self.version += 1
        if self._lock.acquire(blocking=False):
            try:
                write_leader_epochs(self._files, directory, entries, sync=False)
                self._written = self.version
            finally:
                self._lock.release()

    def sync(self, directory: Path, entries: tuple[EpochStart, ...], version: int) -> None:
        """Write the epochs of a version with a sync, unless newer ones were written. Blocks."""
        with self._lock:
            if version >= self._written:
                write_leader_epochs(self._files, directory, entries, sync=True)
                self._written = version


@dataclass(slots=True)
class FlushPlan:
    """Everything that has to reach the disk before offsets below `offset` are safe.

    Plans may overlap: each one syncs also what an unfinished one before it syncs.
    """

    files: Files
    directory: Path
    offset: int
    truncations: int
    """How often the log had been truncated: after another time, `offset` is not what it was."""
    to_sync: list[File] = field(default_factory=list)
    sealed: list[Segment] = field(default_factory=list)
    """The sealed segments whose files are in `to_sync`."""
    snapshots: list[Path] = field(default_factory=list)
    leader_epochs: tuple[EpochStart, ...] | None = None
    epochs_file: EpochsFile | None = None
    epochs_version: int = 0
    names_version: int = 0
    names_changed: bool = False
    is_new: bool = False
    records_synced: bool = False

    def run(self) -> None:
        """Sync everything. Blocks: for a thread.

        After an OSError nothing may be retried: the kernel forgets the pages that it could not write, and the
        next fsync would succeed.
        """
        for file in self.to_sync:
            file.sync()
        self.records_synced = True
        for path in self.snapshots:
            with suppress(FileNotFoundError):  # retention and truncation remove snapshots meanwhile
                self.files.open(path).sync()
        if self.leader_epochs is not None and self.epochs_file is not None:
            self.epochs_file.sync(self.directory, self.leader_epochs, self.epochs_version)
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
    """The facts of a log that a flush depends on."""

    files: Files
    directory: Path
    topic_partition: TopicPartition
    is_truncating: bool

    @property
    def log_end_offset(self) -> int: ...

    @property
    def log_end(self) -> LogEnd: ...

    @property
    def leader_epochs(self) -> LeaderEpochs: ...

    @property
    def producers(self) -> ProducerStates: ...

    @property
    def offline(self) -> OSError | None: ...

    def fail(self, error: OSError) -> None: ...


class Flushing:
    """Which part of one log is on the disk, and the flushes that bring the rest there."""

    def __init__(
        self, flushable: Flushable, *, recovery_point: int, is_new: bool, lowered: Callable[[], None]
    ) -> None:
        self._log = flushable
        self.recovery_point = recovery_point
        """All records below it are on the disk."""
        self.flushed_ms = 0
        """When a flush last ended, by the broker's clock."""
        self.commit = GroupCommit(self)
        self.write_recovery_point = lowered
        """Writes a lowered recovery point into the checkpoint. Blocks."""
        self._epochs = EpochsFile(flushable.files)
        self._epochs_synced = 0
        self._names_version = int(is_new)
        self._names_synced = 0
        self._is_new = is_new
        self._sealed: list[Segment] = []
        self._snapshots: list[Path] = []
        self._truncations = 0

    @property
    def log_end_offset(self) -> int:
        """The end of the log."""
        return self._log.log_end_offset

    @property
    def unflushed(self) -> int:
        """How many records may not be on the disk."""
        return self._log.log_end_offset - self.recovery_point

    @property
    def is_offline(self) -> bool:
        """Whether nothing can be written any more."""
        return self._log.offline is not None

    @property
    def is_truncating(self) -> bool:
        """Whether a truncation is under way: no flush raises the recovery point until it is settled."""
        return self._log.is_truncating

    @property
    def truncations(self) -> int:
        """How often the log was truncated; asked on any thread."""
        return self._truncations

    @property
    def has_sealed(self) -> bool:
        """Whether sealed segments may not be on the disk."""
        return bool(self._sealed)

    # ---- changes that a flush brings to the disk

    def segment_sealed(self, segment: Segment) -> None:
        """Note a segment that was sealed, or sealed and not flushed before a restart."""
        self._sealed.append(segment)
        self._names_version += 1

    def segments_dropped(self, segments: list[Segment]) -> None:
        """Forget segments that are no longer in the log."""
        self._sealed = [one for one in self._sealed if one not in segments]

    def names_changed(self) -> None:
        """Note that files were created, renamed or removed."""
        self._names_version += 1

    def epochs_changed(self) -> None:
        """Write the leader epochs; where there is no room for them, a flush does it later."""
        self._names_version += 1
        try:
            self._epochs.changed(self._log.directory, self._log.leader_epochs.entries)
        except OSError as error:
            # Until the next flush has written them, a start looks for them in the log itself.
            if error.errno not in RUN_OUT:
                raise
            log.warning("the leader epochs of %s are not written: %s", self._log.topic_partition, error)

    def take_snapshot(self, offset: int) -> None:
        """Write the producers' state at `offset`; without it, a start has to read more of the log."""
        flushable = self._log
        try:
            path = take_snapshot(flushable.files, flushable.directory, offset, flushable.producers.entries())
        except OSError as error:
            partition = flushable.topic_partition
            log.warning("%s has no snapshot of its producers at %d: %s", partition, offset, error)
            return
        self._snapshots.append(path)
        self._names_version += 1

    def truncated_to(self, offset: int) -> None:
        """Lower the recovery point: records that are appended at `offset` or above will be new ones.

        A flush that was planned before does not raise it again.
        """
        self._truncations += 1
        self._names_version += 1
        self.recovery_point = min(self.recovery_point, offset)

    # ---- one flush

    def begin(self) -> FlushPlan:
        """Plan a flush: to be run on a thread and given to `end` or `failed`.

        While the log is being truncated, its end is still the old one: the recovery point stays then.
        """
        flushable = self._log
        offset = self.recovery_point if flushable.is_truncating else flushable.log_end_offset
        plan = FlushPlan(flushable.files, flushable.directory, offset, self._truncations)
        plan.sealed, plan.snapshots = list(self._sealed), list(self._snapshots)
        for segment in plan.sealed:
            plan.to_sync += segment.to_sync()
        plan.names_version = self._names_version
        plan.names_changed = self._names_version != self._names_synced
        if plan.offset != self.recovery_point or plan.names_changed:
            plan.to_sync += flushable.log_end.segment.to_sync()
        if self._epochs.version != self._epochs_synced:
            plan.leader_epochs, plan.epochs_file = flushable.leader_epochs.entries, self._epochs
        plan.epochs_version = self._epochs.version
        plan.is_new = self._is_new
        return plan

    def end(self, plan: FlushPlan) -> None:
        """Settle a plan that was run: all records below its offset are on the disk."""
        self._sealed = [one for one in self._sealed if one not in plan.sealed]
        self._snapshots = [one for one in self._snapshots if one not in plan.snapshots]
        self._names_synced = max(self._names_synced, plan.names_version)
        self._epochs_synced = max(self._epochs_synced, plan.epochs_version)
        self._is_new = self._is_new and not plan.is_new
        # A sync that succeeds after a failed one proves nothing: the kernel has dropped the pages.
        if plan.truncations == self._truncations and not self.is_offline:
            self.recovery_point = max(self.recovery_point, plan.offset)

    def failed(self, plan: FlushPlan, error: OSError) -> None:
        """Settle a plan that failed: the log goes offline, unless the next plan can do all of it."""
        if not plan.may_be_repeated(error):
            self._log.fail(error)
            return
        log.warning("%s is not all on the disk: %s", self._log.topic_partition, error)

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

    async def durable(self, offset: int) -> None:
        """Wait until all records below `offset` are on the disk; appends that wait together share one sync.

        Raises `KafkaStorageError`.
        """
        if self._log.offline is not None:
            raise KafkaStorageError(f"{self._log.topic_partition} is offline: {self._log.offline}")
        await self.commit.wait(offset)


class GroupCommit:
    """Lets appends wait for the disk together: one sync for all appends made while the last one ran.

    It owns no task: the sync runs on the loop's executor, and its end is a callback.
    """

    __slots__ = ("_busy", "_flushing", "_number", "_waiting")

    def __init__(self, flushing: Flushing) -> None:
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
        if self._flushing.recovery_point >= offset:
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
        plan = self._flushing.begin()
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
        waiting, safe = self._waiting, self._flushing.recovery_point
        # Waits above the log end are over too: their records were truncated.
        end = self._flushing.log_end_offset
        while waiting and (waiting[0][0] <= safe or waiting[0][0] > end):
            future = heapq.heappop(waiting)[2]
            if not future.done():
                future.set_result(None)
        if all(future.done() for _, _, future in waiting):
            waiting.clear()
        elif self._flushing.is_offline:
            self._fail_waits(None)
        elif not self._flushing.is_truncating:  # else the truncation calls `resume`
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
