from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.config import LogConfig
from ottla.broker.log.files.fake_files import MemoryFiles
from ottla.broker.log.log import Log
from ottla.broker.log.retention import retention
from ottla.broker.log.segments.segment import MAX_RELATIVE_OFFSET
from ottla.broker.log.testing import (
    append,
    batch,
    commit,
    log_in,
    records_of,
    truncate_fully_and_start_at,
    truncate_to,
)
from ottla.protocol.records import assign_offsets

AT = Path("/data")


def bases(log: Log) -> list[int]:
    return [one.base_offset for one in log.segments]


def test_a_segment_rolls_when_the_next_append_would_exceed_its_size() -> None:
    log = log_in(AT, segment_bytes=400)
    for _ in range(5):
        append(log, b"x" * 100)

    assert bases(log) == [0, 2, 4]
    assert all(one.size <= 400 for one in log.segments)


def test_a_segment_rolls_by_the_age_of_its_first_timestamp() -> None:
    log = log_in(AT, segment_ms=1_000)
    append(log, b"a", timestamp_ms=5_000)
    append(log, b"b", timestamp_ms=6_000)
    append(log, b"c", timestamp_ms=6_001)

    assert bases(log) == [0, 2]


def test_a_segment_without_timestamps_rolls_by_the_brokers_clock() -> None:
    log = log_in(AT, segment_ms=1_000)
    append(log, b"a", timestamp_ms=-1, now_ms=10_000)
    append(log, b"b", timestamp_ms=-1, now_ms=11_000)
    append(log, b"c", timestamp_ms=-1, now_ms=11_001)

    assert bases(log) == [0, 2]


def test_jitter_makes_the_age_shorter_by_chance() -> None:
    log = log_in(AT, segment_ms=1_000, segment_jitter_ms=900)
    log.configure(LogConfig(segment_ms=1_000, segment_jitter_ms=900))

    assert 100 < log.log_end.segment_ms <= 1_000


def test_a_segment_rolls_when_an_index_is_full() -> None:
    log = log_in(AT, segment_index_bytes=40, index_interval_bytes=0)
    for number in range(12):
        append(log, b"x", timestamp_ms=1_000 + number)

    assert len(log.segments) > 2
    assert len(records_of(log)) == 12


def test_a_segment_rolls_before_offsets_leave_its_reach() -> None:
    log = log_in(AT)
    append(log, b"a")
    far = bytearray(batch(b"b"))
    assign_offsets(far, MAX_RELATIVE_OFFSET + 1, 0)
    log.append_as_follower(bytes(far), 0)

    assert bases(log) == [0, 1]


def expire(log: Log, now_ms: int) -> list[int]:
    gone = retention.expire(log, now_ms)
    for segment in gone:
        segment.mark_deleted()
    return [one.base_offset for one in gone]


def test_segments_are_dropped_when_their_largest_timestamp_is_too_old() -> None:
    files = MemoryFiles()
    log = log_in(AT, files, segment_bytes=150, retention_ms=1_000)
    for number in range(4):
        append(log, b"x" * 60, timestamp_ms=number * 1_000)

    assert expire(log, 2_001) == [0, 1]
    assert log.log_start_offset == 2
    assert f"{0:020d}.log.deleted" in files.list(log.directory)


def test_an_expired_active_segment_is_rolled_and_dropped() -> None:
    log = log_in(AT, retention_ms=1_000)
    append(log, b"x", timestamp_ms=0)

    assert expire(log, 5_000) == [0]
    assert (log.log_start_offset, log.log_end_offset, bases(log)) == (1, 1, [1])
    assert expire(log, 9_000) == []


def test_segments_are_dropped_while_the_rest_exceeds_retention_bytes() -> None:
    log = log_in(AT, segment_bytes=150, retention_bytes=300, retention_ms=-1)
    for _ in range(5):
        append(log, b"x" * 60)
    size = log.segments[0].size

    expire(log, 0)

    assert log.segments.size_bytes >= 300 > log.segments.size_bytes - size


def test_segments_below_the_log_start_are_dropped_even_from_a_compacted_topic() -> None:
    log = log_in(AT, segment_bytes=150, cleanup_policy=("compact",), retention_ms=1, retention_bytes=1)
    for _ in range(4):
        append(log, b"x" * 60, keys=[b"k"])
    assert expire(log, 10**12) == []

    log.advance_log_start(3)

    assert expire(log, 0) == [0, 1, 2]


def test_no_segment_above_the_high_watermark_is_dropped() -> None:
    log = log_in(AT, segment_bytes=150, retention_ms=1)
    for _ in range(4):
        append(log, b"x" * 60)
    commit(log, 2)

    assert expire(log, 10**12) == [0, 1]


@pytest.mark.parametrize("offset", [0, 3, 5, 9])
def test_truncation_drops_records_epochs_and_producers_state(offset: int) -> None:
    log = log_in(AT, segment_bytes=300)
    for number in range(9):
        append(
            log, b"x" * 60, leader_epoch=number // 2, producer_id=1, producer_epoch=0, base_sequence=number
        )

    assert truncate_to(log, offset) == offset

    assert [one.offset for one in records_of(log)] == list(range(offset))
    assert all(one.start_offset < offset for one in log.leader_epochs.entries)
    producer = log.producers.get(1)
    assert (producer.last_sequence if producer else -1) == offset - 1
    assert append(log, b"y", producer_id=1, producer_epoch=0, base_sequence=offset) == offset


def test_a_truncation_without_records_drops_epochs_without_records() -> None:
    log = log_in(AT)
    append(log, b"x", leader_epoch=1)
    log.leader_epochs.assign(2, 1)

    assert truncate_to(log, 1) == 1
    assert log.leader_epochs.latest == 1


def test_a_restart_drops_all_records() -> None:
    log = log_in(AT)
    append(log, b"x")

    truncate_fully_and_start_at(log, 500)

    assert (log.log_start_offset, log.log_end_offset) == (500, 500)
    assert append(log, b"y") == 500
