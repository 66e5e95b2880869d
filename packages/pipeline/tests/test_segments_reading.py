"""Reads of segments: every record that a consumer would get, once, however tasks are cut."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ottla.pipeline.errors import (
    CorruptSegment,
    DataLoss,
    NotSupported,
    OptionError,
    SegmentsChanged,
    UnreadableBatch,
)
from ottla.pipeline.segments import readable_logs, segment_reading
from ottla.pipeline.segments.data_source import OttlaLogDataSource
from ottla.pipeline.segments.readable_logs import ByteRange
from ottla.pipeline.segments.segment_reading import read
from ottla.pipeline.source.spark_rows import Rows
from ottla.pipeline.values import ValueFormat
from ottla.protocol.records import Codec
from ottla.protocol.records.legacy import LegacyRecord, encode_set
from ottla.protocol.storage.segments import SegmentFile
from ottla.protocol.topics import TopicPartition
from peers.log_directory import FIRST_MS, PartitionWriter
from peers.segment_queries import SCHEMA, brief, expected, planned, rows_of


@pytest.fixture
def writer(tmp_path: Path) -> PartitionWriter:
    """A partition of five closed segments of ten batches of ten records, and an active one with a batch."""
    writer = PartitionWriter(tmp_path / "data")
    for _ in range(5):
        for _ in range(10):
            writer.batch([b"value %d" % (writer.next_offset + index) for index in range(10)])
        writer.roll()
    writer.batch([b"active"] * 10)
    return writer


def test_rows_have_all_that_records_have(writer: PartitionWriter) -> None:
    first = rows_of(writer.log_dir)[0]

    assert first == {
        "key": b"key", "value": b"value 0", "topic": "orders", "partition": 0, "offset": 0,
        "timestamp": datetime.fromtimestamp(FIRST_MS / 1000, UTC), "timestampType": 0,
        "headers": [{"key": "from", "value": b"test"}],
    }  # fmt: skip


def test_closed_segments_are_read_whole_and_the_active_one_when_asked_for(writer: PartitionWriter) -> None:
    assert brief(rows_of(writer.log_dir)) == expected(writer.visible())
    everything = rows_of(writer.log_dir, includeActive="true")
    assert brief(everything) == expected(writer.visible(end=510))


def test_an_active_segment_is_read_up_to_its_last_whole_batch(writer: PartitionWriter) -> None:
    with writer.path().open("ab") as file:
        file.write(writer.path().read_bytes()[:50] + bytes(5000))  # truncated, then preallocated space

    assert brief(rows_of(writer.log_dir, includeActive="true")) == expected(writer.visible(end=510))


def test_a_closed_segment_that_is_cut_off_is_damaged(writer: PartitionWriter) -> None:
    path = writer.path(base_offset=200)
    path.write_bytes(path.read_bytes()[:-7])

    with pytest.raises(CorruptSegment, match=re.escape(f"{path} is damaged")):
        rows_of(writer.log_dir)


def test_a_changed_byte_is_noticed(writer: PartitionWriter) -> None:
    path = writer.path(base_offset=200)
    data = bytearray(path.read_bytes())
    data[data.index(b"value 255")] ^= 1
    path.write_bytes(data)

    with pytest.raises(UnreadableBatch, match=r"orders-0 at offset 250: .* does not match its checksum"):
        rows_of(writer.log_dir)


@pytest.mark.parametrize("most", ["200", "1000", "5k", "1m"])
def test_cuts_are_between_batches_and_lose_nothing(
    writer: PartitionWriter, most: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.pipeline.segments.data_source.WORTH_A_TASK", 1)
    made = planned(writer.log_dir, maxBytesPerTask=most)

    least, largest = {"200": (50, 50), "1000": (15, 25), "5k": (5, 5), "1m": (5, 5)}[most]
    assert least <= len(made) <= largest
    assert brief(rows_of(writer.log_dir, maxBytesPerTask=most)) == expected(writer.visible())


def test_small_segments_share_a_task_unless_more_tasks_are_asked_for(writer: PartitionWriter) -> None:
    assert len(planned(writer.log_dir)) == 1
    assert 5 <= len(planned(writer.log_dir, minPartitions="5")) <= 10
    assert 20 <= len(planned(writer.log_dir, minPartitions="20")) <= 30


@pytest.mark.parametrize(("start", "end"), [(0, 500), (1, 499), (123, 124), (99, 101), (100, 200), (37, 412)])
def test_offsets_say_from_where_to_where(writer: PartitionWriter, start: int, end: int) -> None:
    options = {
        "startingOffsets": f'{{"orders": {{"0": {start}}}}}',
        "endingOffsets": f'{{"orders": {{"0": {end}}}}}',
    }
    assert brief(rows_of(writer.log_dir, **options)) == expected(writer.visible(start, end))
    small = rows_of(writer.log_dir, maxBytesPerTask="300", **options)
    assert brief(small) == expected(writer.visible(start, end))


def test_bytes_that_are_not_wanted_are_not_read(writer: PartitionWriter) -> None:
    [[byte_range]] = planned(
        writer.log_dir,
        startingOffsets='{"orders": {"0": 130}}',
        endingOffsets='{"orders": {"0": 140}}',
    )
    assert Path(byte_range.path) == writer.path(base_offset=100)
    assert len(byte_range) <= writer.path(base_offset=100).stat().st_size // 5


@pytest.mark.parametrize("at", [0, 1, 99, 100, 255, 499])
def test_times_say_from_where_to_where(writer: PartitionWriter, at: int) -> None:
    later = rows_of(writer.log_dir, startingTimestamp=str(FIRST_MS + at))
    assert brief(later) == expected(writer.visible(at))
    if at:
        earlier = rows_of(writer.log_dir, endingTimestamp=str(FIRST_MS + at))
        assert brief(earlier) == expected(writer.visible(0, at))


def test_a_time_behind_all_is_an_error_or_the_end(writer: PartitionWriter) -> None:
    too_late = str(FIRST_MS + 5_000)
    with pytest.raises(OptionError, match="orders-0 has no record at or after that time"):
        rows_of(writer.log_dir, startingTimestamp=too_late)
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert rows_of(writer.log_dir, startingTimestamp=too_late, **latest) == []
    assert len(rows_of(writer.log_dir, endingTimestamp=too_late)) == 500


def test_times_that_go_back_are_found_at_the_first_record_that_is_late_enough(tmp_path: Path) -> None:
    writer = PartitionWriter(tmp_path)
    for time in (100, 900, 300, 50, 700):
        writer.batch([b"one", b"two"], FIRST_MS + time)
    writer.roll()

    def first(time: int) -> int:
        return int(rows_of(tmp_path, startingTimestamp=str(FIRST_MS + time))[0]["offset"])

    assert [first(time) for time in (0, 100, 101, 102, 301, 900, 901)] == [0, 0, 1, 2, 2, 2, 3]


@pytest.mark.parametrize("kind", [SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX])
@pytest.mark.parametrize("how", ["missing", "empty", "lying", "blank"])
def test_an_index_that_is_no_good_changes_nothing(
    writer: PartitionWriter, kind: SegmentFile, how: str
) -> None:
    for base in range(0, 500, 100):
        path = writer.path(kind, base)
        if how == "missing":
            path.unlink()
        elif how == "lying" and kind is SegmentFile.OFFSET_INDEX:
            path.write_bytes(b"".join(index.to_bytes(8, "big") for index in range(1, 5000, 17)))
        else:
            path.write_bytes(b"" if how == "empty" else path.read_bytes() + bytes(240))

    for options in ({}, {"maxBytesPerTask": "300"}, {"startingTimestamp": str(FIRST_MS + 77)}):
        start = 77 if "startingTimestamp" in options else 0
        assert brief(rows_of(writer.log_dir, **options)) == expected(writer.visible(start))
    part = rows_of(writer.log_dir, startingOffsets='{"orders": {"0": 333}}')
    assert brief(part) == expected(writer.visible(333))


def test_bounds_skip_segments_that_hold_nothing_of_them(writer: PartitionWriter) -> None:
    [[byte_range]] = planned(
        writer.log_dir, startingOffsets='{"orders": {"0": 120}}', endingOffsets='{"orders": {"0": 130}}'
    )
    assert Path(byte_range.path) == writer.path(base_offset=100)


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_is_read(tmp_path: Path, codec: Codec) -> None:
    writer = PartitionWriter(tmp_path)
    for _ in range(20):
        writer.batch([b"the same again and again" * 5] * 50, codec=codec)
    writer.roll()

    assert brief(rows_of(tmp_path)) == expected(writer.visible())
    assert brief(rows_of(tmp_path, maxBytesPerTask="1k")) == expected(writer.visible())


def test_a_batch_may_be_larger_than_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reading, "CHUNK_BYTES", 100)
    monkeypatch.setattr(segment_reading, "BATCH_BYTES", 100)
    writer = PartitionWriter(tmp_path)
    for size in (10, 5000, 20, 90, 700):
        writer.batch([b"x" * size, b"y"])
    writer.roll()

    assert brief(rows_of(tmp_path)) == expected(writer.visible())


def test_messages_of_before_there_were_batches_are_read(tmp_path: Path) -> None:
    writer = PartitionWriter(tmp_path)
    old = b""
    for base in (0, 10, 20):
        messages = [
            LegacyRecord(offset, FIRST_MS + offset, b"key", b"old %d" % offset)
            for offset in range(base, base + 10)
        ]
        old += encode_set(messages, 1, codec=Codec.GZIP if base == 10 else Codec.NONE)
    writer.path().write_bytes(old)
    writer.next_offset = 30
    writer.batch([b"new"] * 10)
    writer.roll()

    every = [(offset, b"old %d" % offset) for offset in range(30)] + expected(writer.visible())
    assert brief(rows_of(tmp_path)) == every
    assert brief(rows_of(tmp_path, startingOffsets='{"orders": {"0": 14}}')) == every[14:]
    assert brief(rows_of(tmp_path, startingTimestamp=str(FIRST_MS + 14))) == every[14:]
    assert brief(rows_of(tmp_path, endingOffsets='{"orders": {"0": 14}}')) == every[:14]


# --- checkpoints of the broker


def test_deleted_records_are_not_read(writer: PartitionWriter) -> None:
    writer.checkpoint("log-start-offset-checkpoint", 42)

    assert brief(rows_of(writer.log_dir)) == expected(writer.visible(42))
    early = {"startingOffsets": '{"orders": {"0": 41}}'}
    with pytest.raises(DataLoss, match="orders-0 begins at 42, and should be read from 41"):
        rows_of(writer.log_dir, **early)
    lax = rows_of(writer.log_dir, failOnDataLoss="false", **early)
    assert brief(lax) == expected(writer.visible(42))


def test_records_above_the_high_watermark_are_not_read(writer: PartitionWriter) -> None:
    writer.checkpoint("replication-offset-checkpoint", 487)

    assert brief(rows_of(writer.log_dir)) == expected(writer.visible(0, 487))
    with pytest.raises(DataLoss, match=r"up to 487, its checkpointed high watermark, not up to 490"):
        rows_of(writer.log_dir, endingOffsets='{"orders": {"0": 490}}')


def test_an_end_in_the_active_segment_is_explained(writer: PartitionWriter) -> None:
    late = {"endingOffsets": '{"orders": {"0": 505}}'}
    with pytest.raises(DataLoss, match="where its closed segments end"):
        rows_of(writer.log_dir, **late)
    assert len(rows_of(writer.log_dir, includeActive="true", **late)) == 505
    assert len(rows_of(writer.log_dir, failOnDataLoss="false", **late)) == 500


def test_a_start_behind_the_end_is_an_error(writer: PartitionWriter) -> None:
    with pytest.raises(OptionError, match="behind its end 500"):
        rows_of(writer.log_dir, startingOffsets='{"orders": {"0": 501}}')


# --- files that change


def one_of(plan: list[tuple[ByteRange, ...]], rows: Rows, **options: bool) -> list[dict[str, Any]]:
    return [row for task in plan for batch in read(task, rows, **options) for row in batch.to_pylist()]


def test_a_segment_that_the_broker_deletes_is_read_while_it_is_there(writer: PartitionWriter) -> None:
    plan, rows = planned(writer.log_dir), Rows(SCHEMA, ValueFormat())
    path = writer.path(base_offset=100)
    path.rename(path.with_suffix(".log.deleted"))
    assert brief(one_of(plan, rows)) == expected(writer.visible())

    path.with_suffix(".log.deleted").unlink()
    with pytest.raises(DataLoss, match="is lost"):
        one_of(plan, rows)
    left = one_of(plan, rows, fail_on_data_loss=False)
    assert brief(left) == expected(writer.visible(0, 100) + writer.visible(200))


def test_a_segment_that_was_compacted_meanwhile_is_not_read(writer: PartitionWriter) -> None:
    plan, rows = planned(writer.log_dir), Rows(SCHEMA, ValueFormat())
    path = writer.path(base_offset=100)
    path.write_bytes(path.read_bytes()[len(path.read_bytes()) // 10 :])

    with pytest.raises(SegmentsChanged, match="Run the query again"):
        one_of(plan, rows)


def test_an_active_segment_may_grow_meanwhile(writer: PartitionWriter) -> None:
    plan = planned(writer.log_dir, includeActive="true")
    writer.batch([b"later"])
    assert len(one_of(plan, Rows(SCHEMA, ValueFormat()))) == 510


# --- what Spark asks


def test_partitions_are_read_each_for_itself(tmp_path: Path) -> None:
    for number in range(3):
        writer = PartitionWriter(tmp_path, TopicPartition("orders", number))
        writer.batch([b"of %d" % number] * 5)
        writer.roll()

    found = rows_of(tmp_path, includeHeaders="true")
    assert [(row["partition"], row["offset"]) for row in found] == [
        (number, offset) for number in range(3) for offset in range(5)
    ]
    assert len(planned(tmp_path)) == 1


def test_a_partition_without_closed_segments_has_no_rows(tmp_path: Path) -> None:
    PartitionWriter(tmp_path).batch([b"active"])
    assert planned(tmp_path) == []


def test_the_source_has_the_columns_of_the_topics_source_and_no_stream() -> None:
    source = OttlaLogDataSource({"path": "/data", "includeHeaders": "true"})

    assert source.name() == "ottla-log"
    assert source.schema().startswith("key BINARY, value BINARY, topic STRING")
    assert source.schema().endswith("headers ARRAY<STRUCT<key: STRING, value: BINARY>>")
    with pytest.raises(NotSupported, match=re.escape('for a stream use a broker: format("ottla")')):
        source.streamReader(None)


def test_packing_keeps_order_and_size() -> None:
    def byte_range(size: int) -> ByteRange:
        return ByteRange(TopicPartition("t", 0), "/x", 0, size, 0, 1, None)

    made = readable_logs.pack_tasks(map(byte_range, [3, 4, 5, 20, 1, 1]), 10)
    assert [[len(each) for each in task] for task in made] == [[3, 4], [5], [20], [1, 1]]
