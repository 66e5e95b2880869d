from __future__ import annotations

import errno
from pathlib import Path
from uuid import UUID

import pytest

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.files.fake_files import MemoryFiles
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import Log
from ottla.broker.log.retention.passes import LogPasses
from ottla.broker.log.testing import append, commit, log_in, records_of
from ottla.broker.runtime.environment import Environment
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.topics import TopicPartition

PARTITION = TopicPartition("t", 0)
PLENTY = 1 << 30


class FewDescriptors(MemoryFiles):
    """A file system on which nothing more can be opened while `used_up` is set."""

    used_up = False

    def open(self, path: Path, *, create: bool = False):  # type: ignore[no-untyped-def]
        if self.used_up:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().open(path, create=create)


class NoRoomToRoll(MemoryFiles):
    """A file system on which no index can be created, and nothing renamed, while `full` is set."""

    full = False

    def open(self, path: Path, *, create: bool = False):  # type: ignore[no-untyped-def]
        if self.full and create and path.suffix == ".index":
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, create=create)

    def rename(self, source: Path, target: Path) -> None:
        if self.full:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        super().rename(source, target)


async def started(files: MemoryFiles) -> LogRegistry:
    logs = LogRegistry(BrokerConfig(log_dirs=("/data",)), Environment(), files=files)
    await logs.lock()
    await logs.open()
    return logs


async def stopped(logs: LogRegistry) -> None:
    await logs.close()
    await logs.unlock()


def filled(files: MemoryFiles) -> int:
    """Leave no byte free; gives what was."""
    return PLENTY - files.take(PLENTY)


async def test_checkpoints_that_find_the_disk_full_are_written_later() -> None:
    files = MemoryFiles(PLENTY)
    logs = await started(files)
    log = logs.create(PARTITION)
    append(log, b"value")
    await log.durable()
    free = filled(files)

    await LogPasses(logs).checkpoint_recovery_points(0)
    await LogPasses(logs).checkpoint_log_starts(0)

    assert not logs.has_offline_directories
    with pytest.raises(KafkaStorageError):
        append(log, b"no room")
    files.give(free)
    append(log, b"room")
    await LogPasses(logs).checkpoint_recovery_points(0)
    assert files.read(Path("/data/recovery-point-offset-checkpoint")) == b"0\n1\nt 0 1\n"
    await stopped(logs)
    assert files.exists(Path("/data/.kafka_cleanshutdown"))


async def test_a_flush_that_finds_the_disk_full_is_repeated() -> None:
    files = MemoryFiles(PLENTY)
    logs = await started(files)
    log = logs.create(PARTITION, config=LogConfig(flush_ms=0))
    append(log, b"value", leader_epoch=4)
    free = filled(files)

    await LogPasses(logs).flush_due(log.flushing.flushed_ms)

    assert not logs.has_offline_directories
    assert log.recovery_point == 0
    files.give(free)
    await LogPasses(logs).flush_due(log.flushing.flushed_ms)
    assert log.recovery_point == 1
    await stopped(logs)


async def test_a_flush_whose_sync_says_that_the_disk_is_full_is_never_repeated() -> None:
    files = MemoryFiles(PLENTY)
    logs = await started(files)
    log = logs.create(PARTITION)
    append(log, b"value")
    files.sync_error = OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(KafkaStorageError):
        await log.durable()

    assert log.offline is not None


async def test_retention_makes_room_on_a_full_disk() -> None:
    files = MemoryFiles(PLENTY)
    logs = await started(files)
    log = logs.create(
        PARTITION, config=LogConfig(segment_bytes=200, retention_bytes=0, file_delete_delay_ms=0)
    )
    for _ in range(4):
        append(log, b"x" * 60)
    commit(log, 3)
    filled(files)

    assert await LogPasses(logs).retain(0) == 3

    assert not logs.has_offline_directories
    assert log.log_start_offset == 3
    await LogPasses(logs).delete_due(1)
    append(log, b"there is room again")
    await stopped(logs)


async def test_retention_keeps_the_active_segment_where_there_is_no_room_for_another() -> None:
    files = FewDescriptors()
    logs = await started(files)
    log = logs.create(
        PARTITION,
        config=LogConfig(segment_bytes=200, retention_bytes=0, retention_ms=-1, file_delete_delay_ms=0),
    )
    for _ in range(3):
        append(log, b"x" * 60)
    commit(log, 3)
    files.used_up = True

    assert await LogPasses(logs).retain(0) == 2

    assert log.log_start_offset == 2
    assert not logs.has_offline_directories


async def test_a_partition_that_finds_no_room_leaves_nothing_behind() -> None:
    files = MemoryFiles(PLENTY)
    logs = await started(files)
    filled(files)

    with pytest.raises(KafkaStorageError):
        logs.create(PARTITION, UUID(int=1))

    assert not files.exists(Path("/data/t-0"))
    assert not logs.has_offline_directories


def test_a_roll_that_leaves_files_behind_takes_the_log_offline() -> None:
    # The next start would load them, and drop the records that were appended at their base offset.
    files = NoRoomToRoll()
    log = log_in(Path("/data"), files, segment_bytes=200)
    append(log, b"a" * 60)
    files.full = True
    with pytest.raises(KafkaStorageError):
        append(log, b"b" * 60)
    files.full = False

    assert log.offline is not None
    log.configure(LogConfig(segment_bytes=100_000))
    with pytest.raises(KafkaStorageError):
        append(log, b"c" * 60)
    log.close()
    again = log_in(Path("/data"), files)
    assert [one.offset for one in records_of(again)] == [0]


async def test_running_out_of_descriptors_does_not_fail_the_directory() -> None:
    files = FewDescriptors()
    logs = await started(files)
    log: Log = logs.create(PARTITION, config=LogConfig(segment_bytes=200))
    append(log, b"x" * 60)
    files.used_up = True

    with pytest.raises(KafkaStorageError):
        append(log, b"x" * 60)
    await LogPasses(logs).checkpoint_recovery_points(0)
    await LogPasses(logs).flush_due(log.flushing.flushed_ms)
    await LogPasses(logs).retain(0)
    files.used_up = False

    assert not logs.has_offline_directories
    append(log, b"x" * 60)
    assert log.log_end_offset == 2
    await stopped(logs)
