"""Batches whose records cannot be read are refused on every way into a log, and all others are taken."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Awaitable
from typing import Final

import pytest

from ottla.broker.api.produce import general as produce
from ottla.broker.api.testing import DataPlane
from ottla.broker.log.append.record_checks import takes_long
from ottla.broker.replication.hosted_partition import HostedPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchBuilder,
    Codec,
    compress,
    crc32c,
    decode_records,
    decompress,
    read_header,
    validate_batch,
)
from ottla.protocol.records.compressed_frames import is_in_many_blocks
from ottla.protocol.records.compression import xxh32
from peers.crafted_batches import TIME_MS, CraftedBatch, crafted_batches, lz4_batches

VERSION: Final = 9
CORPUS: Final = [*crafted_batches(), *lz4_batches()]
WAYS: Final[dict[str, dict[str, str]]] = {
    "as it is": {},
    "compacted": {"cleanup_policy": "compact"},
    "recompressed": {"compression_type": "zstd"},
    "stamped": {"message_timestamp_type": "LogAppendTime"},
    "limited in time": {"message_timestamp_after_max_ms": "1000000"},
}


def expected(batch: CraftedBatch, way: str = "as it is") -> ErrorCode:
    """The answer to a batch. It is not for a retry: the batch was made like that."""
    if batch.kind in ("garbage-behind-frame", "four-bytes-behind-frame"):
        return ErrorCode.INVALID_RECORD  # also behind gzip and lz4, where only Java's readers go on
    if batch.kind == "lz4-content-checksum-wrong":
        return ErrorCode.INVALID_RECORD  # which Java's readers do not compare
    if batch.kind == "key-length-minus-two" and way == "compacted":
        return ErrorCode.INVALID_RECORD  # a null key
    if batch.kind == "log-append-time":
        return ErrorCode.INVALID_TIMESTAMP
    if batch.kind.startswith("codec-"):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return ErrorCode.NONE if batch.is_legal and batch.is_dense else ErrorCode.INVALID_RECORD


async def answer_to(plane: DataPlane, records: bytes, topic: str = "t") -> PartitionProduceResponse:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])
    request = ProduceRequest(acks=1, timeout_ms=5_000, topic_data=[data])
    answer = produce.handle(plane.services, request, plane.context(ApiKey.PRODUCE, VERSION))
    if isinstance(answer, Awaitable):
        answer = await answer
    assert answer is not None
    decoded = ProduceResponse.decode(answer.encode(VERSION), VERSION)
    return decoded.responses[0].partition_responses[0]


def stored(partition: HostedPartition) -> bytes:
    return partition.log.read(0, 1 << 20, up_to=partition.log.log_end_offset).read()


@pytest.mark.parametrize("way", WAYS)
async def test_the_general_path_takes_what_can_be_read(plane: DataPlane, way: str) -> None:
    await plane.lead(**WAYS[way])  # type: ignore[arg-type]

    answers = {batch.name: (await answer_to(plane, batch.data)).error_code for batch in CORPUS}

    wrong = [
        f"{batch.name}: {answers[batch.name]}"
        for batch in CORPUS
        if answers[batch.name] != expected(batch, way)
    ]
    assert not wrong


async def test_the_fast_path_takes_nothing_that_cannot_be_read(plane: DataPlane) -> None:
    partition = await plane.lead()
    good = BatchBuilder()
    good.append(b"k", b"v", TIME_MS)
    assert (await answer_to(plane, good.build())).error_code == 0
    taken: list[CraftedBatch] = []

    for batch in CORPUS:
        offset = partition.append_plain(bytearray(batch.data), 1, TIME_MS)
        if offset >= 0:
            taken.append(batch)

    assert taken  # those without a fault
    assert [batch.name for batch in taken if expected(batch) != ErrorCode.NONE] == []
    assert not {"max-timestamp-too-large", "max-timestamp-too-small"} & {batch.kind for batch in taken}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("kind", ["max-timestamp-too-large", "max-timestamp-too-small"])
async def test_a_false_largest_timestamp_is_corrected_with_its_checksum(
    plane: DataPlane, kind: str, codec: Codec
) -> None:
    partition = await plane.lead()
    batch = next(each for each in CORPUS if each.kind == kind and each.codec == codec)
    assert read_header(batch.data).max_timestamp != max(r.timestamp_ms for r in decode_records(batch.data))

    assert (await answer_to(plane, batch.data)).error_code == 0

    kept = stored(partition)
    header = validate_batch(kept)
    assert header.max_timestamp == max(record.timestamp_ms for record in decode_records(kept))
    assert partition.log.log_end.max_timestamp == header.max_timestamp


async def test_trusted_producers_are_checked_by_their_headers_only(plane: DataPlane) -> None:
    await plane.lead(record_validation="headers")
    batch = next(each for each in CORPUS if each.kind == "record-length-max")

    assert (await answer_to(plane, batch.data)).error_code == 0


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
async def test_a_large_compressed_batch_is_checked_on_a_thread(plane: DataPlane, codec: Codec) -> None:
    partition = await plane.lead(max_message_bytes="100000000")
    builder = BatchBuilder(1 << 30, codec=codec)
    for number in range(3):
        builder.append(b"%d" % number, bytes(12 << 20), number)
    batch = builder.build()
    answer = produce.handle(
        plane.services,
        ProduceRequest(
            acks=1,
            timeout_ms=5_000,
            topic_data=[
                TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
            ],
        ),
        plane.context(ApiKey.PRODUCE, VERSION),
    )

    assert isinstance(answer, Awaitable)
    done = await answer
    assert done is not None
    assert done.responses[0].partition_responses[0].error_code == 0
    assert partition.log.log_end_offset == 3
    assert (await answer_to(plane, batch[:-9] + bytes(9))).error_code == ErrorCode.CORRUPT_MESSAGE


async def test_each_batch_is_checked_where_a_request_names_a_partition_twice(plane: DataPlane) -> None:
    partition = await plane.lead()
    builder = BatchBuilder(1 << 21, codec=Codec.ZSTD)
    for number in range(3):
        builder.append(b"%d" % number, bytes(300_000), TIME_MS)  # opened on a thread
    bad = next(batch for batch in CORPUS if batch.kind == "record-length-max")
    entries = [PartitionProduceData(index=0, records=data) for data in (builder.build(), bad.data)]
    topic = TopicProduceData(name="t", partition_data=entries)
    request = ProduceRequest(acks=1, timeout_ms=5_000, topic_data=[topic])

    answer = produce.handle(plane.services, request, plane.context(ApiKey.PRODUCE, VERSION))

    assert isinstance(answer, Awaitable)
    done = await answer
    assert done is not None
    codes = [found.error_code for found in done.responses[0].partition_responses]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_RECORD]
    assert partition.log.log_end_offset == 3


def framed(codec: Codec, data: bytes, size: int) -> bytes:
    """Compress data in blocks, frames or members of that many bytes."""
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    match codec:
        case Codec.GZIP | Codec.ZSTD:
            return b"".join(compress(codec, piece) for piece in pieces)
        case Codec.SNAPPY:
            head = compress(codec, b"")
            return head + b"".join(compress(codec, piece)[len(head) :] for piece in pieces)
    head = b"\x04\x22\x4d\x18\x60\x40" + bytes([xxh32(b"\x60\x40") >> 8 & 0xFF])
    blocks = (struct.pack("<I", 0x8000_0000 | len(piece)) + piece for piece in pieces)
    return head + b"".join(blocks) + bytes(4)


def repacked(plain: bytes, codec: Codec, packed: bytes) -> bytes:
    batch = bytearray(plain[:BATCH_HEADER_SIZE] + packed)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return bytes(batch)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
async def test_a_batch_of_many_tiny_blocks_is_opened_on_a_thread(plane: DataPlane, codec: Codec) -> None:
    partition = await plane.lead()
    builder = BatchBuilder(1 << 20)
    builder.append(b"k", random.Random(0).randbytes(20_000), TIME_MS)
    plain = builder.build()
    records = plain[BATCH_HEADER_SIZE:]
    tiny = repacked(plain, codec, framed(codec, records, 8))
    usual = repacked(plain, codec, framed(codec, records, 1024))

    assert takes_long(tiny, partition.log.config)
    assert not takes_long(usual, partition.log.config)
    assert (await answer_to(plane, usual)).error_code == ErrorCode.NONE  # the fast path begins behind it
    assert partition.append_plain(bytearray(tiny), 1, TIME_MS) < 0
    assert partition.append_plain(bytearray(usual), 1, TIME_MS) == 1
    for batch in (tiny, usual):
        assert (await answer_to(plane, batch)).error_code == ErrorCode.NONE
    assert partition.log.log_end_offset == 4


FOUR_HUFFMAN_BLOCKS: Final = bytes.fromhex(
    "04c081000000000090ff6b100007020000000040feaf41001c080000000000f9bf060170200000000000e4ff1a"
)
"""Blocks of deflate with a Huffman code each and nothing in them: 90 bits, and a microsecond or more."""


def in_huffman_blocks(count: int) -> bytes:
    """Return a batch of one record in one member of gzip that begins with so many empty blocks."""
    builder = BatchBuilder()
    builder.append(b"k", b"v", TIME_MS)
    plain = builder.build()
    records = plain[BATCH_HEADER_SIZE:]
    stored = struct.pack("<BHH", 1, len(records), len(records) ^ 0xFFFF) + records
    member = (
        b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + FOUR_HUFFMAN_BLOCKS * (count // 4) + stored
        + struct.pack("<II", zlib.crc32(records), len(records))
    )  # fmt: skip
    return repacked(plain, Codec.GZIP, member)


async def test_a_gzip_member_of_many_huffman_blocks_is_opened_on_a_thread(plane: DataPlane) -> None:
    partition = await plane.lead()
    many, few = in_huffman_blocks(20_000), in_huffman_blocks(2_000)

    assert takes_long(many, partition.log.config)
    assert takes_long(few * 2, partition.log.config)
    assert not takes_long(few, partition.log.config)
    for batch in (many, few):
        assert (await answer_to(plane, batch)).error_code == ErrorCode.NONE
    assert partition.append_plain(bytearray(many), 1, TIME_MS) < 0
    assert partition.append_plain(bytearray(few * 3), 1, TIME_MS) < 0
    assert partition.append_plain(bytearray(few), 1, TIME_MS) == 2


async def test_gzip_for_several_partitions_is_opened_on_a_thread_together(plane: DataPlane) -> None:
    await plane.lead()
    few = in_huffman_blocks(2_000)

    def request(count: int) -> ProduceRequest:
        entries = [PartitionProduceData(index=0, records=few) for _ in range(count)]
        return ProduceRequest(
            acks=1, timeout_ms=5_000, topic_data=[TopicProduceData(name="t", partition_data=entries)]
        )

    context = plane.context(ApiKey.PRODUCE, VERSION)
    alone = produce.handle(plane.services, request(1), context)
    together = produce.handle(plane.services, request(2), context)

    assert not isinstance(alone, Awaitable)
    assert isinstance(together, Awaitable)
    done = await together
    assert done is not None
    assert {found.error_code for found in done.responses[0].partition_responses} == {ErrorCode.NONE}


def test_tiny_blocks_within_a_frame_of_zstd_count() -> None:
    data = random.Random(0).randbytes(1000)
    blocks = [(8 | (at == 999)).to_bytes(3, "little") + data[at : at + 1] for at in range(1000)]
    frame = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 1000) + b"".join(blocks)

    assert decompress(Codec.ZSTD, frame) == data
    assert is_in_many_blocks(Codec.ZSTD, frame)
    assert not is_in_many_blocks(Codec.ZSTD, compress(Codec.ZSTD, data))


@pytest.mark.parametrize("count", [1, 4, 5, 100])
async def test_only_some_compressed_batches_are_opened_at_once(plane: DataPlane, count: int) -> None:
    partition = await plane.lead()
    good = BatchBuilder()
    good.append(b"k", b"v", TIME_MS)
    assert (await answer_to(plane, good.build())).error_code == 0
    packed = BatchBuilder(1 << 20, codec=Codec.ZSTD)
    packed.append(b"k", bytes(500_000), TIME_MS)
    batches = packed.build() * count

    offset = partition.append_plain(bytearray(batches), 1, TIME_MS)

    assert takes_long(batches, partition.log.config) == (count > 4)
    assert (offset >= 0) == (count <= 3)  # until a MiB is unfolded
