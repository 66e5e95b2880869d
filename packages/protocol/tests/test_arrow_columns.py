from __future__ import annotations

import gc
from collections.abc import Sequence

import psutil
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.records import (
    BatchBuilder,
    Codec,
    ControlType,
    convert_down,
    decode_records,
    end_transaction_marker,
)
from ottla.protocol.records.arrow import ALL_COLUMNS, USUAL_COLUMNS, ColumnBuilder, check_columns
from ottla.protocol.records.errors import CorruptRecords

Given = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]


def batch_of(
    records: Sequence[Given],
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    *,
    producer_id: int = -1,
    transactional: bool = False,
    log_append_time_ms: int | None = None,
) -> bytes:
    builder = BatchBuilder(1 << 20, codec=codec)
    for key, value, timestamp, headers in records:
        builder.append(key, value, timestamp, headers)
    return builder.build(
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=transactional,
        log_append_time_ms=log_append_time_ms,
    )


def plain(count: int, base_offset: int = 0, **options: bool | int) -> bytes:
    records: list[Given] = [(b"k", b"%d" % number, number, []) for number in range(count)]
    return batch_of(records, base_offset, **options)  # type: ignore[arg-type]


def imported(builder: ColumnBuilder) -> pa.RecordBatch:
    batch = pa.record_batch(builder.finish())
    batch.validate(full=True)
    return batch


def offsets(builder: ColumnBuilder) -> list[int]:
    found: list[int] = imported(builder).column("offset").to_pylist()
    return found


keys = st.none() | st.binary(max_size=20)
given_records = st.lists(
    st.tuples(keys, keys, st.integers(0, 2**45), st.lists(st.tuples(st.text(max_size=5), keys), max_size=3)),
    min_size=1,
    max_size=30,
)


@settings(deadline=None)
@given(
    st.lists(st.tuples(given_records, st.sampled_from(Codec)), min_size=1, max_size=4),
    st.integers(0, 60),
)
def test_columns_hold_what_the_record_reader_gives(
    batches: list[tuple[list[Given], Codec]], since: int
) -> None:
    data, expected, following = b"", [], 0
    for records, codec in batches:
        batch = batch_of(records, following, codec)
        expected += [record for record in decode_records(batch) if record.offset >= since]
        following += len(records)
        data += batch
    builder = ColumnBuilder(ALL_COLUMNS)

    assert builder.add("t", 7, data, since) == max(following, since)

    rows = imported(builder).to_pylist()
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (record.offset, record.key, record.value) for record in expected
    ]
    assert [[(each["key"], each["value"]) for each in row["headers"]] for row in rows] == [
        list(record.headers) for record in expected
    ]
    assert {(row["topic"], row["partition"], row["timestamp_type"]) for row in rows} <= {("t", 7, 0)}


def test_timestamps_are_those_of_the_records_or_of_the_log() -> None:
    builder = ColumnBuilder(("timestamp", "timestamp_type"))
    builder.add("t", 0, batch_of([(None, b"x", 5, []), (None, b"y", 3, [])]), 0)
    builder.add("t", 0, batch_of([(None, b"x", 5, [])], log_append_time_ms=99), 0)
    batch = imported(builder)

    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [5, 3, 99]
    assert batch.column("timestamp_type").to_pylist() == [0, 0, 1]


def test_several_topics_share_one_batch_of_columns() -> None:
    builder = ColumnBuilder(USUAL_COLUMNS)
    builder.add("a", 0, plain(2), 0)
    builder.add("b", 1, plain(1, 10), 0)
    builder.add("a", 2, plain(1, 20), 0)
    batch = imported(builder)

    assert batch.column("topic").to_pylist() == ["a", "a", "b", "a"]
    assert batch.column("partition").to_pylist() == [0, 0, 1, 2]


def test_control_records_and_aborted_transactions_are_left_out() -> None:
    aborted = plain(2, 0, producer_id=5, transactional=True)
    kept = plain(2, 2, producer_id=6, transactional=True)
    marker = end_transaction_marker(
        ControlType.ABORT, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0, base_offset=4
    )
    later = plain(1, 5, producer_id=5, transactional=True)
    builder = ColumnBuilder(("offset",))

    assert builder.add("t", 0, aborted + kept + marker + later, 0, [(0, 5)]) == 6
    assert offsets(builder) == [2, 3, 5]


def test_an_abort_marker_ends_a_transaction_whose_records_are_below_what_is_wanted() -> None:
    aborted = plain(2, 0, producer_id=5, transactional=True)
    marker = end_transaction_marker(
        ControlType.ABORT, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0, base_offset=2
    )
    later = plain(1, 3, producer_id=5, transactional=True)
    builder = ColumnBuilder(("offset",))

    assert builder.add("t", 0, aborted + marker + later, 2, [(0, 5)]) == 4
    assert offsets(builder) == [3]


@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats_are_read_too(magic: int) -> None:
    builder = ColumnBuilder(ALL_COLUMNS)
    assert builder.add("t", 0, convert_down(plain(3, 10), magic), 11) == 13
    batch = imported(builder)

    assert batch.column("value").to_pylist() == [b"1", b"2"]
    assert batch.column("timestamp_type").to_pylist() == [magic - 1] * 2
    assert batch.column("headers").to_pylist() == [[], []]


def test_a_limit_is_kept_and_says_where_to_go_on() -> None:
    data = plain(5) + plain(5, 5)
    builder = ColumnBuilder(("offset",))
    following = builder.add("t", 0, data, 0, limit=7)
    assert (following, offsets(builder)) == (7, [0, 1, 2, 3, 4, 5, 6])

    assert builder.add("t", 0, data, following, limit=7) == 10
    assert offsets(builder) == [7, 8, 9]


def test_what_is_cut_off_is_left_for_later() -> None:
    data = plain(3) + plain(3, 3)[:-1]
    builder = ColumnBuilder(("offset",))
    assert builder.add("t", 0, data, 0) == 3
    assert offsets(builder) == [0, 1, 2]


def test_a_header_key_that_is_no_text_is_replaced() -> None:
    builder = ColumnBuilder(("headers",))
    builder.add("t", 0, batch_of([(None, b"", 0, [("caf\udce9", b"1"), ("café", b"2")])]), 0)

    (headers,) = imported(builder).column("headers").to_pylist()
    assert [each["key"] for each in headers] == ["caf\ufffd", "café"]


def test_no_records_make_columns_too() -> None:
    batch = imported(ColumnBuilder(ALL_COLUMNS))
    assert (batch.num_rows, batch.schema.names) == (0, list(ALL_COLUMNS))


def test_a_wrong_checksum_is_noticed_unless_told_otherwise() -> None:
    data = bytearray(plain(3))
    data[-2] ^= 1
    with pytest.raises(CorruptRecords, match="checksum"):
        ColumnBuilder(("value",)).add("t", 0, data, 0)
    assert ColumnBuilder(("value",), check_crcs=False).add("t", 0, data, 0) == 3


@settings(deadline=None)
@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=8))
def test_damaged_bytes_are_refused_or_read_and_nothing_else(seed: int, damage: list[tuple[int, int]]) -> None:
    data = bytearray(plain(5 + seed % 20) + batch_of([(None, b"x" * 50, 1, [("h", b"v")])], 30))
    for at, byte in damage:
        data[at % len(data)] = byte
    builder = ColumnBuilder(ALL_COLUMNS, check_crcs=False, max_decompressed_bytes=1 << 20)
    try:
        builder.add("t", 0, data, seed % 7)
    except Exception as error:
        assert isinstance(error, CorruptRecords) or type(error).__module__.startswith("ottla.")  # noqa: PT017
    pa.record_batch(builder.finish())


def test_columns_live_as_long_as_whoever_imported_them_and_no_longer() -> None:
    process = psutil.Process()
    data = batch_of([(b"k", b"v" * 1000, 0, [("h", b"x")])] * 900)

    def round_() -> None:
        builder = ColumnBuilder(ALL_COLUMNS)
        builder.add("t", 0, data, 0)
        columns = builder.finish()
        batch = pa.record_batch(columns)
        again = pa.record_batch(columns)
        del columns
        assert batch.column("value")[899].as_py() == again.column("value")[0].as_py()

    for _ in range(20):
        round_()
    gc.collect()
    before = process.memory_info().rss
    for _ in range(300):
        round_()
    gc.collect()
    assert process.memory_info().rss - before < 60 * 1024 * 1024  # 300 rounds hold 270 MB


def test_columns_are_named_in_their_order() -> None:
    assert check_columns(None) == USUAL_COLUMNS
    assert check_columns(["headers", "key"]) == ("key", "headers")
    with pytest.raises(ValueError, match="no column 'vlaue'; there are key"):
        check_columns(["vlaue"])
    with pytest.raises(ValueError, match="at least one"):
        check_columns([])
