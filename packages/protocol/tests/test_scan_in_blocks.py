"""The walk over records in blocks agrees with the walk over the whole batch, in bounded memory."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchBuilder,
    BlockScanner,
    Codec,
    RecordScan,
    UnreadableRecords,
    compress,
    scan_in_blocks,
    scan_records,
)
from ottla.protocol.records.testing import a_batch, resealed

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
KEYS = st.none() | st.binary(max_size=40)
RECORDS = st.lists(
    st.tuples(
        KEYS,
        st.none() | st.binary(max_size=300),
        st.integers(0, 2**40),
        st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=12,
)


def batch_of(records: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]) -> bytes:
    builder = BatchBuilder(1 << 20)
    for key, value, timestamp_ms, headers in records:
        builder.append(key, value, timestamp_ms, headers)
    return builder.build()


def fields(scan: RecordScan) -> tuple[int, int, int, int]:
    return scan.record_count, scan.keyless_count, scan.min_timestamp, scan.max_timestamp


def in_blocks(batch: bytes, cuts: list[int]) -> RecordScan:
    body = batch[BATCH_HEADER_SIZE:]
    ends = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    scanner = BlockScanner(batch, dense=True)
    for start, end in pairwise(ends):
        scanner.feed(body[start:end])
    return scanner.finish()


def verdict(batch: bytes, cuts: list[int] | None = None) -> tuple[int, int, int, int] | None:
    try:
        return fields(scan_records(batch, dense=True) if cuts is None else in_blocks(batch, cuts))
    except UnreadableRecords:
        return None


@settings(max_examples=300)
@given(RECORDS, st.lists(st.integers(0, 5000), max_size=30))
def test_records_cut_anywhere_are_counted_as_whole_ones(records, cuts) -> None:  # type: ignore[no-untyped-def]
    batch = batch_of(records)

    assert fields(in_blocks(batch, cuts)) == fields(scan_records(batch, dense=True))


@settings(max_examples=1500)
@given(RECORDS, st.integers(0, 5000), st.binary(min_size=0, max_size=6), st.integers(0, 4), st.data())
def test_damaged_records_get_one_verdict_however_they_are_cut(records, at, put, drop, data) -> None:  # type: ignore[no-untyped-def]
    batch = bytearray(batch_of(records))
    at = BATCH_HEADER_SIZE + at % (len(batch) - BATCH_HEADER_SIZE + 1)
    batch[at : at + drop] = put
    damaged = resealed(batch)
    cuts = data.draw(st.lists(st.integers(0, len(damaged)), max_size=30))

    assert verdict(damaged, cuts) == verdict(damaged)
    assert verdict(damaged, list(range(len(damaged)))) == verdict(damaged)


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_is_scanned_in_blocks(codec: Codec) -> None:
    batch = a_batch(5_000, codec)

    assert fields(scan_in_blocks(batch, dense=True)) == fields(scan_records(batch, dense=True))


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("end", [b"garbage", b"\0", None], ids=["garbage", "a byte", "cut off"])
def test_compressed_data_that_does_not_end_where_the_batch_does_is_refused(
    codec: Codec, end: bytes | None
) -> None:
    whole = a_batch(50, codec)
    damaged = resealed(whole[:-1] if end is None else whole + end)

    for scan in (scan_records, scan_in_blocks):
        with pytest.raises(UnreadableRecords):
            scan(damaged)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_data_of_several_frames_is_one_batch(codec: Codec) -> None:
    plain = a_batch(50)
    body = plain[BATCH_HEADER_SIZE:]
    frames = compress(codec, body[:100]) + compress(codec, b"") + compress(codec, body[100:])
    batch = bytearray(plain[:BATCH_HEADER_SIZE] + frames)
    batch[22] |= codec

    assert scan_in_blocks(resealed(batch)).record_count == 50
    if codec is not Codec.LZ4:
        assert scan_in_blocks(resealed(batch), dense=True).record_count == 50
        return
    for scan in (scan_in_blocks, scan_records):
        with pytest.raises(UnreadableRecords, match="Java's readers end behind the first"):
            scan(resealed(batch), dense=True)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_record_of_many_megabytes_is_passed_over_without_being_held(codec: Codec) -> None:
    builder = BatchBuilder(1 << 30, codec=codec)
    for _ in range(2):
        builder.append(b"key", bytes(100 << 20), 0)
    batch = builder.build()
    del builder

    tracemalloc.start()
    try:
        assert scan_in_blocks(batch, dense=True).record_count == 2
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


def test_records_that_are_missing_are_refused() -> None:
    scanner = BlockScanner(a_batch(2, Codec.GZIP))
    scanner.feed(a_batch(1)[BATCH_HEADER_SIZE:])

    with pytest.raises(UnreadableRecords, match="record 1 of 2 is malformed"):
        scanner.finish()
