"""The blocks, frames and members of compressed records: where they end, their count, the sizes they state.

Their content is unfolded by `compression`. Here gzip alone is, too: nothing else shows where a member ends.
"""

import struct
import zlib
from collections.abc import Iterator
from itertools import islice

from ottla.protocol.records.errors import UnreadableRecords
from ottla.protocol.records.types import Buffer, Codec

MOST_BLOCKS = 256
"""Blocks that a batch is split into by usual writers, at most: theirs have 32 KiB and more."""
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
LZ4_MAGIC = 0x184D2204
_GZIP_MAGIC = b"\x1f\x8b\x08"
_ZSTD_SKIPPABLE = 0x184D2A50
_END_STEP = 64 * 1024


def is_in_many_blocks(codec: int, data: Buffer) -> bool:
    """Whether compressed data has more blocks, frames or members than `MOST_BLOCKS`.

    Each costs a microsecond or so besides its bytes, and clients can make them as small as one byte. The
    count stops at the limit. False for data that turns out before it not to be of that codec.
    """
    match codec:
        case Codec.GZIP:  # where members end shows only when they are unfolded: beginnings are counted
            return bytes(data).count(_GZIP_MAGIC) > MOST_BLOCKS
        case Codec.SNAPPY if data[:8] == XERIAL_MAGIC:
            blocks: Iterator[object] = xerial_blocks(memoryview(data))
        case Codec.LZ4:
            blocks = _lz4_ends(memoryview(data))
        case Codec.ZSTD:
            blocks = _zstd_ends(memoryview(data))
        case _:
            return False
    try:
        return any(True for _ in islice(blocks, MOST_BLOCKS, None))
    except UnreadableRecords:
        return False


def end_of_frames(codec: int, data: Buffer) -> int:
    """Return where gzip members or an lz4 frame end; 0 if they do not, and for the other codecs."""
    match codec:
        case Codec.GZIP:
            return _end_of_gzip(bytes(data))
        case Codec.LZ4:
            return _end_of_lz4(memoryview(data))
    return 0


# --- gzip


def _end_of_gzip(data: bytes) -> int:
    rest = data
    while rest.startswith(_GZIP_MAGIC):
        member = zlib.decompressobj(wbits=31)
        piece = rest
        try:
            while not member.eof and piece:
                member.decompress(piece, _END_STEP)
                piece = member.unconsumed_tail
        except zlib.error:
            return 0
        if not member.eof:
            return 0
        rest = member.unused_data
    return len(data) - len(rest)


def gzip_size(data: Buffer) -> int:
    """The size in the trailer, if it is possible: deflate cannot grow data more than 1032 times."""
    if len(data) < 18:
        return 0
    (size,) = struct.unpack_from("<I", data, len(data) - 4)
    return int(min(size, 1032 * len(data)))


# --- snappy, in the framing of xerial


def xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    """Yield each block of xerial's framing. Raises UnreadableRecords at one that is cut off."""
    position = len(XERIAL_HEADER)
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        start = position + 4
        if start > len(data) or size < 1 or size > len(data) - start:
            raise UnreadableRecords(f"a snappy block of {size} bytes at byte {position} of {len(data)}")
        yield data[start : start + size]
        position = start + size


def snappy_size(block: memoryview) -> int:
    """The size in the block's preamble, if it is possible: three bytes stand for at most 64."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if size > 64 * len(block):
                raise UnreadableRecords(f"{len(block)} bytes of snappy cannot hold {size}")
            return size
    raise UnreadableRecords("a snappy block without a length")


# --- lz4


def check_lz4_frame(data: Buffer) -> None:
    """Check that `data` is one lz4 frame as Java's readers take it: blocks of their own, nothing around it.

    The lz4 library links blocks by default and reads several frames in a row; Apache Kafka and its consumer
    do not. What the blocks hold is left to `decompress`. Raises UnreadableRecords.
    """
    frame = memoryview(data)
    if len(frame) < 7 or int.from_bytes(frame[:4], "little") != LZ4_MAGIC:
        raise UnreadableRecords("not lz4 data: no frame header")
    flags, sizes = frame[4], frame[5]
    if not flags & 0x20:
        raise UnreadableRecords("an lz4 frame with linked blocks, which Java's readers do not take")
    if flags & 0xC3 != 0x40 or sizes & 0x8F or not 4 <= sizes >> 4 <= 7:
        raise UnreadableRecords("an lz4 frame header that Java's readers do not take")
    end = _end_of_lz4(frame)
    if end != len(frame):
        raise UnreadableRecords("lz4 data that is not one frame: Java's readers end behind the first")


def _end_of_lz4(data: memoryview) -> int:
    """Return where an lz4 frame ends; 0 if it does not."""
    end = 0
    for end in _lz4_ends(data):  # noqa: B007 - the last one counts
        pass
    return max(end, 0)


def _lz4_ends(data: memoryview) -> Iterator[int]:
    """Yield -1 for each block of an lz4 frame, and then the end of the frame, if it has one."""
    if len(data) < 7 or int.from_bytes(data[:4], "little") != LZ4_MAGIC:
        return
    flags = data[4]
    at = 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little") & 0x7FFF_FFFF
        at += 4
        if size == 0:
            yield at + (4 if flags & 4 else 0)
            return
        at += size + (4 if flags & 16 else 0)
        yield -1


# --- zstd


def _zstd_ends(data: memoryview) -> Iterator[int]:
    """Yield the end of each block and frame of zstd data."""
    at = 0
    while at + 8 <= len(data):
        if int.from_bytes(data[at : at + 4], "little") & 0xFFFF_FFF0 == _ZSTD_SKIPPABLE:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
        else:
            descriptor = data[at + 4]
            at += _zstd_header_size(descriptor)
            is_last = False
            while not is_last and at + 3 <= len(data):
                header = int.from_bytes(data[at : at + 3], "little")
                is_last, is_run = bool(header & 1), header & 6 == 2
                at += 3 + (1 if is_run else header >> 3)
                yield at
            at += 4 if descriptor & 4 else 0
        yield at


def _zstd_header_size(descriptor: int) -> int:
    """The size of the header of a frame, with its magic."""
    single_segment = descriptor >> 5 & 1
    content_size = (single_segment, 2, 4, 8)[descriptor >> 6]
    return 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3] + content_size


def zstd_size(data: Buffer) -> int:
    """The frame's content size, if it has one and it is credible; else a usual ratio."""
    usual = 4 * len(data)
    if len(data) < 6:
        return usual
    descriptor = data[4]
    single_segment = descriptor >> 5 & 1
    field_size = (single_segment, 2, 4, 8)[descriptor >> 6]
    start = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    if not field_size or len(data) < start + field_size:
        return usual
    size = int.from_bytes(data[start : start + field_size], "little") + (256 if field_size == 2 else 0)
    # the claim costs an allocation before the first byte is checked
    return min(size, 256 * len(data))
