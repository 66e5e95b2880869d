from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from weakref import WeakSet

import pytest

from ottla.broker.log.files.checkpoints import read_leader_epochs
from ottla.broker.log.files.fake_files import MemoryFile, MemoryFiles
from ottla.broker.log.files.file_system import DiskFile, DiskFiles
from ottla.broker.log.retention.retention import expire
from ottla.broker.log.segments.segment import Segment
from ottla.broker.log.state.unsynced import FlushPlan, Unsynced
from ottla.broker.log.testing import append, log_in, truncate_to
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.storage.segments import SegmentFile

AT = Path("/data")


class RemovedOnOpen(MemoryFiles):
    """A file system on which a file is removed right before it is opened."""

    removed: Path | None = None

    def open(self, path: Path, *, create: bool = False):  # type: ignore[no-untyped-def]
        if path == self.removed:
            self.removed = None
            self.unlink(path)
        return super().open(path, create=create)


async def test_appends_that_wait_together_share_one_sync() -> None:
    log = log_in(AT, MemoryFiles())
    began: list[int] = []
    begin = log.flushing.begin

    def counted() -> FlushPlan:
        began.append(log.log_end_offset)
        return begin()

    log.flushing.begin = counted  # type: ignore[method-assign]

    async def durably(number: int) -> None:
        end = append(log, b"%d" % number) + 1
        await log.durable(end)
        assert log.recovery_point >= end

    async with asyncio.timeout(60):
        await asyncio.gather(*(durably(number) for number in range(100)))

    assert began == [100]


async def test_waiting_for_durable_records_returns_at_once() -> None:
    log = log_in(AT, MemoryFiles())
    append(log, b"a")
    await log.durable()

    await log.durable()

    assert log.recovery_point == 1


async def test_a_cancelled_wait_does_not_disturb_the_others(tmp_path: Path) -> None:
    log = log_in(tmp_path, DiskFiles())
    append(log, b"a")
    waiting = asyncio.get_running_loop().create_task(log.durable())
    await asyncio.sleep(0)
    waiting.cancel()
    append(log, b"b")

    async with asyncio.timeout(60):
        await log.durable()

    assert log.recovery_point == 2


async def test_flush_messages_starts_a_sync_by_itself() -> None:
    log = log_in(AT, MemoryFiles(), flush_messages=3)
    ended, end = asyncio.Event(), log.flushing.end

    def told(plan: FlushPlan) -> None:
        end(plan)
        ended.set()

    log.flushing.end = told  # type: ignore[method-assign]
    append(log, b"a", b"b")
    assert not log.commit.busy
    append(log, b"c")

    async with asyncio.timeout(60):
        await ended.wait()
    assert log.recovery_point == 3


def test_a_flush_planned_before_a_truncation_does_not_raise_the_recovery_point() -> None:
    log = log_in(AT, MemoryFiles())
    append(log, b"a")
    append(log, b"b")
    plan = log.flushing.begin()

    truncate_to(log, 1)
    append(log, b"c")
    plan.run()
    log.flushing.end(plan)

    assert log.recovery_point <= 1


async def test_a_flush_plan_includes_the_sealed_segments_of_an_unfinished_one() -> None:
    log = log_in(AT, MemoryFiles(), segment_bytes=200)
    append(log, b"x" * 60)
    append(log, b"x" * 60)
    first = log.flushing.begin()
    append(log, b"x" * 60)
    second = log.flushing.begin()

    assert set(first.sealed) < set(second.sealed)
    second.run()
    log.flushing.end(second)

    assert (log.recovery_point, log.flushing.has_sealed) == (3, False)
    first.run()
    log.flushing.end(first)
    assert log.recovery_point == 3


def test_a_snapshot_that_retention_removes_during_a_flush_does_not_fail_it() -> None:
    files = RemovedOnOpen()
    log = log_in(AT, files, segment_bytes=200)
    for _ in range(4):
        append(log, b"x" * 60)
    plan = log.flushing.begin()
    assert len(plan.snapshots) > 1
    files.removed = plan.snapshots[0]

    plan.run()
    log.flushing.end(plan)

    assert not files.exists(plan.snapshots[0])
    assert (log.offline, log.recovery_point) == (None, 4)


async def test_a_flush_that_succeeds_after_a_failed_one_does_not_raise_the_recovery_point() -> None:
    files = MemoryFiles()
    log = log_in(AT, files)
    append(log, b"a")
    first, second = log.flushing.begin(), log.flushing.begin()

    log.flushing.failed(first, OSError(errno.EIO, "Input/output error"))
    second.run()
    log.flushing.end(second)

    assert log.offline is not None
    assert log.recovery_point == 0


def test_leader_epochs_that_change_while_a_thread_writes_them_are_written_by_the_next_flush() -> None:
    files = MemoryFiles()
    log = log_in(AT, files)
    append(log, b"a", leader_epoch=1)
    older = log.flushing.begin()
    with log.unsynced.epochs._lock:  # as a thread holds it
        append(log, b"b", leader_epoch=2)
    assert [one.epoch for one in read_leader_epochs(files, log.directory) or ()] == [1]

    log.flush()
    older.run()
    log.flushing.end(older)

    assert [one.epoch for one in read_leader_epochs(files, log.directory) or ()] == [1, 2]


class CountedSegment(Segment):
    """A segment that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedSegment.compared += 1
        return self is other

    def __hash__(self) -> int:
        return id(self)


def test_a_flush_of_many_sealed_segments_looks_at_each_a_few_times() -> None:
    unsynced, files, many = Unsynced(MemoryFiles(), is_new=False), MemoryFiles(), 500
    sealed: list[Segment] = [CountedSegment(files, AT, number) for number in range(many)]
    for segment in sealed:
        unsynced.segment_sealed(segment)
    plan = FlushPlan(files, AT, many, 0)
    plan.sealed = list(sealed)
    CountedSegment.compared = 0

    unsynced.segments_dropped(sealed[many // 2 :])
    unsynced.synced(plan)

    assert not unsynced.has_sealed
    assert CountedSegment.compared <= 2 * many


class OpenedFiles(DiskFiles):
    """A disk that counts the files that were opened, and those that are open."""

    def __init__(self) -> None:
        self.opened = 0
        self.open_now: WeakSet[DiskFile] = WeakSet()
        self.most_open = 0

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        file = super().open(path, create=create)
        self.opened += 1
        self.open_now.add(file)
        self.most_open = max(self.most_open, len(self.open_now))
        return file


def test_a_flush_opens_the_files_of_sealed_segments_on_its_thread_one_after_the_other(
    tmp_path: Path,
) -> None:
    files = OpenedFiles()
    log = log_in(tmp_path, files, segment_bytes=200, segment_index_bytes=4096)
    for _ in range(100):
        append(log, b"x" * 60)
    assert len(log.segments) == 100
    open_before, opened_before = len(files.open_now), files.opened
    files.most_open = open_before

    plan = log.flushing.begin()

    assert files.opened - opened_before <= 3  # of the active segment
    plan.run()
    assert files.most_open <= open_before + 4
    log.flushing.end(plan)
    assert (log.recovery_point, log.flushing.has_sealed) == (100, False)
    log.close()


class FullTable(MemoryFiles):
    """A file system that opens no log file while `is_full`, as a process without a free descriptor."""

    is_full = False

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        if self.is_full and path.suffix == ".log":
            raise OSError(errno.EMFILE, "Too many open files")
        return super().open(path, create=create)


def test_a_flush_that_can_open_no_file_is_repeated() -> None:
    files = FullTable()
    log = log_in(AT, files, segment_bytes=200)
    for _ in range(40):
        append(log, b"x" * 60)
    files.is_full = True

    with pytest.raises(KafkaStorageError, match="Too many open files"):
        log.flush()

    assert (log.offline, log.recovery_point) == (None, 0)
    files.is_full = False
    log.flush()
    assert (log.recovery_point, log.flushing.has_sealed) == (40, False)


def test_a_log_whose_sealed_segment_was_removed_by_another_program_goes_offline_at_the_flush() -> None:
    files = MemoryFiles()
    log = log_in(AT, files, segment_bytes=200)
    for _ in range(40):
        append(log, b"x" * 60)
    files.unlink(log.segments[0].path(SegmentFile.LOG))

    with pytest.raises(KafkaStorageError):
        log.flush()

    assert log.offline is not None
    assert log.recovery_point == 0


def test_a_sealed_segment_that_retention_removes_during_a_flush_does_not_fail_it() -> None:
    files = MemoryFiles()
    log = log_in(AT, files, segment_bytes=200, retention_ms=10)
    for _ in range(40):
        append(log, b"x" * 60)
    plan = log.flushing.begin()
    for segment in expire(log, 10**15)[:5]:
        segment.mark_deleted()

    plan.run()
    log.flushing.end(plan)

    assert (log.offline, log.recovery_point) == (None, 40)
