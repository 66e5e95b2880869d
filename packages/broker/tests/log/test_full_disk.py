from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.files.fake_files import Loss, MemoryFiles
from ottla.broker.log.hosting.directories import CALM_MS, DirectoryRoom
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import Log
from ottla.broker.log.retention.passes import LogPasses
from ottla.broker.log.testing import append, batch, commit, log_in, records_of
from ottla.broker.runtime.environment import Environment
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.records import assign_offsets
from ottla.protocol.storage.checkpoints import EpochStart
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


# ---- full directories


class SetClock:
    """Both clocks say what the test sets."""

    def __init__(self) -> None:
        self.ms = 1_000_000.0

    def now_ms(self) -> int:
        return int(self.ms)

    def monotonic_ms(self) -> float:
        return self.ms


class TwoVolumes(MemoryFiles):
    """Every log directory is a volume of its own; those in `full` give no space."""

    def __init__(self) -> None:
        super().__init__()
        self.full: set[Path] = set()

    def open(self, path: Path, *, create: bool = False):  # type: ignore[no-untyped-def]
        if create and any(volume in path.parents for volume in self.full) and not self.exists(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, create=create)


def test_a_directory_is_full_until_it_has_had_room_for_a_while() -> None:
    room = DirectoryRoom()

    assert room.write_failed(0, 5_000, 20_000)
    assert not room.write_failed(10, 5_000, 20_000)
    assert not room.looked(False, 1_000)
    assert not room.looked(True, 2_000)
    assert not room.looked(True, 6_999)
    assert room.looked(True, 7_000)
    assert not room.is_full
    assert not room.looked(True, 8_000)


def test_room_that_is_taken_at_once_does_not_end_the_wait() -> None:
    room = DirectoryRoom()
    room.write_failed(0, 5_000, 20_000)

    for at_ms in range(1_000, 60_000, 1_000):
        assert not room.looked(True, at_ms)
        room.write_failed(at_ms + 500, 5_000, 20_000)

    assert room.is_full


def test_a_directory_that_fills_up_again_and_again_waits_longer_each_time() -> None:
    room, now_ms, waits = DirectoryRoom(), 0.0, []
    for calm_ms in (1_000, 1_000, 1_000, 1_000, CALM_MS):
        assert room.write_failed(now_ms, 5_000, 20_000)
        waits.append(room.backoff_ms)
        room.looked(True, now_ms)
        now_ms += room.backoff_ms
        assert room.looked(True, now_ms)
        now_ms += calm_ms
    room.write_failed(now_ms, 5_000, 20_000)

    assert [*waits, room.backoff_ms] == [5_000, 10_000, 20_000, 20_000, 20_000, 5_000]


async def test_a_write_without_room_marks_its_directory_full_until_there_is_room() -> None:
    files, clock = MemoryFiles(PLENTY), SetClock()
    logs = LogRegistry(BrokerConfig(log_dirs=("/data",)), Environment(clock), files=files)
    await logs.lock()
    await logs.open()
    changes: list[tuple[Path, bool]] = []
    logs.on_room_changed.append(lambda directory, is_full: changes.append((directory, is_full)))
    log = logs.create(PARTITION)
    free = filled(files)

    with pytest.raises(KafkaStorageError):
        append(log, b"no room")
    await asyncio.sleep(0)

    assert changes == [(Path("/data"), True)]
    assert log.offline is None
    files.give(1 << 10)  # some room, but none for records to come
    for _ in range(10):
        assert await logs.look_for_room() == []
        clock.ms += 1_000
    assert changes == [(Path("/data"), True)]
    assert logs.describe()[0].usable_bytes == 0
    files.give(free - (1 << 10))
    found = []
    for _ in range(10):
        found += await logs.look_for_room()
        clock.ms += 1_000
    assert found == [Path("/data")] * 5
    assert changes == [(Path("/data"), True), (Path("/data"), False)]
    assert logs.describe()[0].usable_bytes > 0
    assert files.list(Path("/data")) == ["t-0"]
    append(log, b"room")
    await stopped(logs)


async def test_a_volume_that_shows_space_and_gives_none_has_no_room() -> None:
    files = TwoVolumes()
    logs = await started(files)
    [directory] = logs.log_directories
    assert directory.has_room()

    files.full.add(Path("/data"))

    assert not directory.has_room()
    files.full.clear()
    await stopped(logs)


async def test_a_new_log_goes_where_there_is_room() -> None:
    files = TwoVolumes()
    logs = LogRegistry(BrokerConfig(log_dirs=("/one", "/two")), Environment(), files=files)
    await logs.lock()
    await logs.open()
    files.full.add(Path("/one"))

    with pytest.raises(KafkaStorageError):
        logs.create(PARTITION)
    assert logs.log_directories.full_count == 1  # before the controller is answered
    created = logs.create(PARTITION)

    assert created.directory == Path("/two/t-0")
    files.full.clear()
    await stopped(logs)


async def test_a_log_that_cannot_be_flushed_at_a_start_for_want_of_room_is_there() -> None:
    files = MemoryFiles(PLENTY)
    logs = await started(files)
    append(logs.create(PARTITION), b"value")
    crashed = files.crash(Random(1), Loss.KEPT)
    crashed.is_full = True

    again = await started(crashed)

    found = again.get(PARTITION)
    assert found is not None
    assert [record.value for record in records_of(found)] == [b"value"]
    await asyncio.sleep(0)
    assert again.log_directories.full_count == 1
    crashed.is_full = False
    append(found, b"room")
    await stopped(again)


async def test_a_log_that_cannot_be_created_leaves_what_is_there() -> None:
    files = MemoryFiles(PLENTY)
    logs = await started(files)
    append(logs.create(PARTITION), b"value")
    await stopped(logs)
    again = await started(files)
    log = again._logs.pop(PARTITION)  # as one that was not opened
    files.is_full = True

    with pytest.raises(KafkaStorageError, match="in the way"):
        again.create(PARTITION)

    assert files.size(log.directory / "00000000000000000000.log") > 0
    files.is_full = False
    await stopped(again)


async def test_epochs_of_batches_that_found_no_room_are_not_kept() -> None:
    """The batches come again, and their epochs in their order: an earlier one would begin at the log end."""
    files = MemoryFiles(PLENTY)
    logs = await started(files)
    log = logs.create(PARTITION)
    fetched = bytearray()
    for offset, epoch in enumerate((0, 2, 2, 4)):
        data = bytearray(batch(b"value"))
        assign_offsets(data, offset, epoch)
        if offset < 2:
            log.append_as_follower(bytes(data), 0)
        else:
            fetched += data
    free = filled(files)

    with pytest.raises(KafkaStorageError):
        log.append_as_follower(bytes(fetched), 0)

    assert list(log.leader_epochs.entries) == [EpochStart(0, 0), EpochStart(2, 1)]
    files.give(free)
    log.append_as_follower(bytes(fetched), 0)
    assert list(log.leader_epochs.entries) == [EpochStart(0, 0), EpochStart(2, 1), EpochStart(4, 3)]
    await stopped(logs)
