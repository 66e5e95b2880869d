"""Malformed record batches: every reader raises a typed error; none crashes or takes memory for a claim."""

import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.errors import CorruptMessage, KafkaError, UnsupportedCompressionType
from ottla.protocol.records import (
    BATCH_HEADER_SIZE,
    Codec,
    CorruptRecords,
    decode_records,
    iter_records,
    read_header,
    read_headers,
    scan_records,
    split_batches,
    validate_batch,
    validate_batches,
)
from ottla.protocol.records.testing import a_batch, resealed, with_body

BOUNDED: list[Callable[..., Any]] = [iter_records, decode_records, scan_records]


@pytest.mark.parametrize("cut", [1, 11, 12, 16, 17, 60, 61, 70])
def test_a_torn_tail_raises_unless_it_is_expected(cut: int) -> None:
    first = a_batch(3)
    torn = first + first[:cut]

    with pytest.raises(CorruptRecords):
        list(split_batches(torn))
    assert [bytes(b) for b in split_batches(torn, torn_tail=True)] == [first]
    assert len(read_headers(torn, torn_tail=True)) == 1


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13, 48])
def test_a_length_no_batch_can_have_is_corrupt_and_not_torn(length: int) -> None:
    batch = bytearray(a_batch(3))
    struct.pack_into(">i", batch, 8, length)

    with pytest.raises(CorruptRecords):
        list(split_batches(batch, torn_tail=True))
    with pytest.raises(CorruptRecords):
        read_headers(batch, torn_tail=True)
    with pytest.raises(CorruptMessage):
        validate_batch(batch)


def test_an_unknown_magic_is_corrupt() -> None:
    batch = bytearray(a_batch(3))
    batch[16] = 3

    readers: list[Callable[..., Any]] = [read_header, split_batches, validate_batch, iter_records]
    for read in readers:
        with pytest.raises(CorruptRecords):
            list(read(batch))


@pytest.mark.parametrize(
    ("offset", "value"),
    [(57, 2**31 - 1), (57, -1), (57, 2), (57, 4), (57, 0), (23, -1), (23, 1), (23, 3), (23, 2**31 - 1)],
)
def test_counts_that_do_not_add_up_are_refused(offset: int, value: int) -> None:
    batch = bytearray(a_batch(3))
    struct.pack_into(">i", batch, offset, value)

    with pytest.raises(CorruptRecords):
        validate_batch(resealed(batch), dense=True, check_records=True)


def test_a_hostile_count_costs_no_memory() -> None:
    batch = bytearray(a_batch(3, Codec.GZIP))
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    struct.pack_into(">i", batch, 23, 2**31 - 1)
    hostile = resealed(batch)
    validate_batch(hostile)

    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecords):
            decode_records(hostile)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x00", id="length zero"),
        pytest.param(b"\x01" + bytes(8), id="length -1"),
        pytest.param(b"\x80\x80\x80\x80\x80\x80\x80\x00" + bytes(8), id="overlong length"),
        pytest.param(b"\xfe\xff\xff\xff\x0f" + bytes(8), id="length of 2 GiB"),
        pytest.param(b"\xff" * 20, id="varint without end"),
        pytest.param(b"\x0c\x00" + b"\xff" * 12, id="timestamp without end"),
        pytest.param(b"\x0c\x00\x00\x00\x7e\x01\x00", id="key behind the record"),
        pytest.param(b"\x0c\x00\x00\x00\x01\x7e\x00", id="value behind the record"),
        pytest.param(b"\x0c\x00\x00\x00\x01\x01\x02", id="a header that is not there"),
        pytest.param(b"\x14\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f", id="two billion headers"),
        pytest.param(b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", id="null header key"),
        pytest.param(b"\x10\x00\x00\x00\x01\x01\x02\x00\x10", id="header value behind the record"),
        pytest.param(b"\x0c\x00\x00\x00\x01\x01\x01", id="-1 headers"),
        pytest.param(b"\x0e\x00\x00\x00\x01\x01\x00\x00", id="a byte left in the record"),
        pytest.param(b"\x0c\x00\x00\x00\x01\x01\x00\x00", id="a byte left in the batch"),
    ],
)
def test_a_malformed_record_is_refused_by_every_reader(body: bytes) -> None:
    batch = with_body(body)

    for read in BOUNDED:
        with pytest.raises(CorruptRecords):
            list(read(batch))
    with pytest.raises(CorruptRecords):
        validate_batch(batch, check_records=True)


def test_every_flipped_byte_is_noticed() -> None:
    batch = a_batch(3, base_offset=5, producer_id=1, producer_epoch=0, base_sequence=0)
    changed = []
    for i in range(len(batch)):
        for mask in (0x01, 0x80, 0xFF):
            flipped = bytearray(batch)
            flipped[i] ^= mask
            try:
                validate_batch(flipped, dense=True, check_records=True)
            except KafkaError:
                continue
            changed.append(i)

    # the checksum leaves out only what the broker writes: base offset and leader epoch
    assert set(changed) == {*range(8), *range(12, 16)}


@pytest.mark.parametrize("codec", Codec)
def test_a_flipped_byte_under_a_right_checksum_is_harmless(codec: Codec) -> None:
    batch = a_batch(5, codec)
    for i in range(16, len(batch)):
        for mask in (0x01, 0x10, 0x80, 0xFF):
            flipped = bytearray(batch)
            flipped[i] ^= mask
            read_everything(resealed(flipped))


def read_everything(data: bytes) -> None:
    """Whatever the bytes are, the only way out but an answer is a typed error."""
    others: list[Callable[..., Any]] = [split_batches, read_headers, validate_batches]
    for read in (*BOUNDED, *others):
        with suppress(KafkaError):
            answer = read(data, max_decompressed_bytes=1 << 16) if read in BOUNDED else read(data)
            for item in answer if hasattr(answer, "__iter__") else ():
                repr(item)


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_random_bytes_never_crash(data: bytes) -> None:
    read_everything(data)
    if len(data) > BATCH_HEADER_SIZE:
        read_everything(resealed(data[:16] + b"\2" + data[17:]))


@given(st.binary(max_size=200), st.integers(1, 40), st.sampled_from([0, 0, 0, 8, 16]))
@settings(max_examples=300, deadline=None)
def test_random_records_never_crash(body: bytes, count: int, attributes: int) -> None:
    batch = bytearray(with_body(body, count))
    struct.pack_into(">h", batch, 21, attributes)
    read_everything(resealed(batch))


def test_unknown_codecs_are_named() -> None:
    batch = bytearray(a_batch(3))
    batch[22] = 6

    with pytest.raises(UnsupportedCompressionType, match="6"):
        validate_batch(resealed(batch))
    with pytest.raises(UnsupportedCompressionType):
        read_header(batch).codec  # noqa: B018
