import struct
import zlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.errors import KafkaError, UnsupportedCompressionType
from ottla.protocol.records import (
    NO_TIMESTAMP,
    BatchBuilder,
    Codec,
    ControlType,
    CorruptRecords,
    DecompressedTooLarge,
    Record,
    all_magic_2,
    assign_offsets,
    compress,
    convert_down,
    convert_to_v2,
    decode_records,
    end_transaction_marker,
    iter_records,
    magic_at,
    read_header,
    split_batches,
    validate_batch,
)
from ottla.protocol.records.legacy import (
    LOG_OVERHEAD,
    RECORD_OVERHEAD,
    LegacyRecord,
    encode_entry,
    encode_set,
    iter_entries,
    read_entry,
)
from ottla.protocol.records.types import TimestampType

NOW_MS = 1_700_000_000_000
LEGACY_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
blobs = st.none() | st.binary(max_size=200)
messages = st.lists(st.tuples(blobs, blobs, st.integers(0, 2**42)), min_size=1, max_size=20)

MESSAGE_2662 = bytes.fromhex("0000000000000a65 0000001a 12835cc6 00 00 ffffffff 0000000c") + b"Message_2662"


def some_messages(count: int = 3, first_offset: int = 0) -> list[LegacyRecord]:
    return [LegacyRecord(first_offset + i, NOW_MS + i, b"k%d" % i, b"v%d" % i) for i in range(count)]


def test_a_message_of_kafka_0_8_is_read() -> None:
    (record,) = decode_records(MESSAGE_2662)

    assert record == Record(2661, NO_TIMESTAMP, None, b"Message_2662")
    assert read_entry(MESSAGE_2662).crc == 0x12835CC6
    assert encode_entry(LegacyRecord(2661, 0, None, b"Message_2662"), 0) == MESSAGE_2662


@pytest.mark.parametrize("magic", [0, 1])
def test_an_empty_message_is_all_overhead(magic: int) -> None:
    assert len(encode_entry(LegacyRecord(0, 0, None, None), magic)) == LOG_OVERHEAD + RECORD_OVERHEAD[magic]
    assert (LOG_OVERHEAD, RECORD_OVERHEAD) == (12, {0: 14, 1: 22})


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", LEGACY_CODECS)
@given(rows=messages)
@settings(max_examples=30, deadline=None)
def test_what_was_written_is_read(magic: int, codec: Codec, rows: list[Any]) -> None:
    written = [LegacyRecord(50 + i, t, k, v) for i, (k, v, t) in enumerate(rows)]

    data = encode_set(written, magic, codec=codec)

    expected = [Record(r.offset, r.timestamp_ms if magic else NO_TIMESTAMP, r.key, r.value) for r in written]
    assert list(iter_records(data)) == expected
    assert decode_records(data) == expected
    assert len(list(split_batches(data))) == (len(rows) if codec == Codec.NONE else 1)
    assert not all_magic_2(data)


def test_inner_offsets_are_relative_in_magic_1_and_absolute_in_magic_0() -> None:
    wrapped = {m: encode_set(some_messages(3, 70), m, codec=Codec.GZIP) for m in (0, 1)}
    inner = {
        m: [e.offset for e in iter_entries(zlib.decompress(bytes(read_entry(data).value or b""), 31))]
        for m, data in wrapped.items()
    }

    assert inner == {0: [70, 71, 72], 1: [0, 1, 2]}
    assert {read_entry(data).offset for data in wrapped.values()} == {72}
    moved = bytearray(wrapped[1])
    struct.pack_into(">q", moved, 0, 1002)
    assert [r.offset for r in iter_records(moved)] == [1000, 1001, 1002]


def test_a_wrapper_whose_offset_was_never_set_counts_from_zero() -> None:
    data = bytearray(encode_set(some_messages(3), 1, codec=Codec.GZIP))
    struct.pack_into(">q", data, 0, 0)

    assert [r.offset for r in iter_records(data)] == [0, 1, 2]


def test_the_log_append_time_of_a_wrapper_is_that_of_its_messages() -> None:
    data = encode_set(some_messages(), 1, codec=Codec.LZ4, timestamp_type=TimestampType.LOG_APPEND_TIME)

    assert {r.timestamp_ms for r in iter_records(data)} == {NOW_MS + 2}
    assert read_entry(data).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert read_entry(MESSAGE_2662).timestamp_type is TimestampType.CREATE_TIME


@pytest.mark.parametrize("magic", [0, 1])
def test_every_flipped_byte_is_noticed(magic: int) -> None:
    data = encode_entry(some_messages()[0], magic)
    for i in range(8, len(data)):
        flipped = bytearray(data)
        flipped[i] ^= 0x41
        with pytest.raises(CorruptRecords):
            read_entry(flipped)


def wrap(inner: bytes, magic: int = 1, codec: Codec = Codec.GZIP) -> bytes:
    return encode_entry(LegacyRecord(5, 1, None, compress(codec, inner, magic=magic)), magic, codec=codec)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(wrap(encode_set(some_messages(), 1, codec=Codec.GZIP)), id="a wrapper in a wrapper"),
        pytest.param(wrap(encode_set(some_messages(), 0)), id="magic 0 in magic 1"),
        pytest.param(wrap(b""), id="nothing inside"),
        pytest.param(wrap(b"\0" * 40), id="zeros inside"),
        pytest.param(wrap(MESSAGE_2662[:-1], 0), id="a torn message inside"),
        pytest.param(encode_entry(LegacyRecord(5, 1, None, None), 1, codec=Codec.GZIP), id="null"),
        pytest.param(encode_entry(LegacyRecord(5, 1, None, b"x"), 1, codec=Codec.GZIP), id="not gzip"),
        pytest.param(encode_entry(LegacyRecord(5, 1, None, b"x"), 1, codec=Codec.ZSTD), id="zstd"),
        pytest.param(encode_set(some_messages(), 1) + b"\0", id="a byte behind"),
    ],
)
def test_malformed_sets_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecords):
        list(iter_records(data))
    with pytest.raises(CorruptRecords):
        convert_to_v2(data)


@given(st.binary(max_size=200), st.sampled_from([0, 1]), st.integers(0, 15))
@settings(max_examples=300, deadline=None)
def test_random_bytes_never_crash(data: bytes, magic: int, attributes: int) -> None:
    body = bytes([magic, attributes]) + data
    for buffer in (data, struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body):
        for read in (decode_records, convert_to_v2):
            with suppress(KafkaError):
                read(buffer, max_decompressed_bytes=1 << 16)


def test_a_compressed_set_cannot_unfold_beyond_the_limit() -> None:
    bomb = encode_set([LegacyRecord(0, 0, None, bytes(1 << 20))], 1, codec=Codec.GZIP)

    with pytest.raises(DecompressedTooLarge):
        decode_records(bomb, max_decompressed_bytes=1 << 19)
    with pytest.raises(DecompressedTooLarge):
        convert_to_v2(bomb + bomb, max_decompressed_bytes=(1 << 20) + 100)


# -------------------------------------------------------------------------------------------------- up


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_a_produced_set_becomes_one_dense_batch(magic: int, codec: Codec) -> None:
    data = encode_set(some_messages(4, 0), magic, codec=codec)

    batch = convert_to_v2(data)

    header = validate_batch(batch, dense=True, check_records=True)
    assert header.codec == codec
    assert header.record_count == 4
    times = [NOW_MS + i if magic else NO_TIMESTAMP for i in range(4)]
    assert decode_records(batch) == [Record(i, times[i], b"k%d" % i, b"v%d" % i) for i in range(4)]
    assert header.max_timestamp == times[-1]


def test_up_conversion_may_set_the_time_the_codec_and_the_offset() -> None:
    batch = convert_to_v2(encode_set(some_messages(), 0), NOW_MS + 9, codec=Codec.ZSTD, base_offset=30)

    assert read_header(batch).codec is Codec.ZSTD
    assert [(r.offset, r.timestamp_ms) for r in iter_records(batch)] == [
        (30 + i, NOW_MS + 9) for i in range(3)
    ]


def test_up_conversion_may_keep_offsets_with_their_gaps() -> None:
    kept = [LegacyRecord(offset, 5, None, b"x") for offset in (100, 103, 104)]
    batch = convert_to_v2(encode_set(kept, 1, codec=Codec.SNAPPY), keep_offsets=True)

    assert [r.offset for r in iter_records(batch)] == [100, 103, 104]
    backwards = encode_set(kept[1:], 0) + encode_set(kept[:1], 0)
    with pytest.raises(CorruptRecords):
        convert_to_v2(backwards, keep_offsets=True)
    with pytest.raises(CorruptRecords):
        convert_to_v2(b"")


def test_a_wrong_checksum_inside_a_wrapper_is_found_when_converting() -> None:
    inner = bytearray(encode_set(some_messages(), 1))
    inner[-1] ^= 1

    with pytest.raises(CorruptRecords, match="checksum"):
        convert_to_v2(wrap(bytes(inner)))


# ------------------------------------------------------------------------------------------------ down


def v2_batch(codec: Codec = Codec.NONE, **options: Any) -> bytes:
    builder = BatchBuilder(1 << 16, codec=codec)
    for i in range(4):
        builder.append(b"k%d" % i, b"v%d" % i, NOW_MS + i, [("lost", b"header")])
    return builder.build(base_offset=200, **options)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_down_conversion_keeps_offsets_codec_and_what_times_there_are(magic: int, codec: Codec) -> None:
    down = convert_down(v2_batch(codec), magic)

    assert all(magic_at(entry) == magic for entry in split_batches(down))
    assert read_entry(down).codec == codec
    times = [NOW_MS + i if magic else NO_TIMESTAMP for i in range(4)]
    assert decode_records(down) == [Record(200 + i, times[i], b"k%d" % i, b"v%d" % i) for i in range(4)]


def test_gaps_stay_gaps() -> None:
    builder = BatchBuilder(codec=Codec.GZIP)
    for delta in (2, 5, 9):
        builder.append(None, b"v", NOW_MS, offset_delta=delta)
    batch = builder.build(base_offset=100, last_offset_delta=20)

    for magic in (0, 1):
        assert [r.offset for r in iter_records(convert_down(batch, magic))] == [102, 105, 109]


def test_control_batches_and_empty_ones_are_left_out() -> None:
    marker = end_transaction_marker(
        ControlType.ABORT, producer_id=1, producer_epoch=1, coordinator_epoch=0, timestamp_ms=1
    )
    empty = BatchBuilder().build(last_offset_delta=3)

    assert convert_down(marker + empty, 1) == b""
    assert convert_down(marker + v2_batch() + empty, 1) == convert_down(v2_batch(), 1)


def test_the_log_append_time_goes_down_too() -> None:
    for codec in LEGACY_CODECS:
        down = convert_down(v2_batch(codec, log_append_time_ms=5), 1)
        assert {r.timestamp_ms for r in iter_records(down)} == {5}
        assert {e.timestamp_type for e in iter_entries(down)} == {TimestampType.LOG_APPEND_TIME}


def test_zstd_cannot_go_down() -> None:
    with pytest.raises(UnsupportedCompressionType):
        convert_down(v2_batch(Codec.ZSTD), 1)


def test_what_is_old_enough_stays_and_magic_1_goes_to_0() -> None:
    old = encode_set(some_messages(3, 40), 1, codec=Codec.LZ4)

    assert convert_down(old, 1) == old
    assert convert_down(MESSAGE_2662, 0) == MESSAGE_2662
    assert [(r.offset, r.timestamp_ms) for r in iter_records(convert_down(old, 0))] == [
        (offset, NO_TIMESTAMP) for offset in (40, 41, 42)
    ]


def test_records_before_the_fetch_offset_are_left_out_unless_compressed() -> None:
    assert [r.offset for r in iter_records(convert_down(v2_batch(), 1, first_offset=202))] == [202, 203]
    assert len(decode_records(convert_down(v2_batch(Codec.LZ4), 1, first_offset=202))) == 4


def test_a_torn_batch_at_the_end_is_ignored() -> None:
    assert convert_down(v2_batch() + v2_batch()[:70], 1) == convert_down(v2_batch(), 1)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_down_and_up_again_loses_only_headers_and_times(magic: int, codec: Codec) -> None:
    again = bytearray(convert_to_v2(convert_down(v2_batch(codec), magic)))
    assign_offsets(again, 200, 0)

    assert [(r.offset, r.key, r.value) for r in iter_records(again)] == [
        (r.offset, r.key, r.value) for r in iter_records(v2_batch(codec))
    ]
