"""Records of other libraries are read, and other libraries read ours."""

import warnings
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from kio.records.readers import read_batch

from ottla.protocol.records import (
    BatchBuilder,
    Codec,
    all_magic_2,
    convert_down,
    decode_records,
    split_batches,
    validate_batch,
)
from ottla.protocol.records.legacy import LegacyRecord, encode_set

with warnings.catch_warnings():
    # its import uses deprecated functions of the standard library
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import MemoryRecords, MemoryRecordsBuilder

NOW_MS = 1_700_000_000_000
ROWS: list[tuple[bytes | None, bytes | None, int]] = [
    (b"key", b"value", NOW_MS),
    (None, b"x" * 5000, NOW_MS + 70_000),
    (b"only a key", None, NOW_MS - 3),
    (b"", b"", NOW_MS + 1),
] * 30
HEADERS = [("name", b"x"), ("ü", None), ("name", b"")]


def ours(magic: int, codec: Codec) -> bytes:
    if magic < 2:
        rows = [LegacyRecord(i, t, k, v) for i, (k, v, t) in enumerate(ROWS)]
        return encode_set(rows, magic, codec=codec)
    builder = BatchBuilder(1 << 20, codec=codec)
    for key, value, timestamp in ROWS:
        builder.append(key, value, timestamp, HEADERS)
    return builder.build(producer_id=5, producer_epoch=1, base_sequence=0)


FORMATS = [(magic, codec) for magic in (0, 1, 2) for codec in Codec if magic == 2 or codec != Codec.ZSTD]


def expected(magic: int) -> list[tuple[Any, ...]]:
    return [(i, t if magic else None, k, v) for i, (k, v, t) in enumerate(ROWS)]


def seen(records: Any, magic: int) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp if magic else None, r.key, r.value) for r in records]


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_kafka_python_reads_what_we_write(magic: int, codec: Codec) -> None:
    batches = MemoryRecords(ours(magic, codec))
    records: list[Any] = []
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        records += list(batch)

    assert seen(records, magic) == expected(magic)
    if magic == 2:
        assert list(records[0].headers) == HEADERS


# aiokafka does not know the lz4 of magic 0
@pytest.mark.parametrize(("magic", "codec"), [f for f in FORMATS if f != (0, Codec.LZ4)])
def test_aiokafka_reads_what_we_write(magic: int, codec: Codec) -> None:
    batches = AiokafkaRecords(ours(magic, codec))
    records: list[Any] = []
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        records += list(batch)

    assert seen(records, magic) == expected(magic)


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_we_read_what_kafka_python_writes(magic: int, codec: Codec) -> None:
    builder = MemoryRecordsBuilder(magic, int(codec), 1 << 20)
    for key, value, timestamp in ROWS:
        builder.append(timestamp, key, value, HEADERS if magic == 2 else [])
    builder.close()
    written = bytes(builder.buffer())

    records = decode_records(written)

    assert [(r.offset, r.timestamp_ms if magic else None, r.key, r.value) for r in records] == expected(magic)
    if magic == 2:
        assert list(records[3].headers) == HEADERS
        validate_batch(written, dense=True, check_records=True)


@pytest.mark.parametrize("codec", Codec)
def test_we_read_what_aiokafka_writes(codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(2, int(codec), 0, -1, -1, -1, 1 << 20)
    for i, (key, value, timestamp) in enumerate(ROWS):
        builder.append(i, timestamp, key, value, HEADERS)
    written = bytes(builder.build())

    assert validate_batch(written, dense=True, check_records=True).codec == codec
    assert [(r.offset, r.timestamp_ms, r.key, r.value) for r in decode_records(written)] == expected(2)
    assert decode_records(written)[5].headers == tuple(HEADERS)


def test_without_compression_all_write_the_same_bytes() -> None:
    aiokafka_builder = DefaultRecordBatchBuilder(2, 0, 0, 5, 1, 0, 1 << 20)
    for i, (key, value, timestamp) in enumerate(ROWS):
        aiokafka_builder.append(i, timestamp, key, value, HEADERS)
    ours_again = bytearray(ours(2, Codec.NONE))
    theirs = bytearray(aiokafka_builder.build())
    # the producer leaves the leader epoch to the broker; the libraries do not agree on what to write
    ours_again[12:16] = theirs[12:16]

    assert ours_again == theirs
    assert DefaultRecordBatch(bytes(ours_again)).validate_crc()


def test_kio_reads_what_we_write() -> None:
    batch, size = read_batch(memoryview(ours(2, Codec.NONE)), 0)

    assert size == len(ours(2, Codec.NONE))
    assert [(r.offset, r.key, r.value) for r in batch.records] == [(o, k, v) for o, _, k, v in expected(2)]
    assert [(h.key.decode(), h.value) for h in batch.records[0].headers] == HEADERS


@pytest.mark.parametrize(("magic", "codec"), [f for f in FORMATS if f[0] < 2])
def test_other_libraries_read_what_was_converted_down(magic: int, codec: Codec) -> None:
    down = convert_down(ours(2, codec), magic)

    assert not all_magic_2(down)
    records = [record for entry in split_batches(down) for record in MemoryRecords(bytes(entry)).next_batch()]
    assert seen(records, magic) == expected(magic)
