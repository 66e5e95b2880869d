from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.log.files.file_slices import bring_into_memory, warm
from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.testing import append, batch, commit, log_in, records_of, truncate_fully_and_start_at
from ottla.protocol.errors import OffsetOutOfRange
from ottla.protocol.records import BatchBuilder, Codec, iter_records, read_headers

AT = Path("/data")


def test_whole_batches_are_read_up_to_the_limit_and_the_first_whatever_its_size() -> None:
    log = log_in(AT)
    for _ in range(10):
        append(log, b"x" * 100)
    size = len(batch(b"x" * 100))

    assert log.read(2, size * 3 + 5, up_to=10).length == size * 3
    assert log.read(2, 10, up_to=10).length == size
    assert log.read(2, 10, up_to=10, at_least_one=False).length == 0
    assert log.read(2, 1 << 20, up_to=5).length == size * 3
    assert log.read(5, 1 << 20, up_to=5).length == 0
    assert log.read(10, 1 << 20, up_to=10).length == 0


def test_reading_outside_of_the_log_is_out_of_range() -> None:
    log = log_in(AT)
    append(log, b"a", b"b", b"c")
    log.advance_log_start(1)

    for offset in (-1, 0, 4):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 100, up_to=3)


def test_an_offset_within_a_batch_is_read_with_its_batch() -> None:
    log = log_in(AT)
    append(log, b"a", b"b", b"c")

    assert [one.offset for one in iter_records(log.read(1, 1000, up_to=3).read())] == [0, 1, 2]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 600)), min_size=1, max_size=40),
    segment_bytes=st.sampled_from([4_000, 9_000, 1 << 20]),
    reads=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 5_000), st.integers(0, 200)), max_size=12),
)
def test_every_read_gives_the_batches_that_belong_there(
    sizes: list[tuple[int, int]], segment_bytes: int, reads: list[tuple[int, int, int]]
) -> None:
    log = log_in(AT, segment_bytes=segment_bytes, index_interval_bytes=500, segment_index_bytes=2_000)
    bounds = []
    for count, size in sizes:
        base = append(log, *[b"v" * size] * count)
        bounds.append((base, base + count))
    end = log.log_end_offset

    for offset, max_bytes, up_to in reads:
        offset, up_to = offset % (end + 1), up_to % (end + 1)
        found = log.read(offset, max_bytes, up_to=up_to)
        headers = read_headers(found.read())
        expected = [one for one in bounds if one[1] > offset and one[1] <= up_to]
        mine = [(one.base_offset, one.next_offset) for one in headers]
        assert mine == expected[: len(mine)]
        assert bool(mine) == bool(expected and offset < up_to)
        assert found.length <= max_bytes or len(mine) == 1
    assert len(records_of(log)) == end


def test_offsets_are_found_by_time_across_segments() -> None:
    log = log_in(AT, segment_bytes=2_000, index_interval_bytes=200)
    for number in range(50):
        append(log, b"x" * 100, timestamp_ms=1_000 + number * 10)

    assert len(log.segments) > 3
    for number in range(50):
        assert log.offset_for_timestamp(1_000 + number * 10 - 3) == (1_000 + number * 10, number)
    assert log.offset_for_timestamp(1_491) is None


def test_records_before_the_log_start_are_not_found_by_time() -> None:
    log = log_in(AT)
    append(log, b"a", b"b", b"c", timestamp_ms=50)
    log.advance_log_start(2)

    assert log.offset_for_timestamp(10) == (50, 2)


def test_a_slice_outlives_its_segment(tmp_path: Path) -> None:
    log = log_in(tmp_path, DiskFiles(), segment_bytes=200)
    for _ in range(5):
        append(log, b"x" * 100)
    kept = log.read(0, 1000, up_to=5)

    truncate_fully_and_start_at(log, 100)

    assert kept.fileno() >= 0
    assert next(iter_records(kept.read())).value == b"x" * 100


async def test_new_records_are_hot_and_warming_reads_cold_ones(tmp_path: Path) -> None:
    log = log_in(tmp_path, DiskFiles())
    append(log, b"x" * 500_000)
    found = log.read(0, 1 << 20, up_to=1)

    assert found.is_hot()
    await warm([found])
    bring_into_memory(found)


def test_a_thousand_sealed_segments_keep_few_files_open(tmp_path: Path) -> None:
    log = log_in(tmp_path, DiskFiles(), segment_bytes=200, segment_index_bytes=1024)
    for _ in range(300):
        append(log, b"x" * 100)
    log.close()
    log = log_in(tmp_path, DiskFiles(), segment_bytes=200, segment_index_bytes=1024)

    assert len(log.segments) == 300
    assert len(records_of(log)) == 300
    assert sum(1 for one in log.segments if one.is_open) < 20


def test_a_search_by_time_ends_at_the_beginning_of_a_batch_that_is_too_large_to_be_opened() -> None:
    log, large = log_in(AT), BatchBuilder(1 << 30, codec=Codec.ZSTD)
    for timestamp_ms in (1_000, 2_000, 3_000):
        large.append(None, bytes(15 << 20), timestamp_ms)
    append(log, b"before", timestamp_ms=500)
    log.append(large.build(), leader_epoch=0, now_ms=1_000)
    commit(log)
    append(log, b"behind", timestamp_ms=4_000)

    assert log.offset_for_timestamp(500) == (500, 0)
    assert log.offset_for_timestamp(2_500) == (2_500, 1)
    assert log.offset_for_timestamp(3_500) == (4_000, 4)
