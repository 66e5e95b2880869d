"""Record batches of format 2: built, read, checked and changed in place."""

import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchBuilder,
    BatchHeader,
    Codec,
    ControlType,
    CorruptRecords,
    EndTransactionMarker,
    Record,
    RecordIterator,
    TimestampType,
    all_magic_2,
    assign_offsets,
    decode_records,
    end_transaction_marker,
    iter_records,
    magic_at,
    read_end_transaction_marker,
    read_header,
    read_headers,
    retain_records,
    scan_records,
    set_log_append_time,
    set_producer_state,
    split_batches,
    validate_batch,
    validate_batches,
)
from ottla.protocol.records.testing import (
    NOW_MS,
    ReferenceBatch,
    ReferenceRecord,
    a_batch,
    decode_batch,
    encode_batch,
    with_body,
)

blobs = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=40)), max_size=4)
timestamps = st.integers(-1, 2**42)
rows = st.lists(st.tuples(blobs, blobs, timestamps, headers), min_size=1, max_size=30)


@given(
    rows=rows,
    producer=st.integers(-1, 2**62),
    epoch=st.integers(-1, 2**15 - 1),
    sequence=st.integers(-1, 2**31 - 1),
)
@settings(max_examples=150, deadline=None)
def test_the_builder_writes_what_the_reference_writes(
    rows: list[Any], producer: int, epoch: int, sequence: int
) -> None:
    builder = BatchBuilder(1 << 20)
    for key, value, timestamp, heads in rows:
        assert builder.append(key, value, timestamp, heads) >= 0
    expected_size = builder.size_in_bytes
    built = builder.build(
        base_offset=7,
        partition_leader_epoch=3,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )

    first = rows[0][2]
    records = [ReferenceRecord(i, t - first, k, v, tuple(h)) for i, (k, v, t, h) in enumerate(rows)]
    newest = max(t for _, _, t, _ in rows)
    reference = ReferenceBatch(
        7, 3, 0, len(rows) - 1, first, newest, producer, epoch, sequence, tuple(records)
    )

    assert built == encode_batch(reference)
    assert len(built) == expected_size
    assert decode_batch(built) == reference


@given(rows=rows, codec=st.sampled_from(Codec))
@settings(max_examples=150, deadline=None)
def test_what_was_written_is_read_with_every_codec(rows: list[Any], codec: Codec) -> None:
    builder = BatchBuilder(1 << 20, codec=codec)
    for key, value, timestamp, heads in rows:
        builder.append(key, value, timestamp, heads)
    batch = builder.build(base_offset=40)

    expected = [Record(40 + i, t, k, v, h) for i, (k, v, t, h) in enumerate(rows)]
    assert decode_records(batch) == expected
    assert list(iter_records(memoryview(batch))) == expected
    assert validate_batch(batch, dense=True, check_records=True).codec == codec
    scan = scan_records(batch, dense=True)
    assert scan.record_count == len(rows)
    assert scan.keyless_count == sum(key is None for key, *_ in rows)
    assert (scan.min_timestamp, scan.max_timestamp) == (min(r[2] for r in rows), max(r[2] for r in rows))


def test_the_header_says_what_was_given() -> None:
    batch = a_batch(3, base_offset=5, producer_id=9, producer_epoch=2, base_sequence=4, transactional=True)

    header = read_header(b"??" + batch, 2)

    assert (header.base_offset, header.last_offset, header.next_offset) == (5, 7, 8)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (
        9,
        2,
        4,
        6,
    )
    assert header.is_transactional
    assert header.has_producer_id
    assert not header.is_control
    assert not header.has_delete_horizon
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert header.codec is Codec.NONE
    assert header.size_in_bytes == len(batch) == header.batch_length + 12
    assert (header.base_timestamp, header.max_timestamp, header.record_count) == (NOW_MS, NOW_MS + 2, 3)
    assert (header.magic, header.partition_leader_epoch, header.position) == (2, -1, 2)
    assert "base_offset=5" in repr(header)


def test_the_last_sequence_wraps_behind_the_largest() -> None:
    header = read_header(a_batch(3, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))

    assert header.last_sequence == 0


def test_a_batch_of_one_empty_record_has_the_smallest_size() -> None:
    builder = BatchBuilder()
    builder.append(None, None, 0)

    assert len(builder.build()) == BATCH_HEADER_SIZE + 7


def test_a_full_builder_takes_no_more_and_an_oversized_record_only_as_its_first() -> None:
    builder = BatchBuilder(200)

    assert builder.append(None, b"x" * 500, 1) == 0
    assert builder.append(None, b"", 1) == -1
    assert len(builder) == 1

    builder = BatchBuilder(200)
    assert [builder.append(None, b"x" * 60, 1) for _ in range(3)] == [0, 1, -1]
    assert len(builder.build()) <= 200


def test_many_values_are_appended_until_the_batch_is_full() -> None:
    values = [b"v%d" % i for i in range(1000)]
    builder = BatchBuilder(1000)

    taken = builder.append_many(values, 5)

    records = decode_records(builder.build())
    assert 50 < taken < 200
    assert [record.value for record in records] == values[:taken]
    with pytest.raises(TypeError, match="str"):
        BatchBuilder().append_many(["text"], 1)  # type: ignore[list-item]


def test_a_built_batch_takes_nothing_more() -> None:
    builder = BatchBuilder()
    builder.append(b"k", b"v", 1)
    builder.build()

    with pytest.raises(ValueError, match="built"):
        builder.append(b"k", b"v", 1)
    with pytest.raises(ValueError, match="built"):
        builder.build()


def test_keys_and_values_may_be_any_buffer_and_are_let_go() -> None:
    key, value = bytearray(b"key"), bytearray(b"value")
    builder = BatchBuilder()
    builder.append(memoryview(key)[1:], value, 1, [("h", memoryview(b"head"))])
    key.clear()
    value.clear()

    with pytest.raises(TypeError):
        builder.append("text", b"", 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        builder.append(b"", b"", 1, [(b"bytes", b"")])  # type: ignore[list-item]

    assert decode_records(builder.build()) == [Record(0, 1, b"ey", b"value", [("h", b"head")])]


def test_header_keys_that_are_not_utf8_survive_a_round_trip() -> None:
    batch = with_body(b"\x12\x00\x00\x00\x01\x01\x02\x02\xff\x01")

    record = decode_records(batch)[0]
    builder = BatchBuilder()
    builder.append(None, None, 0, record.headers)

    assert record.headers == (("\udcff", None),)
    assert builder.build()[BATCH_HEADER_SIZE:] == batch[BATCH_HEADER_SIZE:]


def test_offsets_may_have_gaps_and_a_batch_may_be_empty_after_compaction() -> None:
    builder = BatchBuilder()
    builder.append(b"a", b"1", 1, offset_delta=4)
    builder.append(b"b", b"2", 1, offset_delta=9)
    with pytest.raises(ValueError, match="follow"):
        builder.append(b"b", b"2", 1, offset_delta=9)
    batch = builder.build(base_offset=100, last_offset_delta=20)
    empty = BatchBuilder().build(base_offset=100, last_offset_delta=20, producer_id=1, base_sequence=5)

    assert [record.offset for record in decode_records(batch)] == [104, 109]
    assert validate_batch(batch, check_records=True).last_offset == 120
    assert validate_batch(empty, check_records=True).record_count == 0
    assert decode_records(empty) == []
    for gappy in (batch, empty):
        with pytest.raises(CorruptRecords):
            validate_batch(gappy, dense=True, check_records=True)


def test_a_builder_without_records_builds_nothing() -> None:
    with pytest.raises(ValueError, match="without records"):
        BatchBuilder().build()


def test_offsets_are_assigned_in_place_across_batches_and_checksums_stay_right() -> None:
    batches = bytearray(a_batch(3) + a_batch(2))

    assert assign_offsets(batches, 1000, 8) == 1005

    assert [(h.base_offset, h.partition_leader_epoch) for h in validate_batches(batches)] == [
        (1000, 8),
        (1003, 8),
    ]
    with pytest.raises((BufferError, ValueError, TypeError)):
        assign_offsets(bytes(batches), 0, 0)  # type: ignore[arg-type]
    with pytest.raises(CorruptRecords):
        assign_offsets(batches[:-1], 0, 0)


def test_the_log_append_time_is_the_time_of_every_record() -> None:
    batches = bytearray(a_batch(3) + a_batch(2, Codec.LZ4))

    set_log_append_time(batches, 77)

    assert {record.timestamp_ms for record in iter_records(batches)} == {77}
    assert {h.timestamp_type for h in validate_batches(batches)} == {TimestampType.LOG_APPEND_TIME}
    assert bytes(batches[:0]) + a_batch(3, log_append_time_ms=77) == bytes(batches[: len(a_batch(3))])


def test_a_batch_can_be_given_to_another_producer_epoch() -> None:
    batch = bytearray(a_batch(3, producer_id=1, producer_epoch=1, base_sequence=10))

    set_producer_state(batch, 2, 3, 0)

    assert batch == a_batch(3, producer_id=2, producer_epoch=3, base_sequence=0)


def test_a_buffer_is_split_into_its_entries() -> None:
    first, second = a_batch(3), a_batch(2)

    assert [bytes(b) for b in split_batches(first + second)] == [first, second]
    assert [h.position for h in read_headers(first + second)] == [0, len(first)]
    assert all_magic_2(first + second)
    assert magic_at(first) == 2
    assert list(split_batches(b"")) == []


def test_lazy_records_keep_the_buffer_and_detached_ones_let_it_go() -> None:
    buffer = bytearray(a_batch(3))
    lazy = list(iter_records(buffer))
    with pytest.raises(BufferError):
        buffer.clear()
    assert lazy[1].value == b"value-1"
    assert lazy[1].value is lazy[1].value
    del lazy

    detached = decode_records(buffer)
    buffer.clear()

    assert detached[2].value == b"value-2"


def test_records_compare_hash_print_and_travel() -> None:
    record = decode_records(a_batch(2))[1]

    assert record == Record(1, NOW_MS + 1, b"key-1", b"value-1", [("h", b"x")])
    assert record != Record(1, NOW_MS + 1, b"key-1", b"value-2")
    assert hash(record) == hash(Record(1, NOW_MS + 1))
    assert pickle.loads(pickle.dumps(record)) == record
    assert "key-1" in repr(record)


def test_an_iterator_tells_how_many_are_left_and_stops_for_good() -> None:
    records = RecordIterator(a_batch(3))

    assert isinstance(records.header, BatchHeader)
    assert records.__length_hint__() == 3
    next(records)
    assert [record.offset for record in records.read_all()] == [1, 2]
    assert list(records) == []


def test_batches_of_different_codecs_are_read_one_after_the_other() -> None:
    buffer = bytearray(b"".join(a_batch(4, codec) for codec in Codec))
    assign_offsets(buffer, 0, 0)

    assert [record.offset for record in iter_records(buffer)] == list(range(20))


@pytest.mark.parametrize("kind", ControlType)
def test_an_end_transaction_marker_is_read_again(kind: ControlType) -> None:
    batch = end_transaction_marker(
        kind, producer_id=7, producer_epoch=3, coordinator_epoch=12, timestamp_ms=NOW_MS, base_offset=55
    )
    header = validate_batch(batch, dense=True, check_records=True)

    assert header.is_control
    assert header.is_transactional
    assert (header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence) == (
        55,
        7,
        3,
        -1,
    )
    assert read_end_transaction_marker(batch) == EndTransactionMarker(kind, 12)
    assert decode_records(batch)[0].key == bytes([0, 0, 0, kind])
    assert decode_records(batch)[0].value == bytes([0, 0, 0, 0, 0, 12])


def test_other_control_records_are_no_markers() -> None:
    builder = BatchBuilder()
    builder.append(b"\0\0\0\2", b"", 1)
    assert read_end_transaction_marker(builder.build(control=True)) is None

    for key, value in (
        (None, b"\0" * 6),
        (b"\0\0", b"\0" * 6),
        (b"\xff\xff\0\0", b"\0" * 6),
        (b"\0\0\0\0", b"\0"),
    ):
        builder = BatchBuilder()
        builder.append(key, value, 1)
        with pytest.raises(CorruptRecords):
            read_end_transaction_marker(builder.build(control=True))


def test_large_batches_grow_and_are_checked_without_the_gil() -> None:
    rng = random.Random(3)
    builder = BatchBuilder(8 << 20)
    values = [rng.randbytes(10_000) for _ in range(300)]
    for value in values:
        builder.append(None, value, 1)
    batch = builder.build()

    assert validate_batch(batch, dense=True, check_records=True).record_count == 300
    assert [record.value for record in iter_records(batch)] == values


@pytest.mark.parametrize("codec", Codec)
def test_compaction_keeps_some_records_where_they_are(codec: Codec) -> None:
    batch = a_batch(10, codec, base_offset=50, producer_id=1, producer_epoch=2, base_sequence=3)

    kept = retain_records(batch, lambda record: record.offset % 3 == 0)

    header = validate_batch(kept, check_records=True)
    assert decode_records(kept) == [r for r in decode_records(batch) if r.offset % 3 == 0]
    assert (header.base_offset, header.last_offset, header.record_count) == (50, 59, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1, 2, 3)
    assert (header.codec, header.max_timestamp) == (codec, NOW_MS + 7)
    assert retain_records(batch, lambda _: True) == batch


def test_compaction_may_leave_an_empty_batch() -> None:
    batch = a_batch(10, Codec.GZIP, base_offset=50, producer_id=1, producer_epoch=2, base_sequence=3)

    header = validate_batch(retain_records(batch, lambda _: False), check_records=True)

    assert (header.base_offset, header.last_offset, header.record_count) == (50, 59, 0)
    assert (header.last_sequence, header.max_timestamp, header.codec) == (12, NOW_MS + 9, Codec.NONE)
