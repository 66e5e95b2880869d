"""Batches in another codec: the same records, whatever the codecs, and never more than allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.records import (
    BatchBuilder,
    Codec,
    compress,
    decode_records,
    read_header,
    recompress,
    validate_batch,
)
from ottla.protocol.records.errors import CorruptRecords, DecompressedTooLarge

RECORDS = st.lists(
    st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=200), st.integers(0, 2**40)),
    min_size=1,
    max_size=50,
)
CODECS = st.sampled_from(list(Codec))


def built(records: list[tuple[bytes | None, bytes | None, int]], codec: Codec) -> bytes:
    builder = BatchBuilder(1 << 30, codec=codec)
    for key, value, timestamp_ms in records:
        builder.append(key, value, timestamp_ms, [("h", b"x")])
    return builder.build(producer_id=7, producer_epoch=1, base_sequence=3, transactional=True)


@given(records=RECORDS, before=CODECS, after=CODECS)
def test_another_codec_changes_nothing_else(
    records: list[tuple[bytes | None, bytes | None, int]], before: Codec, after: Codec
) -> None:
    batch = built(records, before)

    again = recompress(batch, after)

    header, old = validate_batch(again, dense=True), read_header(batch)
    assert header.codec == after
    assert (header.producer_id, header.base_sequence, header.is_transactional) == (7, 3, True)
    assert (header.base_timestamp, header.max_timestamp) == (old.base_timestamp, old.max_timestamp)
    assert list(decode_records(again)) == list(decode_records(batch))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY])
def test_records_that_become_too_large_are_refused(codec: Codec) -> None:
    bomb = built([(None, bytes(200_000), 1)], codec)

    with pytest.raises(DecompressedTooLarge):
        recompress(bomb, Codec.NONE, max_decompressed_bytes=100_000)


def test_a_batch_whose_records_are_none_is_refused() -> None:
    batch = built([(None, b"value", 1)], Codec.GZIP)
    body = compress(Codec.GZIP, b"\xff" * 50)
    broken = bytearray(batch[:61] + body)
    broken[8:12] = (len(broken) - 12).to_bytes(4, "big")

    with pytest.raises(CorruptRecords):
        recompress(broken, Codec.ZSTD)
