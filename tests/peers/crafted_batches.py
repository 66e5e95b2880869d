"""Record batches with right checksums and wrong or unusual contents, for every reader and every broker.

Each is one batch of format 2 with base offset 0 and about three records. Readers accept those that Apache
Kafka's consumer accepts: `tests/interop/test_crafted_batches.py` compares the two. Where that consumer passes
over records without an error, `java_loses` is set, and a reader of ours raises.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import lz4.frame

from ottla.broker.testing import BrokerProcess
from ottla.protocol.records import BATCH_HEADER_SIZE, BatchBuilder, Codec, compress, crc32c
from ottla.protocol.records.compression import xxh32
from ottla.protocol.storage.segments import SegmentFile, directory_name, file_name
from ottla.protocol.topics import TopicPartition
from peers.topics import Topics

COUNT = 3
"""Records of a crafted batch, unless its kind is about their number."""
FIRST_OFFSET = 2
"""Where a crafted batch begins in the partitions of `serve_crafted`."""
TIME_MS = 1_700_000_000_000

_LAST_OFFSET_DELTA = struct.Struct(">i"), 23
_RECORD_COUNT = struct.Struct(">i"), 57
_ATTRIBUTES = struct.Struct(">h"), 21
_MAX_TIMESTAMP = struct.Struct(">q"), 35
_POSITIONS = {"first": 0, "middle": 1, "last": 2}
_CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
_GARBAGE = b"\xde\xad\xbe\xef" * 16


@dataclass(frozen=True)
class CraftedBatch:
    """One batch, and the records of it that a reader delivers."""

    name: str
    """Kind, codec and position of the fault: `header-key-null/zstd/middle`."""
    kind: str
    codec: Codec
    data: bytes
    readable: tuple[int, ...]
    """The offset deltas of the records that are delivered, before the fault if there is one."""
    is_legal: bool = False
    """Whether all of the batch can be read; else reading raises after `readable`."""
    java_loses: bool = False
    """Whether Apache Kafka's consumer passes over some of its records without an error."""
    is_dense: bool = True
    """Whether the offset deltas are 0, 1, 2, … up to the last one, as those of producers must be."""

    def at(self, base_offset: int) -> bytes:
        """Return the batch with a base offset, which the checksum does not cover."""
        return struct.pack(">q", base_offset) + self.data[8:]

    @property
    def last_offset_delta(self) -> int:
        """The last offset delta of the header."""
        return int(_LAST_OFFSET_DELTA[0].unpack_from(self.data, _LAST_OFFSET_DELTA[1])[0])

    @property
    def size_in_offsets(self) -> int:
        """How many offsets a log keeps for it; at least one."""
        return max(1, self.last_offset_delta + 1)

    @property
    def offsets_behind(self) -> tuple[int, int]:
        """The offsets of the two records behind it in `serve_crafted`'s partitions."""
        return FIRST_OFFSET + self.size_in_offsets, FIRST_OFFSET + self.size_in_offsets + 1

    @property
    def expected_offsets(self) -> list[int]:
        """The offsets that a reader of one of `serve_crafted`'s partitions gets, up to the fault if any."""
        before = [*range(FIRST_OFFSET), *(FIRST_OFFSET + delta for delta in self.readable)]
        return [*before, *self.offsets_behind] if self.is_legal else before

    def in_the_middle(self) -> bytes:
        """Return two records, this batch from FIRST_OFFSET on, and two records."""
        behind = good_batch(self.offsets_behind[0], b"y", b"z")
        return good_batch(0, b"a", b"b") + self.at(FIRST_OFFSET) + behind


def crafted_batches() -> list[CraftedBatch]:
    """Return the corpus: about 60 kinds, with each codec where that matters, at each place in a batch."""
    return [*_damaged_records(), *_unusual_records(), *_offset_deltas(), *_frames(), *_compressed_frames()]


def good_batch(base_offset: int, *values: bytes) -> bytes:
    """Return a batch without fault, to stand before or behind a crafted one."""
    builder = BatchBuilder(1 << 20)
    for value in values:
        builder.append(b"key", value, TIME_MS)
    return builder.build(base_offset=base_offset, partition_leader_epoch=0)


def serve_crafted(broker: BrokerProcess, topic: str, corpus: Sequence[CraftedBatch]) -> None:
    """Create a topic with a partition for each batch of a corpus, which stands between good ones.

    The segments are written under the stopped broker, as an older broker or another one would have left them.
    """
    with Topics(broker.bootstrap_servers) as topics:
        topics.create(topic, partitions=len(corpus))
    broker.stop()
    for number, batch in enumerate(corpus):
        write_segment(broker.data_dir, TopicPartition(topic, number), batch.in_the_middle())
    broker.start()


def write_segment(log_dir: Path, partition: TopicPartition, records: bytes) -> None:
    """Replace the first segment of a partition, under a broker that was stopped in order."""
    (log_dir / directory_name(partition) / file_name(0, SegmentFile.LOG)).write_bytes(records)


# --- bytes


def varint(number: int) -> bytes:
    """Return the zigzag encoding of a number of up to 64 bits."""
    left = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while left >= 0x80:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*encoded, left])


_OVERLONG = b"\x80" * 5 + b"\x00"  # six bytes for an int32
_OVERLONG_64 = b"\x80" * 10 + b"\x00"  # eleven for an int64


@dataclass(frozen=True)
class RecordParts:
    """The encoded fields of one record, each of which may be replaced."""

    attributes: bytes = b"\x00"
    timestamp_delta: bytes = varint(5)
    offset_delta: bytes = varint(0)
    key_size: bytes = varint(3)
    key: bytes = b"key"
    value_size: bytes = varint(5)
    value: bytes = b"value"
    header_count: bytes = varint(1)
    header_key_size: bytes = varint(1)
    header_key: bytes = b"h"
    header_value_size: bytes = varint(2)
    header_value: bytes = b"xy"
    tail: bytes = b""
    length: Callable[[int], bytes] = varint
    """Makes the record's length field from its size."""

    @property
    def body(self) -> bytes:
        return b"".join((
            self.attributes, self.timestamp_delta, self.offset_delta, self.key_size, self.key,
            self.value_size, self.value, self.header_count, self.header_key_size, self.header_key,
            self.header_value_size, self.header_value, self.tail,
        ))  # fmt: skip

    def encoded(self) -> bytes:
        """Return the record with its length."""
        return self.length(len(self.body)) + self.body


def _batch(
    records: bytes,
    codec: Codec = Codec.NONE,
    *,
    count: int = COUNT,
    last_offset_delta: int | None = None,
    attributes: int = 0,
    max_timestamp: int = TIME_MS + 5,
    packed: bytes | None = None,
) -> bytes:
    """Return a batch with these bytes for records; `packed` replaces their compressed form."""
    template = BatchBuilder(1 << 20)
    template.append(b"", b"", TIME_MS)
    batch = bytearray(template.build(partition_leader_epoch=0)[:BATCH_HEADER_SIZE])
    batch += packed if packed is not None else compress(codec, records)
    fields = (
        (_ATTRIBUTES, attributes | codec),
        (_LAST_OFFSET_DELTA, count - 1 if last_offset_delta is None else last_offset_delta),
        (_MAX_TIMESTAMP, max_timestamp),
        (_RECORD_COUNT, count),
    )
    for (layout, position), number in fields:
        layout.pack_into(batch, position, number)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def _records(*deltas: int) -> list[bytes]:
    return [RecordParts(offset_delta=varint(delta)).encoded() for delta in deltas]


def _with(position: int, parts: RecordParts) -> bytes:
    """Return three records, one of which has these parts."""
    records = _records(*range(COUNT))
    records[position] = replace(parts, offset_delta=varint(position)).encoded()
    return b"".join(records)


# --- records that cannot be parsed

_PLAIN = RecordParts()
_NO_HEADERS = {"header_key_size": b"", "header_key": b"", "header_value_size": b"", "header_value": b""}

_DAMAGED: dict[str, RecordParts] = {
    "record-length-2^31": replace(_PLAIN, length=lambda _: b"\x80\x80\x80\x80\x10"),
    "record-length-max": replace(_PLAIN, length=lambda _: varint(2**31 - 1)),
    "record-length-negative": replace(_PLAIN, length=lambda _: varint(-1)),
    "record-length-zero": replace(_PLAIN, length=lambda _: varint(0)),
    "record-length-one-less": replace(_PLAIN, length=lambda size: varint(size - 1)),
    "record-length-one-more": replace(_PLAIN, length=lambda size: varint(size + 1)),
    "record-length-of-six-bytes": replace(_PLAIN, length=lambda _: _OVERLONG),
    "timestamp-delta-of-eleven-bytes": replace(_PLAIN, timestamp_delta=_OVERLONG_64),
    "key-length-beyond-record": replace(_PLAIN, key_size=varint(1_000)),
    "key-length-max": replace(_PLAIN, key_size=varint(2**31 - 1)),
    "key-length-of-six-bytes": replace(_PLAIN, key_size=_OVERLONG),
    "value-length-beyond-record": replace(_PLAIN, value_size=varint(1_000)),
    "value-length-max": replace(_PLAIN, value_size=varint(2**31 - 1)),
    "header-count-negative": replace(_PLAIN, header_count=varint(-1)),
    "header-count-beyond-record": replace(_PLAIN, header_count=varint(1_000)),
    "header-count-max": replace(_PLAIN, header_count=varint(2**31 - 1)),
    "header-count-one-too-many": replace(_PLAIN, header_count=varint(2)),
    "header-count-one-too-few": replace(_PLAIN, header_count=varint(0)),
    "header-count-missing": replace(_PLAIN, header_count=b"", **_NO_HEADERS),  # type: ignore[arg-type]
    "header-key-null": replace(_PLAIN, header_key_size=varint(-1), header_key=b""),
    "header-key-length-beyond-record": replace(_PLAIN, header_key_size=varint(1_000)),
    "header-value-length-beyond-record": replace(_PLAIN, header_value_size=varint(1_000)),
    "bytes-behind-headers": replace(_PLAIN, tail=b"\x00\x00"),
    "attributes-alone": RecordParts(
        timestamp_delta=b"", key_size=b"", key=b"", value_size=b"", value=b"", header_count=b"",
        **_NO_HEADERS,  # type: ignore[arg-type]
    ),
}  # fmt: skip

_UNUSUAL: dict[str, RecordParts] = {
    "key-length-minus-two": replace(_PLAIN, key_size=varint(-2), key=b""),
    "value-length-minus-two": replace(_PLAIN, value_size=varint(-2), value=b""),
    "header-value-length-minus-two": replace(_PLAIN, header_value_size=varint(-2), header_value=b""),
    "header-key-empty": replace(_PLAIN, header_key_size=varint(0), header_key=b""),
    "header-key-not-utf-8": replace(_PLAIN, header_key=b"\xff"),
    "attributes-all-set": replace(_PLAIN, attributes=b"\xff"),
    "timestamp-delta-negative": replace(_PLAIN, timestamp_delta=varint(-(2**40))),
    "record-length-not-shortest": replace(
        _PLAIN, length=lambda size: bytes([varint(size)[0] | 0x80, 0x80, 0x00])
    ),
}


def _damaged_records() -> Iterator[CraftedBatch]:
    for number, (kind, parts) in enumerate(_DAMAGED.items()):
        # Each place without compression, and with one codec, another from kind to kind.
        places = [(Codec.NONE, place) for place in _POSITIONS]
        places += [(_CODECS[number % 4], list(_POSITIONS)[number % 3])]
        for codec, place in places:
            position = _POSITIONS[place]
            data = _batch(_with(position, parts), codec)
            yield CraftedBatch(_name(kind, codec, place), kind, codec, data, tuple(range(position)))


def _unusual_records() -> Iterator[CraftedBatch]:
    for number, (kind, parts) in enumerate(_UNUSUAL.items()):
        for codec, place in ((Codec.NONE, "first"), (Codec.NONE, "last"), (_CODECS[number % 4], "middle")):
            data = _batch(_with(_POSITIONS[place], parts), codec)
            yield CraftedBatch(_name(kind, codec, place), kind, codec, data, (0, 1, 2), is_legal=True)


# --- offsets and counts


def _offset_deltas() -> Iterator[CraftedBatch]:
    """Offset deltas: gaps are what compaction leaves; those that do not rise make readers lose records."""
    for codec in (Codec.NONE, Codec.ZSTD):
        for kind, deltas, last, readable in (
            ("offset-delta-repeated", (0, 0, 1), 2, (0,)),
            ("offset-delta-falls", (1, 0, 2), 2, (1,)),
            ("offset-delta-negative", (-1, 0, 1), 2, ()),
            ("offset-delta-beyond-the-last", (0, 1, 9), 2, (0, 1)),
            ("offset-delta-seven-of-one-record", (7,), 0, ()),
            ("last-offset-delta-too-small", (0, 1, 2), 1, ()),
        ):
            data = _batch(b"".join(_records(*deltas)), codec, count=len(deltas), last_offset_delta=last)
            # More records than offsets: Apache Kafka's consumer delivers them and then reads the batch again.
            yield CraftedBatch(
                _name(kind, codec), kind, codec, data, readable, java_loses=True, is_dense=False
            )
        for kind, deltas, last in (
            ("offset-deltas-with-gaps", (1, 4, 6), 6),
            ("last-offset-delta-with-gap", (0, 1, 2), 9),
        ):
            data = _batch(b"".join(_records(*deltas)), codec, count=len(deltas), last_offset_delta=last)
            yield CraftedBatch(_name(kind, codec), kind, codec, data, deltas, is_legal=True, is_dense=False)
        data = _batch(b"".join(_records(0)), codec, count=1, last_offset_delta=-1)
        kind = "last-offset-delta-negative"
        yield CraftedBatch(_name(kind, codec), kind, codec, data, (), java_loses=True, is_dense=False)


def _frames() -> Iterator[CraftedBatch]:
    """Counts that do not fit the records, bytes that belong to no record, and unusual headers."""
    three = b"".join(_records(0, 1, 2))
    for codec in (Codec.NONE, Codec.GZIP, Codec.LZ4):
        for kind, records, options, readable in (
            ("count-one-too-many", three, {"count": 4}, (0, 1, 2)),
            ("count-one-too-few", three, {"count": 2, "last_offset_delta": 2}, (0,)),
            ("count-negative", three, {"count": -1, "last_offset_delta": 2}, ()),
            ("count-max", three, {"count": 2**31 - 1}, (0, 1, 2)),
            ("no-records", b"", {}, ()),
            ("one-byte-behind", three + b"\x00", {}, (0, 1)),
            ("garbage-behind", three + _GARBAGE, {}, (0, 1)),
            ("last-record-cut-off", three[:-3], {}, (0, 1)),
        ):
            data = _batch(records, codec, **options)  # type: ignore[arg-type]
            yield CraftedBatch(_name(kind, codec), kind, codec, data, readable)
        kind = "count-zero"
        data = _batch(three, codec, count=0, last_offset_delta=2)
        yield CraftedBatch(_name(kind, codec), kind, codec, data, (), java_loses=True, is_dense=False)
        for kind, attributes, max_timestamp in (
            ("log-append-time", 0x08, TIME_MS),
            ("max-timestamp-too-large", 0, TIME_MS + 10**9),
            ("max-timestamp-too-small", 0, 0),
            ("delete-horizon", 0x40, TIME_MS + 5),
            ("unused-attributes", 0x7F80, TIME_MS + 5),
        ):
            data = _batch(three, codec, attributes=attributes, max_timestamp=max_timestamp)
            yield CraftedBatch(_name(kind, codec), kind, codec, data, (0, 1, 2), is_legal=True)


# --- compressed frames


def _compressed_frames() -> Iterator[CraftedBatch]:
    three = b"".join(_records(0, 1, 2))
    for codec in _CODECS:
        frame = compress(codec, three)
        flipped = bytearray(frame)
        flipped[len(flipped) // 2] ^= 0xFF
        ignores_tail = codec in (Codec.GZIP, Codec.LZ4)
        for kind, packed, is_legal in (
            ("garbage-behind-frame", frame + _GARBAGE, ignores_tail),
            ("four-bytes-behind-frame", frame + _GARBAGE[:4], ignores_tail),
            ("frame-cut-off", frame[: len(frame) // 2], False),
            ("frame-not-compressed", three, False),
            ("frame-empty", b"", False),
        ):
            data = _batch(three, codec, packed=packed)
            readable = (0, 1, 2) if is_legal else ()
            yield CraftedBatch(_name(kind, codec), kind, codec, data, readable, is_legal=is_legal)
    for number in (5, 6, 7):
        kind = f"codec-{number}"
        data = _batch(three, attributes=number)
        yield CraftedBatch(kind, kind, Codec.NONE, data, ())


# --- lz4 frames


def lz4_batches() -> list[CraftedBatch]:
    """Return batches with lz4 frames of every shape; legal are those that Apache Kafka's readers take.

    Readers of ours take more, as the lz4 library does: what is legal here is what a broker stores.
    """
    return [_lz4_batch(kind, frame, is_legal=True) for kind, frame in _lz4_of_clients()] + [
        _lz4_batch(kind, frame, is_legal=False) for kind, frame in _lz4_beyond_java()
    ]


def _lz4_records() -> bytes:
    """Three records of about 100 KB, which make two blocks of 64 KiB each, the second like the first."""
    value = Random(1).randbytes(20_000) * 2
    parts = [
        RecordParts(offset_delta=varint(delta), value_size=varint(len(value)), value=value)
        for delta in range(COUNT)
    ]
    return b"".join(part.encoded() for part in parts)


def _lz4_batch(kind: str, frame: bytes, *, is_legal: bool) -> CraftedBatch:
    data = _batch(b"", Codec.LZ4, packed=frame)
    return CraftedBatch(f"lz4-{kind}", f"lz4-{kind}", Codec.LZ4, data, (0, 1, 2), is_legal=is_legal)


def _lz4_of_clients() -> Iterator[tuple[str, bytes]]:
    plain = _lz4_records()
    for name, options in (
        ("blocks", {}),
        ("block-checksums", {"block_checksum": True}),
        ("content-checksum", {"content_checksum": True}),
        ("without-content-size", {"store_size": False}),
        ("blocks-of-4-mib", {"block_size": lz4.frame.BLOCKSIZE_MAX4MB}),
        ("incompressible", {"compression_level": -1_000}),
    ):
        yield name, _lz4_frame(plain, **options)
    frame = bytearray(_lz4_frame(plain, content_checksum=True))
    frame[-1] ^= 1
    yield "content-checksum-wrong", bytes(frame)  # Java does not compare it


def _lz4_beyond_java() -> Iterator[tuple[str, bytes]]:
    plain = _lz4_records()
    half = plain[: len(plain) // 2], plain[len(plain) // 2 :]
    frame = _lz4_frame(plain)
    yield "linked-blocks", _lz4_frame(plain, block_linked=True)
    yield "linked-in-one-block", _lz4_header(_lz4_frame(b"".join(_records(0, 1, 2))), {4: 0x20})
    yield "two-frames", _lz4_frame(half[0]) + _lz4_frame(half[1])
    yield "skippable-frame-in-front", _SKIPPABLE + frame
    yield "empty-frame-in-front", _lz4_frame(b"") + frame
    yield "header-checksum-wrong", _lz4_header(frame, {}, checksum=0xFF)
    yield "header-reserved-bit", _lz4_header(frame, {4: 0x02})
    yield "header-block-size-3", _lz4_header(frame, {5: 0x70})  # 4 ^ 7: of 256 bytes
    yield "header-block-size-reserved-bit", _lz4_header(frame, {5: 0x80})
    yield "header-version-2", _lz4_header(frame, {4: 0xC0})
    yield "dictionary", _lz4_header(frame[:14] + bytes(4) + frame[14:], {4: 0x01})
    yield "end-mark-missing", frame[:-4]
    blocks = bytearray(_lz4_frame(plain, block_checksum=True))
    size = int.from_bytes(blocks[15:19], "little") & 0x7FFF_FFFF
    blocks[19 + size] ^= 0xFF
    yield "block-checksum-wrong", bytes(blocks)
    large = _lz4_frame(plain, block_size=lz4.frame.BLOCKSIZE_MAX256KB)
    yield "block-larger-than-said", _lz4_header(large, {5: 0x10})  # 5 ^ 4


_SKIPPABLE = (0x184D2A50).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"hello"


def _lz4_frame(plain: bytes, **options: Any) -> bytes:
    frame: bytes = lz4.frame.compress(
        plain, **{"block_linked": False, "block_size": lz4.frame.BLOCKSIZE_MAX64KB, **options}
    )
    return frame


def _lz4_header(frame: bytes, flips: Mapping[int, int], *, checksum: int = 0) -> bytes:
    """Return the frame with bits of its header flipped and the checksum of that, which may be made wrong."""
    changed = bytearray(frame)
    for position, bits in flips.items():
        changed[position] ^= bits
    end = 6 + (8 if changed[4] & 8 else 0) + (4 if changed[4] & 1 else 0)
    changed[end] = xxh32(bytes(changed[4:end])) >> 8 & 0xFF ^ checksum
    return bytes(changed)


def _name(kind: str, codec: Codec, place: str | None = None) -> str:
    return "/".join((kind, codec.name.lower(), *([place] if place else [])))
