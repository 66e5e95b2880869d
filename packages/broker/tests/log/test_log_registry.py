from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID
from weakref import ref

import pytest

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.files.fake_files import MemoryFiles
from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.hosting.directories import LogDirectoryRefused, checked_paths
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import Log
from ottla.broker.log.retention.passes import LogPasses
from ottla.broker.log.testing import PARTITION, append, records_of
from ottla.broker.metrics import Metrics
from ottla.broker.runtime.environment import Environment
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.topics import TopicPartition


async def started(directories: list[Path], **settings: int) -> LogRegistry:
    config = BrokerConfig(log_dirs=tuple(map(str, directories)), **settings)  # type: ignore[arg-type]
    logs = LogRegistry(config, Environment(), Metrics())
    await logs.lock()
    logs.identify(3, "cluster")
    await logs.open()
    return logs


def deleted(log: Log) -> list[Path]:
    return list(log.directory.glob("*.log.deleted"))


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.glob("topic-0*")]


async def stopped(logs: LogRegistry) -> None:
    await logs.close()
    await logs.unlock()


async def test_partitions_come_back_after_a_clean_stop(tmp_path: Path) -> None:
    topic_id = UUID(int=77)
    logs = await started([tmp_path])
    append(logs.create(PARTITION, topic_id), b"value")
    await stopped(logs)
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\ntopic 0 1\n"

    logs = await started([tmp_path])

    found = logs.get(PARTITION)
    assert found is not None
    assert (found.log_end_offset, found.topic_id) == (1, topic_id)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    await stopped(logs)


async def test_a_second_broker_on_a_directory_is_refused_with_one_line(tmp_path: Path) -> None:
    logs = await started([tmp_path])
    with pytest.raises(LogDirectoryRefused, match="another broker uses the log directory") as refused:
        await started([tmp_path])
    assert "\n" not in str(refused.value)
    await stopped(logs)

    await stopped(await started([tmp_path]))


@pytest.mark.parametrize(("broker_id", "cluster_id"), [(4, "cluster"), (3, "other")])
async def test_a_directory_of_another_broker_or_cluster_is_refused(
    tmp_path: Path, broker_id: int, cluster_id: str
) -> None:
    await stopped(await started([tmp_path]))
    logs = LogRegistry(BrokerConfig(log_dirs=(str(tmp_path),)), Environment())
    await logs.lock()

    with pytest.raises(LogDirectoryRefused, match="belongs to"):
        logs.identify(broker_id, cluster_id)
    await logs.unlock()


def test_directories_that_are_named_twice_or_nested_are_refused(tmp_path: Path) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "two")

    assert checked_paths([one, other]) == [Path(one), Path(other)]
    for bad in ([one, one + "/"], [one, one + "/inner"], [one + "/inner", one]):
        with pytest.raises(LogDirectoryRefused):
            checked_paths(bad)


async def test_damaged_meta_properties_are_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=9\n")
    with pytest.raises(LogDirectoryRefused, match=r"meta\.properties"):
        await started([tmp_path])


async def test_new_partitions_are_placed_in_the_directory_with_the_fewest(tmp_path: Path) -> None:
    logs = await started([tmp_path / "one", tmp_path / "two"])
    for partition in range(6):
        logs.create(TopicPartition("spread", partition))

    described = logs.describe()

    assert [len(one.partitions) for one in described] == [3, 3]
    assert all(one.total_bytes >= one.usable_bytes > 0 for one in described)
    await stopped(logs)


async def test_a_deleted_partition_is_gone_at_once_and_its_files_later(tmp_path: Path) -> None:
    logs = await started([tmp_path])
    deleted = logs.create(PARTITION)
    append(deleted, b"value")
    kept = deleted.read(0, 1000, up_to=1)

    logs.delete(PARTITION)

    assert logs.get(PARTITION) is None
    assert names(tmp_path) != ["topic-0"]
    assert logs.create(PARTITION).log_end_offset == 0
    with pytest.raises(KafkaStorageError):
        append(deleted, b"too late")
    now_ms = Environment().clock.now_ms()
    assert await LogPasses(logs).delete_due(now_ms) == 0
    assert await LogPasses(logs).delete_due(now_ms + 61_000) == 1
    assert names(tmp_path) == ["topic-0"]
    assert kept.read()
    await stopped(logs)


async def test_a_deleted_partition_holds_no_file_open(tmp_path: Path) -> None:
    logs = await started([tmp_path])
    deleted = logs.create(PARTITION)
    append(deleted, b"value")
    active = ref(deleted.segments[-1].file)

    logs.delete(PARTITION)

    assert active() is None
    assert deleted.offline is not None  # somebody may still have the log
    await stopped(logs)


async def test_data_is_for_the_brokers_own_account(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        logs = await started([tmp_path / "parent" / "data"])
        append(logs.create(PARTITION, UUID(int=7)), b"value")
        await LogPasses(logs).checkpoint_recovery_points(0)
    finally:
        os.umask(before)

    found = {one: one.stat().st_mode & 0o777 for one in (tmp_path / "parent" / "data").rglob("*")}
    assert {mode for path, mode in found.items() if path.is_file()} == {0o600}
    assert {mode for path, mode in found.items() if path.is_dir()} == {0o700}
    assert (tmp_path / "parent" / "data").stat().st_mode & 0o777 == 0o700
    await stopped(logs)


async def test_a_pending_deletion_is_finished_after_a_restart(tmp_path: Path) -> None:
    logs = await started([tmp_path])
    append(logs.create(PARTITION), b"value")
    logs.delete(PARTITION)
    await stopped(logs)

    logs = await started([tmp_path])
    await LogPasses(logs).delete_due(0)

    assert logs.get(PARTITION) is None
    assert not names(tmp_path)
    await stopped(logs)


class SlowDisk(DiskFiles):
    """Deletes a file only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.deleted: list[Path] = []

    def unlink(self, path: Path) -> None:
        self._wait()
        super().unlink(path)
        self.deleted.append(path)

    def remove_tree(self, path: Path) -> None:
        self._wait()
        super().remove_tree(path)
        self.deleted.append(path)

    def _wait(self) -> None:
        self.begun.set()
        self.go_on.wait(60)


async def test_a_stop_waits_for_the_file_that_is_being_deleted_and_leaves_the_others(tmp_path: Path) -> None:
    disk = SlowDisk()
    logs = LogRegistry(BrokerConfig(log_dirs=(str(tmp_path),)), Environment(), Metrics(), files=disk)
    await logs.lock()
    logs.identify(3, "cluster")
    await logs.open()
    append(logs.create(PARTITION), b"value")
    logs.delete(PARTITION)
    deleting = asyncio.ensure_future(LogPasses(logs).delete_due(1 << 60))
    await asyncio.to_thread(disk.begun.wait, 60)

    deleting.cancel()
    asyncio.get_running_loop().call_later(0.3, disk.go_on.set)
    await stopped(logs)
    at_the_end = list(disk.deleted)

    assert len(at_the_end) == 1
    logs = await started([tmp_path])
    await LogPasses(logs).delete_due(0)
    assert not names(tmp_path)
    await stopped(logs)


async def test_stray_partitions_are_renamed_and_kept(tmp_path: Path) -> None:
    logs = await started([tmp_path])
    logs.create(PARTITION)
    logs.mark_stray(PARTITION)
    await stopped(logs)

    logs = await started([tmp_path])

    assert logs.get(PARTITION) is None
    assert [name.endswith("-stray") for name in names(tmp_path)] == [True]
    await stopped(logs)


async def test_retention_checkpoints_the_new_start_before_it_deletes_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "log-cleaner")
    logs = await started([tmp_path], log_segment_bytes=150, log_retention_ms=1_000)
    log = logs.create(PARTITION)
    for number in range(5):
        append(log, b"x" * 60, timestamp_ms=number)

    assert await LogPasses(logs).retain(10**9) == 5

    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\ntopic 0 5\n"
    assert len(deleted(log)) == 5
    [line] = [vars(record) for record in caplog.records if record.name == "log-cleaner"]
    assert (line["message"], line["partition"], line["segments"]) == ("segments deleted", "topic-0", 5)
    await LogPasses(logs).delete_due(10**9 + 60_000)
    assert not deleted(log)
    await stopped(logs)


async def test_the_log_start_survives_a_restart(tmp_path: Path) -> None:
    logs = await started([tmp_path])
    log = logs.create(PARTITION)
    append(log, b"a", b"b", b"c")
    log.advance_log_start(2)
    await stopped(logs)

    logs = await started([tmp_path])

    found = logs.get(PARTITION)
    assert found is not None
    assert found.log_start_offset == 2
    await stopped(logs)


async def test_flush_ms_and_rolled_segments_make_a_flush_due(tmp_path: Path) -> None:
    logs = await started([tmp_path], log_flush_interval_ms=5_000, log_segment_bytes=200)
    log = logs.create(PARTITION)
    append(log, b"x" * 60)

    assert await LogPasses(logs).flush_due(log.flushing.flushed_ms + 4_999) == 0
    assert await LogPasses(logs).flush_due(log.flushing.flushed_ms + 5_000) == 1
    assert log.recovery_point == 1
    append(log, b"x" * 60)
    append(log, b"x" * 60)
    assert await LogPasses(logs).flush_due(log.flushing.flushed_ms) == 1
    assert log.recovery_point == 3
    await stopped(logs)


async def test_the_flusher_looks_only_at_logs_of_which_a_flush_may_be_due(tmp_path: Path) -> None:
    logs = await started([tmp_path], log_segment_bytes=200)
    rolled, changed, *others = [logs.create(TopicPartition("t", number)) for number in range(20)]
    passes = LogPasses(logs)
    for log in (rolled, changed, *others):
        append(log, b"x" * 60)
    assert await passes.flush_due(0) == 0
    assert logs.flushes() == []

    append(rolled, b"x" * 60)
    append(rolled, b"x" * 60)
    changed.configure(LogConfig.from_broker(logs.config, {"flush.ms": "5000"}))
    assert logs.flushes() == [rolled, changed]
    assert await passes.flush_due(changed.flushing.flushed_ms) == 1
    assert logs.flushes() == [changed], "it is asked again, whenever records come"
    assert await passes.flush_due(changed.flushing.flushed_ms + 5_000) == 1
    changed.configure(LogConfig.from_broker(logs.config))
    logs.delete(rolled.topic_partition)
    assert (rolled.recovery_point, changed.recovery_point, logs.flushes()) == (3, 1, [])
    await stopped(logs)


async def test_a_failed_disk_takes_its_partitions_offline_and_the_others_stay() -> None:
    files = MemoryFiles()
    config = BrokerConfig(log_dirs=("/one", "/two"))
    logs = LogRegistry(config, Environment(), files=files)
    await logs.lock()
    await logs.open()
    lost: list[TopicPartition] = []
    logs.on_directory_failed.append(lost.extend)
    first, second = (logs.create(TopicPartition("t", number)) for number in range(2))
    append(first, b"a")
    files.sync_error = OSError(errno.EIO, "Input/output error")

    with pytest.raises(KafkaStorageError):
        await first.durable()
    await asyncio.sleep(0)
    files.sync_error = None

    assert lost == [TopicPartition("t", 0)]
    assert logs.get(TopicPartition("t", 0)) is None
    assert logs.has_offline_directories
    assert not logs.all_offline
    assert logs.directories() == [Path("/two")]
    assert logs.describe()[0].error is not None
    with pytest.raises(KafkaStorageError):
        logs.create(TopicPartition("t", 0), is_new=False)
    append(second, b"b")
    await logs.close()
    assert not files.exists(Path("/one/.kafka_cleanshutdown"))
    assert files.exists(Path("/two/.kafka_cleanshutdown"))


async def test_a_directory_that_cannot_be_created_is_offline_and_refused_only_if_no_other_is_left(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    bad, good = tmp_path / "file" / "data", tmp_path / "good"

    logs = await started([bad, good])
    assert logs.directories() == [good]
    await stopped(logs)
    with pytest.raises(LogDirectoryRefused, match="no log directory can be used"):
        await started([bad])


@pytest.mark.parametrize("content", [b"", b"0\n5\n", b"garbage", b"0\n1\ntopic 0 9"])
async def test_a_damaged_checkpoint_is_not_trusted(tmp_path: Path, content: bytes) -> None:
    logs = await started([tmp_path])
    append(logs.create(PARTITION), b"value")
    await stopped(logs)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(content)

    logs = await started([tmp_path])

    found = logs.get(PARTITION)
    assert found is not None
    assert [one.value for one in records_of(found)] == [b"value"]
    await stopped(logs)


async def test_a_topics_configuration_is_used(tmp_path: Path) -> None:
    overrides: Mapping[str, str] = {"segment.bytes": "150"}
    config = BrokerConfig(log_dirs=(str(tmp_path),))
    logs = LogRegistry(config, Environment())
    await logs.lock()
    await logs.open(lambda _: LogConfig.from_broker(config, overrides))
    log = logs.create(PARTITION, config=LogConfig.from_broker(config, overrides))
    for _ in range(3):
        append(log, b"x" * 60)
    assert len(log.segments) == 3
    log.configure(LogConfig())
    append(log, b"x" * 60)
    assert len(log.segments) == 3
    await stopped(logs)


async def test_no_log_is_created_or_deleted_while_logs_are_closed(tmp_path: Path) -> None:
    logs = await started([tmp_path])
    append(logs.create(PARTITION), b"value")
    closing = asyncio.ensure_future(logs.close())
    await asyncio.sleep(0)

    with pytest.raises(KafkaStorageError, match="the broker stops"):
        logs.delete(PARTITION)
    with pytest.raises(KafkaStorageError, match="the broker stops"):
        logs.create(TopicPartition("other", 0))

    await closing
    await logs.unlock()
    logs = await started([tmp_path])
    assert [log.topic_partition for log in logs] == [PARTITION]
    await stopped(logs)


async def test_logs_are_closed_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = await started([tmp_path])
    for number in range(4):
        logs.create(TopicPartition("topic", number), UUID(int=77))
    all_close, close = threading.Barrier(4), Log.close

    def close_with_others(log: Log) -> None:
        all_close.wait(timeout=60)
        close(log)

    monkeypatch.setattr(Log, "close", close_with_others)

    await stopped(logs)

    assert not all_close.broken
    assert (tmp_path / ".kafka_cleanshutdown").exists()
