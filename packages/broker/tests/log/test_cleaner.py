"""The cleaner on whole logs: what it leaves, and what makes it stop."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from ottla.broker.log.compaction.cleaner import Cleaner
from ottla.broker.log.compaction.cleaner_testing import DIRECTORY, clean, fill, registry, until
from ottla.broker.log.compaction.cleaning_pace import CleaningStopped, Pace, Throttle
from ottla.broker.log.files.fake_files import Loss, MemoryFiles
from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.log import AppendOrigin, Log
from ottla.broker.log.retention.passes import LogPasses
from ottla.broker.log.testing import batch, commit, idempotent, records_of, truncate_to
from ottla.broker.metrics import Metrics
from ottla.protocol.records import BatchBuilder, ControlType, end_transaction_marker, read_headers
from ottla.protocol.storage.checkpoints import CLEANER_OFFSETS_FILE, decode_offset_checkpoint
from ottla.protocol.topics import TopicPartition

PARTITION = TopicPartition("compacted", 0)


def names(log: Log) -> list[str]:
    return [name for name in log.files.list(log.directory) if name.endswith((".cleaned", ".swap"))]


async def test_the_last_value_of_each_key_is_left_where_it_was() -> None:
    files = MemoryFiles()
    async with registry(files) as logs:
        log = logs.create(PARTITION)
        fill(log, 100)
        before = {one.offset: one for one in records_of(log)}
        active, end = log.segments[-1].base_offset, log.log_end_offset

        assert await clean(logs) == 1

        left = [one for one in records_of(log) if one.offset < active]
        assert [one.offset for one in left] == list(range(active - 5, active))
        assert all(before[one.offset] == one for one in left)
        assert (log.log_start_offset, log.log_end_offset) == (0, end)
        assert log.cleaned_offset == active
        assert await clean(logs) == 0
        written = files.read(DIRECTORY / CLEANER_OFFSETS_FILE)
        assert decode_offset_checkpoint(written) == {PARTITION: active}
    async with registry(files) as logs:
        again = logs.get(PARTITION)
        assert again is not None
        assert again.cleaned_offset == active
        assert records_of(again)[: len(left)] == left
        assert again.log_end_offset == end


async def test_a_cleaned_log_that_is_not_compacted_any_more_is_whole_after_a_crash() -> None:
    files = MemoryFiles()
    async with registry(files) as logs:
        log = logs.create(PARTITION)
        fill(log, 100)
        await clean(logs)
        left = records_of(log)
        files = files.crash(Random(0), Loss.KEPT)

    async with registry(files, log_cleanup_policy=("delete",)) as logs:
        again = logs.get(PARTITION)
        assert again is not None
        assert records_of(again) == left
        assert again.log_end_offset == 100


async def test_positions_times_and_epochs_are_found_across_gaps() -> None:
    async with registry() as logs:
        log = logs.create(PARTITION)
        fill(log, 100)
        epochs = log.leader_epochs.entries

        await clean(logs)

        left = [one.offset for one in records_of(log)]
        for offset in range(100):
            data = log.read(offset, 10_000, up_to=100).read()
            assert read_headers(data)[0].last_offset >= offset
        for offset in range(0, 100, 7):
            found = log.offset_for_timestamp(1_000 + offset)
            assert found is not None
            assert found.offset == min(one for one in left if one >= offset)
        assert log.leader_epochs.entries == epochs


async def test_tombstones_go_when_their_retention_has_passed() -> None:
    async with registry(log_cleaner_delete_retention_ms=500) as logs:
        log = logs.create(PARTITION)
        for number in range(5):
            data = batch(b"value", keys=[b"gone %d" % number])
            log.append(data, leader_epoch=0, now_ms=0)
            log.append(tombstone(b"gone %d" % number), leader_epoch=0, now_ms=0)
        fill(log, 40)
        for now_ms, left in ((10_000, 5), (10_499, 5), (10_500, 0)):
            assert await clean(logs, now_ms) == 1
            gone = [one for one in records_of(log) if (one.key or b"").startswith(b"gone")]
            assert [one.value for one in gone] == [None] * left
            fill(log, 100, keys=3, start=2_000)


def tombstone(key: bytes) -> bytes:
    builder = BatchBuilder()
    builder.append(key, None, 1_500)
    return builder.build()


async def test_aborted_records_go_at_once_and_markers_with_their_retention() -> None:
    async with registry(log_cleaner_delete_retention_ms=500) as logs:
        log = logs.create(PARTITION)
        for kind, producer_id in ((ControlType.ABORT, 1), (ControlType.COMMIT, 2)):
            data = idempotent(0, producer_id=producer_id, transactional=True, keys=[b"in %d" % producer_id])
            log.append(data, leader_epoch=0, now_ms=0)
            log.append(a_marker(kind, producer_id), leader_epoch=0, now_ms=0, origin=AppendOrigin.COORDINATOR)
        fill(log, 60)

        await clean(logs, 10_000)
        assert [one.key for one in records_of(log)][:2] == [b"\0\0\0\0", b"in 2"]
        log.producers.expire(10**9, 0)
        assert len(log.aborted_transactions(0, log.log_end_offset)) == 1
        for now_ms in (20_000, 30_000, 30_500):
            fill(log, 200, start=1_000)
            assert await clean(logs, now_ms) == 1
        assert log.aborted_transactions(0, log.log_end_offset) == []

        left = [one.key for one in records_of(log)]
        assert b"in 1" not in left
        assert b"in 2" in left
        assert b"\0\0\0\0" not in left
        assert b"\0\0\0\1" in left, "its transaction still has records"


def a_marker(kind: ControlType, producer_id: int) -> bytes:
    return end_transaction_marker(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1_000
    )


async def test_the_state_of_producers_outlives_their_records() -> None:
    files = MemoryFiles()
    async with registry(files) as logs:
        log = logs.create(PARTITION)
        for sequence in range(3):
            log.append(idempotent(sequence, keys=[b"key 1"]), leader_epoch=0, now_ms=0)
        fill(log, 100)
        await clean(logs)
        assert next(one.key for one in records_of(log)) != b"key 1"
        for name in files.list(log.directory):
            if name.endswith(".snapshot"):
                files.unlink(log.directory / name)
        directory = log.directory
    for name in files.list(directory):
        if name.endswith(".snapshot"):
            files.unlink(directory / name)
    async with registry(files) as logs:
        again = logs.get(PARTITION)
        assert again is not None
        producer = again.producers.get(7)
        assert producer is not None
        assert producer.last_sequence == 2


async def test_a_map_that_is_too_small_takes_several_passes() -> None:
    settings: dict[str, Any] = {"log_segment_bytes": 200_000, "log_cleaner_min_cleanable_ratio": 0.0}
    async with registry(log_cleaner_dedupe_buffer_size=1 << 20, **settings) as logs:
        log = logs.create(PARTITION)
        many = [b"%d" % number for number in range(5_000)]
        for number in range(40):
            log.append(
                batch(*many, keys=[b"%d" % (number % 20) + one for one in many]), leader_epoch=0, now_ms=0
            )
        commit(log)
        log.flush()
        active = log.segments[-1].base_offset

        assert await clean(logs) >= 2

        left = [one.key for one in records_of(log) if one.offset < active]
        assert len(left) == len(set(left))


async def test_a_batch_with_more_keys_than_the_map_takes_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with registry(log_cleaner_dedupe_buffer_size=1 << 20, log_segment_bytes=10 << 20) as logs:
        log = logs.create(PARTITION)
        keys = [b"%d" % number for number in range(50_000)]
        for _ in range(12):
            log.append(batch(*keys, keys=keys), leader_epoch=0, now_ms=0)
        commit(log)
        log.flush()

        with caplog.at_level(logging.WARNING):
            assert await clean(logs) == 1

        assert "raise log.cleaner.dedupe.buffer.size" in vars(caplog.records[-1])["reason"]


async def test_a_segment_that_ends_in_a_gap_is_cleaned_to_its_end() -> None:
    async with registry(log_cleaner_min_cleanable_ratio=0.0) as logs:
        log = logs.create(PARTITION)
        for offset in (*range(12), 30):
            keys = [b"key %d" % (offset % 3)]
            data = batch(b"value", keys=keys, base_offset=offset, partition_leader_epoch=0)
            log.append_as_follower(data, now_ms=1)
        assert truncate_to(log, 20) == 20
        commit(log)
        log.roll(1)
        log.flush()
        cleaner = Cleaner(logs)

        assert await cleaner.clean_next(10_000) == PARTITION

        assert log.cleaned_offset == 20
        assert await cleaner.clean_next(10_000) is None
        assert cleaner.figures.uncleanable == {}


async def test_a_damaged_segment_ends_the_cleaning_of_its_partition_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with registry() as logs:
        damaged, sound = logs.create(PARTITION), logs.create(TopicPartition("sound", 0))
        fill(damaged, 100)
        fill(sound, 60)
        damaged.segments[1].file.pwrite(b"\xff", 70)
        metrics = Metrics()
        cleaner = Cleaner(logs, metrics)

        with caplog.at_level(logging.WARNING):
            while await cleaner.clean_next(10_000):
                pass

        given_up = [vars(record)["partition"] for record in caplog.records if "given up" in record.message]
        assert given_up == ["compacted-0"]
        assert damaged.cleaned_offset is None
        assert sound.cleaned_offset is not None
        assert names(damaged) == []
        gauge = metrics.get(
            "kafka.log", "LogCleanerManager", "uncleanable-partitions-count", logDirectory=str(DIRECTORY)
        )
        assert gauge is not None
        assert gauge.value == 1  # type: ignore[union-attr]
        logs.delete(PARTITION)
        assert await cleaner.clean_next(10_000) is None
        assert gauge.value == 0  # type: ignore[union-attr]


async def test_a_truncation_below_what_was_cleaned_makes_it_dirty_again() -> None:
    files = MemoryFiles()
    async with registry(files) as logs:
        log = logs.create(PARTITION)
        fill(log, 100)
        await clean(logs)

        truncate_to(log, 40)

        assert log.cleaned_offset is not None
        assert log.cleaned_offset <= 40
        written = decode_offset_checkpoint(files.read(DIRECTORY / CLEANER_OFFSETS_FILE))
        assert written == {PARTITION: log.cleaned_offset}
        fill(log, 60, start=200)
        assert await clean(logs) == 1


async def test_a_new_partition_does_not_get_the_checkpoint_of_a_deleted_one() -> None:
    files = MemoryFiles()
    async with registry(files) as logs:
        fill(logs.create(PARTITION), 100)
        await clean(logs)
        logs.delete(PARTITION)
        fill(logs.create(PARTITION), 100)
        assert decode_offset_checkpoint(files.read(DIRECTORY / CLEANER_OFFSETS_FILE)) == {}
        assert await clean(logs) == 1


async def test_old_segments_are_deleted_and_delete_works_beside_compact() -> None:
    async with registry(log_cleanup_policy=("compact", "delete"), log_retention_ms=60_000) as logs:
        log = logs.create(PARTITION)
        fill(log, 100)
        await clean(logs)
        passes = LogPasses(logs)
        assert await passes.delete_due(10_000) > 0
        assert not [name for name in log.files.list(log.directory) if name.endswith(".deleted")]

        assert await passes.retain(1_000 + 50 + 60_000) > 0
        assert log.log_start_offset > 0
        assert await passes.retain(10**9) > 0
        assert records_of(log) == []


class Full(DiskFiles):
    """A disk without room for cleaned segments."""

    def open(self, path: Path, *, create: bool = False) -> Any:
        if create and path.name.endswith(".index.cleaned"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, create=create)


async def test_a_full_disk_only_delays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with registry(Full(), tmp_path) as logs:
        log = logs.create(PARTITION)
        fill(log, 100)

        with caplog.at_level(logging.WARNING):
            await Cleaner(logs).clean_next(10_000)

        delayed = [vars(record)["partition"] for record in caplog.records if "delayed" in record.message]
        assert delayed == ["compacted-0"]
        assert logs.get(PARTITION) is log
        assert names(log) == []
        fill(log, 1, start=500)


async def test_the_cleaner_runs_until_it_is_cancelled(tmp_path: Path) -> None:
    async with registry(DiskFiles(), tmp_path, log_cleaner_threads=3) as logs:
        cleaned = [logs.create(TopicPartition("topic", number)) for number in range(5)]
        for log in cleaned:
            fill(log, 60)
        running = asyncio.ensure_future(Cleaner(logs).run())
        await until(lambda: all(one.cleaned_offset for one in cleaned))

        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        assert all(one.segments.replacing is None and not names(one) for one in cleaned)


def test_a_throttle_spreads_bytes_over_time() -> None:
    throttle = Throttle(1_000)

    assert throttle.delay_ms(300, 10_000) == 0
    assert throttle.delay_ms(1_000, 10_000) == 1_000
    assert throttle.delay_ms(500, 11_000) == 500
    throttle.bytes_per_second = float("inf")
    assert throttle.delay_ms(10**12, 20_000) == 0


def test_a_cleaning_that_is_not_wanted_any_more_stops_while_it_waits() -> None:
    answers = iter([True, True, False])
    pace = Pace(Throttle(1_000), Event(), lambda: 0.0, lambda: next(answers))

    with pytest.raises(CleaningStopped):
        pace.take(1_000_000)
