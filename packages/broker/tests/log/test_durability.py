from __future__ import annotations

import asyncio
import errno
from pathlib import Path

from ottla.broker.log.files.checkpoints import read_leader_epochs
from ottla.broker.log.files.fake_files import MemoryFiles
from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.state.unsynced import FlushPlan
from ottla.broker.log.testing import append, log_in, truncate_to

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
