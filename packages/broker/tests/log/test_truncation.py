"""Truncation: decided on the loop, carried out on a thread, settled on the loop."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from threading import Event

import pytest

from ottla.broker.config import BrokerConfig
from ottla.broker.log.files.fake_files import MemoryFiles
from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import Log
from ottla.broker.log.retention import retention
from ottla.broker.log.state.unsynced import FlushPlan
from ottla.broker.log.testing import PARTITION, append, commit, idempotent, log_in, records_of, truncate_to
from ottla.broker.runtime.environment import Environment
from ottla.protocol.errors import KafkaStorageError, OffsetOutOfRange

AT = Path("/data")


class HeldDisk(DiskFiles):
    """A disk that removes nothing and syncs no directory before `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = Event()

    def sync_dir(self, path: Path) -> None:
        assert self.go_on.wait(10)
        super().sync_dir(path)


def filled(log: Log, count: int = 6) -> Log:
    for number in range(count):
        append(log, b"%d" % number * 60, timestamp_ms=1_000 + number)
    return log


def offsets(log: Log) -> list[int]:
    return [one.offset for one in records_of(log)]


async def truncating(log: Log, offset: int) -> asyncio.Future[int]:
    """Begin a truncation whose thread is held."""
    running = asyncio.ensure_future(log.truncation.run_on_thread(log.truncation.begin(offset)))
    await asyncio.sleep(0)
    assert log.is_truncating
    return running


@pytest.mark.parametrize("segment_bytes", [200, 100_000])
async def test_a_truncation_on_a_thread_ends_as_one_on_the_loop_does(
    tmp_path: Path, segment_bytes: int
) -> None:
    on_loop = filled(log_in(tmp_path / "a", DiskFiles(), segment_bytes=segment_bytes))
    on_thread = filled(log_in(tmp_path / "b", DiskFiles(), segment_bytes=segment_bytes))

    assert truncate_to(on_loop, 3) == 3
    assert await on_thread.truncation.run_on_thread(on_thread.truncation.begin(3)) == 3

    for log in (on_loop, on_thread):
        assert append(log, b"new" * 20) == 3
        assert offsets(log) == [0, 1, 2, 3]
        assert log.offset_for_timestamp(1_003) is None
        log.close()
    assert [(one.name, one.read_bytes()) for one in sorted((tmp_path / "a" / "topic-0").iterdir())] == [
        (one.name, one.read_bytes()) for one in sorted((tmp_path / "b" / "topic-0").iterdir())
    ]


@pytest.mark.parametrize("segment_bytes", [200, 100_000])
async def test_while_files_are_cut_nothing_is_appended_and_reads_stay_in_front(
    tmp_path: Path, segment_bytes: int
) -> None:
    files = HeldDisk()
    log = filled(log_in(tmp_path, files, segment_bytes=segment_bytes))
    in_front = 3 if segment_bytes == 200 else 0
    running = await truncating(log, 3)

    with pytest.raises(KafkaStorageError, match="truncated"):
        append(log, b"too early")
    assert log.log_end_offset == 6
    for offset in range(6):
        found = log.read(offset, 1_000, up_to=6)
        assert bool(found.length) is (offset < in_front)
    assert log.offset_for_timestamp(1_004) is None
    assert log.aborted_transactions(0, 6) == []
    assert retention.expire(log, 10**12) == []
    log.configure(log.config)
    with pytest.raises(KafkaStorageError, match="are being changed"):
        truncate_to(log, 1)
    files.go_on.set()

    assert await running == log.log_end_offset == 3
    assert append(log, b"new") == 3
    assert offsets(log) == [0, 1, 2, 3]


async def test_waits_for_truncated_records_end(tmp_path: Path) -> None:
    files = HeldDisk()
    files.go_on.set()
    log = filled(log_in(tmp_path, files))
    await log.durable()
    append(log, b"a")
    files.go_on.clear()
    running = await truncating(log, 3)
    waiting = asyncio.ensure_future(log.durable(7))
    await asyncio.sleep(0)
    files.go_on.set()

    async with asyncio.timeout(60):
        await running
        await waiting
    assert log.recovery_point == 3


async def test_a_truncation_whose_caller_was_cancelled_is_settled_all_the_same(tmp_path: Path) -> None:
    files = HeldDisk()
    log = filled(log_in(tmp_path, files))
    settled = asyncio.Event()
    running = asyncio.ensure_future(
        log.truncation.run_on_thread(log.truncation.begin(2), settled=settled.set)
    )
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert log.is_truncating

    files.go_on.set()
    async with asyncio.timeout(60):
        await settled.wait()

    assert (log.is_truncating, log.log_end_offset) == (False, 2)
    assert append(log, b"new") == 2


async def test_deleting_a_log_during_its_truncation_is_refused(tmp_path: Path) -> None:
    # The thread works on paths, and a new log of this name would have the same ones.
    files = HeldDisk()
    files.go_on.set()
    logs = LogRegistry(BrokerConfig(log_dirs=(str(tmp_path),)), Environment(), files=files)
    await logs.lock()
    await logs.open()
    log = filled(logs.create(PARTITION))
    files.go_on.clear()
    running = await truncating(log, 2)

    for give_up in (logs.delete, logs.mark_stray):
        with pytest.raises(KafkaStorageError, match="are being changed"):
            give_up(PARTITION)
    assert logs.get(PARTITION) is log
    files.go_on.set()

    assert await running == 2
    logs.delete(PARTITION)
    new = logs.create(PARTITION)
    append(new, b"new")
    assert offsets(new) == [0]
    assert not logs.has_offline_directories
    await logs.close()
    await logs.unlock()


async def test_a_log_is_not_closed_cleanly_while_it_is_truncated(tmp_path: Path) -> None:
    files = HeldDisk()
    log = filled(log_in(tmp_path, files))
    running = await truncating(log, 2)

    with pytest.raises(KafkaStorageError, match="are being changed"):
        log.close()
    files.go_on.set()
    await running
    log.close()


async def test_a_truncation_that_fails_takes_the_log_offline() -> None:
    files = MemoryFiles()
    log = filled(log_in(AT, files))
    files.sync_error = OSError(errno.EIO, "Input/output error")

    with pytest.raises(KafkaStorageError):
        await log.truncation.run_on_thread(log.truncation.begin(2))

    assert log.offline is files.sync_error
    with pytest.raises(KafkaStorageError):
        log.truncation.begin(1)


async def test_a_truncation_that_finds_a_corrupt_file_takes_the_log_offline(tmp_path: Path) -> None:
    log = filled(log_in(tmp_path, DiskFiles()))
    path = log.directory / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[8:12] = (1).to_bytes(4)  # no batch is as small as that
    path.write_bytes(data)

    with pytest.raises(KafkaStorageError, match="no entry"):
        await log.truncation.run_on_thread(log.truncation.begin(3))

    assert log.offline is not None
    with pytest.raises(KafkaStorageError, match="offline"):
        await log.durable()


async def test_a_flush_during_a_truncation_does_not_raise_the_recovery_point(tmp_path: Path) -> None:
    files = HeldDisk()
    files.go_on.set()
    log = filled(log_in(tmp_path, files))
    log.flush()
    files.go_on.clear()
    running = await truncating(log, 3)

    plan = log.flushing.begin()
    lowered = log.recovery_point
    log.flushing.end(plan)

    assert log.recovery_point == lowered <= 3
    files.go_on.set()
    await running
    log.flushing.end(plan)
    assert log.recovery_point == 3


async def test_a_wait_for_the_disk_during_a_truncation_flushes_once_and_ends_with_it(tmp_path: Path) -> None:
    files = HeldDisk()
    files.go_on.set()
    log = filled(log_in(tmp_path, files))
    begun: list[int] = []
    begin = log.flushing.begin

    def counted() -> FlushPlan:
        begun.append(1)
        plan = begin()
        plan.names_changed = plan.is_new = False  # the disk holds the thread of the truncation alone
        return plan

    log.flushing.begin = counted  # type: ignore[method-assign]
    files.go_on.clear()
    running = await truncating(log, 3)
    waiting = [asyncio.ensure_future(log.durable(offset)) for offset in (2, 5)]
    await asyncio.sleep(0.1)
    assert len(begun) == 1
    files.go_on.set()

    async with asyncio.timeout(60):
        await running
        await asyncio.gather(*waiting)
    assert log.recovery_point >= 2


async def test_a_wait_for_the_disk_fails_with_the_truncation(tmp_path: Path) -> None:
    files = HeldDisk()
    log = filled(log_in(tmp_path, files))
    running = await truncating(log, 3)
    waiting = asyncio.ensure_future(log.durable(2))
    await asyncio.sleep(0)
    log.fail(OSError(errno.EIO, "Input/output error"))
    files.go_on.set()

    async with asyncio.timeout(60):
        with pytest.raises(KafkaStorageError):
            await running
        with pytest.raises(KafkaStorageError):
            await waiting


async def test_a_truncation_at_the_log_end_needs_no_thread() -> None:
    log = filled(log_in(AT))
    log.leader_epochs.assign(7, 6)
    told: list[int] = []

    plan = log.truncation.begin(9)

    assert plan is None
    assert await log.truncation.run_on_thread(plan, settled=lambda: told.append(1)) == 6
    assert told == [1]
    assert log.leader_epochs.latest == 0  # an epoch that began there wrote nothing


async def test_truncating_within_the_batch_that_holds_the_log_start_starts_anew_there() -> None:
    log = log_in(AT, segment_bytes=200)
    append(log, b"a" * 60)
    append(log, b"b", b"c", b"d")
    log.advance_log_start(3)
    append(log, b"e")

    with pytest.raises(OffsetOutOfRange):
        log.truncation.begin(2)
    assert await log.truncation.run_on_thread(log.truncation.begin(3)) == 3

    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (3, 3, 3)
    assert append(log, b"new") == 3
    assert offsets(log) == [3]


async def test_a_restart_on_a_thread_drops_all_records(tmp_path: Path) -> None:
    log = log_in(tmp_path, DiskFiles(), segment_bytes=300)
    for sequence in range(5):
        log.append(idempotent(sequence), leader_epoch=2, now_ms=0)
    commit(log)

    assert await log.truncation.run_on_thread(log.truncation.begin_restart(500)) == 500

    assert (log.log_start_offset, log.recovery_point, len(log.producers)) == (500, 500, 0)
    assert append(log, b"new") == 500
    assert offsets(log) == [500]
    log.close()
    again = log_in(tmp_path, DiskFiles())
    assert (again.log_start_offset, again.log_end_offset) == (500, 501)
    again.close()
