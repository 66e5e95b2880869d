"""Truncation: decided on the loop, carried out on a thread, settled on the loop."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from threading import Event

import pytest

from ottla.broker.log import log_closing, retention
from ottla.broker.log.fake_files import MemoryFiles
from ottla.broker.log.files import DiskFiles
from ottla.broker.log.log import Log
from ottla.broker.log.testing import append, commit, idempotent, log_in, records_of
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

    assert on_loop.truncate_to(3) == 3
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
    log.config = log.config
    with pytest.raises(KafkaStorageError, match="are being changed"):
        log.truncate_to(1)
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

    async with asyncio.timeout(10):
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
    async with asyncio.timeout(10):
        await settled.wait()

    assert (log.is_truncating, log.log_end_offset) == (False, 2)
    assert append(log, b"new") == 2


async def test_deleting_a_log_during_its_truncation_does_not_fail_the_directory(tmp_path: Path) -> None:
    files = HeldDisk()
    failures: list[OSError] = []
    log = filled(log_in(tmp_path, files))
    log._report_failure = failures.append
    running = await truncating(log, 2)

    target = log.directory.with_name("gone")
    files.rename(log.directory, target)
    log_closing.moved_to(log, target)
    files.go_on.set()

    with pytest.raises(KafkaStorageError):
        await running
    assert failures == []


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
