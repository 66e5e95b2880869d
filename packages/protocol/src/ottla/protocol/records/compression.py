"""The four codecs as Kafka frames them, with a bound on what decompression may allocate.

`compress(codec, data)` and `decompress(codec, data, max_bytes=...)` work on whole batches,
`decompressed_blocks` on batches of any size in bounded memory. `magic` matters for lz4 alone, whose frame
header carries a wrong checksum in message sets of magic 0 (KAFKA-3160).

Over 500 lines because a codec's framing is written, read, bounded and counted in one place.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.protocol.errors import UnsupportedCompressionType
from ottla.protocol.records.errors import DecompressedTooLarge, UnreadableRecords
from ottla.protocol.records.types import Codec

if TYPE_CHECKING:
    import cramjam
else:

    class _ImportedOnUse:
        """cramjam, imported on first use: it takes 5 ms and 1.5 MiB, which an idle broker can spare."""

        def __getattr__(self, name: str) -> Any:
            found = getattr(import_module("cramjam"), name)
            setattr(self, name, found)
            return found

    cramjam = _ImportedOnUse()

__all__ = [
    "DEFAULT_MAX_DECOMPRESSED_BYTES",
    "Buffer",
    "Codec",
    "compress",
    "decompress",
    "decompressed_blocks",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

DEFAULT_MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""The default limit of `decompress`: far above any batch that a broker accepts by default."""

LARGE_FOR_ZSTD = 4 << 20
"""Bytes above which the highest levels of zstd would take hundreds of MiB."""
_LEVEL_FOR_LARGE = 19
_SMALLEST_GUESS = 1024
MOST_BLOCKS = 256
"""Blocks that a batch is split into by usual writers, at most: theirs have 32 KiB and more."""
_GZIP_MAGIC = b"\x1f\x8b\x08"
_END_STEP = 64 * 1024


def compress(codec: int, data: Buffer, *, level: int | None = None, magic: int = 2) -> bytes:
    """The bytes of `data` in Kafka's framing of `codec`; Codec.NONE gives them as they are.

    `level` is the codec's own scale, None its default; snappy has none. Above `LARGE_FOR_ZSTD` bytes, levels
    of zstd beyond 19 count as 19.
    Raises UnsupportedCompressionType for an unknown codec, and for zstd below magic 2.
    """
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, level=6 if level is None or level < 0 else level))
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            return _compress_lz4(data, 1 if level is None else level, magic)
        case Codec.ZSTD if magic >= 2:
            return bytes(cramjam.zstd.compress(data, level=_zstd_level(level, len(data))))
    raise UnsupportedCompressionType(f"no compression type {codec} in magic {magic}")


def _zstd_level(level: int | None, size: int) -> int:
    """Return the level for data of a size.

    zstd knows the size, and shrinks its tables and window to it. They take 4 * (2**chainLog + 2**hashLog) +
    2**windowLog bytes: 68 MiB at level 22 for 4 MiB of data, but 416 for 32 MiB, where level 19 takes 88 and
    saves nearly as much.
    """
    if level is None:
        return 3
    return min(level, _LEVEL_FOR_LARGE) if size > LARGE_FOR_ZSTD else level


def decompress(
    codec: int, data: Buffer, *, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES, magic: int = 2
) -> bytearray:
    """Undo `compress`, in a new bytearray of at most `max_bytes`.

    Raises DecompressedTooLarge when there is more, UnreadableRecords when `data` is not of that codec, and
    UnsupportedCompressionType as `compress` does. Never allocates much more than `max_bytes`, even for
    data that claims to be larger.
    """
    match codec:
        case Codec.NONE:
            return _bounded_copy(data, max_bytes)
        case Codec.GZIP:
            return _unfold(cramjam.gzip.decompress_into, data, _gzip_size(data), max_bytes, codec)
        case Codec.SNAPPY:
            return _decompress_snappy(memoryview(data), max_bytes)
        case Codec.LZ4:
            frame = _with_lz4_checksum(data, broken=False) if magic == 0 else data
            return _unfold(cramjam.lz4.decompress_into, frame, 4 * len(data), max_bytes, codec)
        case Codec.ZSTD if magic >= 2:
            return _unfold(cramjam.zstd.decompress_into, data, _zstd_size(data), max_bytes, codec)
    raise UnsupportedCompressionType(f"no compression type {codec} in magic {magic}")


def decompressed_blocks(codec: int, data: Buffer) -> Iterator[Buffer]:
    """Undo `compress` of a v2 batch block after block: memory stays bounded, however large the whole is.

    A block is at most some MiB, and the next one may reuse its memory; a raw snappy block, which some clients
    send, comes whole and has at most 64 times the size of `data`. Blocks of lz4 and zstd need the packages
    `lz4` and `zstandard` (the extra `blocks`): cramjam cannot stream. Raises UnreadableRecords when `data` is
    not of that codec, is cut off, or has bytes behind its end.
    """
    match codec:
        case Codec.NONE:
            return iter((data,))
        case Codec.GZIP:
            return _gzip_blocks(data)
        case Codec.SNAPPY:
            return _snappy_blocks(memoryview(data))
        case Codec.LZ4:
            return _lz4_blocks(data)
        case Codec.ZSTD:
            return _zstd_blocks(memoryview(data))
    raise UnsupportedCompressionType(f"no compression type {codec} in magic 2")


def is_in_many_blocks(codec: int, data: Buffer) -> bool:
    """Whether compressed data has more blocks, frames or members than `MOST_BLOCKS`.

    Each costs a microsecond or so besides its bytes, and clients can make them as small as one byte. The
    count stops at the limit. False for data that turns out before it not to be of that codec.
    """
    match codec:
        case Codec.GZIP:  # where members end shows only when they are unfolded: beginnings are counted
            return bytes(data).count(_GZIP_MAGIC) > MOST_BLOCKS
        case Codec.SNAPPY if data[:8] == _XERIAL_MAGIC:
            blocks: Iterator[object] = _xerial_blocks(memoryview(data))
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


def decompress_as_readers_do(
    codec: int, data: Buffer, *, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> bytearray:
    """Undo `compress` of a v2 batch, but ignore bytes behind gzip and lz4 data, as Java's readers do.

    Raises as `decompress`.
    """
    try:
        return decompress(codec, data, max_bytes=max_bytes)
    except UnreadableRecords:
        end = _end_of_frames(codec, data)
        if not 0 < end < len(data):
            raise
        return decompress(codec, memoryview(data)[:end], max_bytes=max_bytes)


def _end_of_frames(codec: int, data: Buffer) -> int:
    """Return where gzip members or an lz4 frame end; 0 if they do not, and for the other codecs."""
    match codec:
        case Codec.GZIP:
            return _end_of_gzip(bytes(data))
        case Codec.LZ4:
            return _end_of_lz4(memoryview(data))
    return 0


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


def _end_of_lz4(data: memoryview) -> int:
    """Return where an lz4 frame ends; 0 if it does not."""
    end = 0
    for end in _lz4_ends(data):  # noqa: B007 - the last one counts
        pass
    return max(end, 0)


def _lz4_ends(data: memoryview) -> Iterator[int]:
    """Yield -1 for each block of an lz4 frame, and then the end of the frame, if it has one."""
    if len(data) < 7 or int.from_bytes(data[:4], "little") != _LZ4_MAGIC:
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


def _bounded_copy(data: Buffer, max_bytes: int) -> bytearray:
    if len(data) > max_bytes:
        raise _too_large(max_bytes, Codec.NONE)
    return bytearray(data)


def _too_large(max_bytes: int, codec: int) -> DecompressedTooLarge:
    return DecompressedTooLarge(f"{Codec(codec).name.lower()} data unfolds to more than {max_bytes} bytes")


def _unfold(
    into: Callable[[Buffer, bytearray], int], data: Buffer, guess: int, max_bytes: int, codec: int
) -> bytearray:
    """Decompress into a buffer of the guessed size, and again into a larger one while it does not suffice.

    The codecs offer no bounded streaming, but they never write past the buffer they are given.
    """
    size = min(max(guess, _SMALLEST_GUESS), max_bytes)
    while True:
        output = bytearray(size)
        try:
            written = into(data, output)
        except cramjam.DecompressionError as error:
            if "failed to write whole buffer" not in str(error):
                raise UnreadableRecords(f"not {Codec(codec).name.lower()} data: {error}") from None
        else:
            del output[written:]
            return output
        if size >= max_bytes:
            raise _too_large(max_bytes, codec)
        del output
        size = min(4 * size, max_bytes)


def _gzip_size(data: Buffer) -> int:
    """The size in the trailer, if it is possible: deflate cannot grow data more than 1032 times."""
    if len(data) < 18:
        return 0
    (size,) = struct.unpack_from("<I", data, len(data) - 4)
    return int(min(size, 1032 * len(data)))


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


def _zstd_size(data: Buffer) -> int:
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


# ----------------------------------------------------------------------------------------------------- snappy

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, max_bytes: int) -> bytearray:
    """Xerial's framing, or one raw block as some clients send."""
    blocks = list(_xerial_blocks(data)) if data[:8] == _XERIAL_MAGIC else [data]
    sizes = [_snappy_size(block) for block in blocks]
    if sum(sizes) > max_bytes:
        raise _too_large(max_bytes, Codec.SNAPPY)
    output = bytearray(sum(sizes))
    position = 0
    with memoryview(output) as whole:
        for block, size in zip(blocks, sizes, strict=True):
            with whole[position : position + size] as part:
                _unfold_snappy_block(block, part, size)
            position += size
    return output


def _unfold_snappy_block(block: memoryview, output: memoryview, size: int) -> None:
    try:
        written = cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise UnreadableRecords(f"not snappy data: {error}") from None
    if written != size:
        raise UnreadableRecords(f"a snappy block says it holds {size} bytes, {written} came out")


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    position = len(_XERIAL_HEADER)
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        start = position + 4
        if start > len(data) or size < 1 or size > len(data) - start:
            raise UnreadableRecords(f"a snappy block of {size} bytes at byte {position} of {len(data)}")
        yield data[start : start + size]
        position = start + size


def _snappy_size(block: memoryview) -> int:
    """The size in the block's preamble, if it is possible: three bytes stand for at most 64."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if size > 64 * len(block):
                raise UnreadableRecords(f"{len(block)} bytes of snappy cannot hold {size}")
            return size
    raise UnreadableRecords("a snappy block without a length")


# -------------------------------------------------------------------------------------------------------- lz4

_LZ4_MAGIC = 0x184D2204


def check_lz4_frame(data: Buffer) -> None:
    """Check that `data` is one lz4 frame as Java's readers take it: blocks of their own, nothing around it.

    The lz4 library links blocks by default and reads several frames in a row; Apache Kafka and its consumer
    do not. What the blocks hold is left to `decompress`. Raises UnreadableRecords.
    """
    frame = memoryview(data)
    if len(frame) < 7 or int.from_bytes(frame[:4], "little") != _LZ4_MAGIC:
        raise UnreadableRecords("not lz4 data: no frame header")
    flags, sizes = frame[4], frame[5]
    if not flags & 0x20:
        raise UnreadableRecords("an lz4 frame with linked blocks, which Java's readers do not take")
    if flags & 0xC3 != 0x40 or sizes & 0x8F or not 4 <= sizes >> 4 <= 7:
        raise UnreadableRecords("an lz4 frame header that Java's readers do not take")
    end = _end_of_lz4(frame)
    if end != len(frame):
        raise UnreadableRecords("lz4 data that is not one frame: Java's readers end behind the first")


def _compress_lz4(data: Buffer, level: int, magic: int) -> bytes:
    # Java's reader knows neither linked blocks nor checks a content checksum
    compressor = cramjam.lz4.Compressor(level=level, block_linked=False, content_checksum=False)
    compressor.compress(bytes(data))
    frame = bytes(compressor.finish())
    return bytes(_with_lz4_checksum(frame, broken=True)) if magic == 0 else frame


def _with_lz4_checksum(frame: Buffer, *, broken: bool) -> bytearray:
    """The frame with the checksum of its header set, right or as magic 0 has it.

    Kafka 0.8 and 0.9 hashed the frame's magic number with the descriptor, which the format leaves out; their
    readers insist on it, right readers refuse it.
    """
    fixed = bytearray(frame)
    if len(fixed) < 7 or int.from_bytes(fixed[:4], "little") != _LZ4_MAGIC:
        raise UnreadableRecords("not lz4 data: no frame header")
    flags = fixed[4]
    end = 6 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    if end >= len(fixed):
        raise UnreadableRecords("not lz4 data: the frame header is cut off")
    fixed[end] = xxh32(bytes(fixed[0 if broken else 4 : end])) >> 8 & 0xFF
    return fixed


# -------------------------------------------------------------------------------------------------- in blocks

_BLOCK_BYTES = 128 * 1024
_ZSTD_SKIPPABLE = 0x184D2A50
_ZSTD_PIECE_BYTES = 512
"""Compressed bytes that are unfolded at once: 3 bytes of zstd may stand for 128 KiB, so these for 22 MiB."""
_ZSTD_MAX_WINDOW_BYTES = 1 << 27
"""The largest window of a zstd frame that readers accept by default."""


def _gzip_blocks(data: Buffer) -> Iterator[bytes]:
    while data:
        member = zlib.decompressobj(wbits=31)
        try:
            while not member.eof:
                block = member.decompress(data, _BLOCK_BYTES)
                data = member.unconsumed_tail
                if block:
                    yield block
                elif not data and not member.eof:
                    raise UnreadableRecords("not gzip data: it is cut off")
        except zlib.error as error:
            raise UnreadableRecords(f"not gzip data: {error}") from None
        data = member.unused_data


def _snappy_blocks(data: memoryview) -> Iterator[bytearray]:
    for block in _xerial_blocks(data) if data[:8] == _XERIAL_MAGIC else [data]:
        size = _snappy_size(block)
        output = bytearray(size)
        with memoryview(output) as whole:
            _unfold_snappy_block(block, whole, size)
        yield output


def _lz4_blocks(data: Buffer) -> Iterator[bytes]:
    import lz4.frame  # only for batches too large to be unfolded at once

    piece = bytes(data)
    while piece:
        frame = lz4.frame.LZ4FrameDecompressor()
        try:
            while not frame.eof:
                block = frame.decompress(piece, _BLOCK_BYTES)
                piece = b""
                if block:
                    yield block
                elif frame.needs_input and not frame.eof:
                    raise UnreadableRecords("not lz4 data: it is cut off")
        except RuntimeError as error:
            raise UnreadableRecords(f"not lz4 data: {error}") from None
        piece = frame.unused_data or b""


def _zstd_blocks(data: memoryview) -> Iterator[bytes]:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
    frame, at = decompressor.decompressobj(), 0
    try:
        while at < len(data):
            if frame.eof:
                frame = decompressor.decompressobj()
            piece = data[at : at + _ZSTD_PIECE_BYTES]
            block = frame.decompress(piece)
            at += len(piece) - len(frame.unused_data)
            if block:
                yield block
    except zstandard.ZstdError as error:
        raise UnreadableRecords(f"not zstd data: {error}") from None
    if not frame.eof:
        raise UnreadableRecords("not zstd data: it is cut off")


# xxHash32, for the one byte of an lz4 frame header that must be rewritten in message sets of magic 0.
_MASK = 0xFFFFFFFF
_P1, _P2, _P3, _P4, _P5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1


def _rotate(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _MASK


def _stripes(data: bytes, seed: int) -> int:
    lanes = [seed + _P1 + _P2 & _MASK, seed + _P2 & _MASK, seed & _MASK, seed - _P1 & _MASK]
    for words in struct.iter_unpack("<4I", data):
        lanes = [
            _rotate(lane + word * _P2 & _MASK, 13) * _P1 & _MASK
            for lane, word in zip(lanes, words, strict=True)
        ]
    return sum(_rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK


def xxh32(data: bytes, seed: int = 0) -> int:
    """The 32-bit xxHash of `data`."""
    whole = len(data) & ~15
    words = whole + (len(data) - whole & ~3)
    value = _stripes(data[:whole], seed) if whole else seed + _P5 & _MASK
    value = value + len(data) & _MASK
    for (word,) in struct.iter_unpack("<I", data[whole:words]):
        value = _rotate(value + word * _P3 & _MASK, 17) * _P4 & _MASK
    for byte in data[words:]:
        value = _rotate(value + byte * _P5 & _MASK, 11) * _P1 & _MASK
    value = (value ^ value >> 15) * _P2 & _MASK
    value = (value ^ value >> 13) * _P3 & _MASK
    return value ^ value >> 16
