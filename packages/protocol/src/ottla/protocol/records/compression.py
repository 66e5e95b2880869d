"""The four codecs as Kafka frames them, with a bound on what decompression may allocate.

`compress(codec, data)` and `decompress(codec, data, max_bytes=...)` work on whole batches,
`decompressed_blocks` on batches of any size in bounded memory. `magic` matters for lz4 alone, whose frame
header carries a wrong checksum in message sets of magic 0 (KAFKA-3160).
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ottla.protocol.errors import UnsupportedCompressionType
from ottla.protocol.records.compressed_frames import (
    LZ4_MAGIC,
    XERIAL_HEADER,
    XERIAL_MAGIC,
    end_of_frames,
    gzip_size,
    snappy_size,
    xerial_blocks,
    zstd_size,
)
from ottla.protocol.records.errors import DecompressedTooLarge, UnreadableRecords
from ottla.protocol.records.types import Buffer, Codec

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

DEFAULT_MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""The default limit of `decompress`: far above any batch that a broker accepts by default."""

LARGE_FOR_ZSTD = 4 << 20
"""Bytes above which the highest levels of zstd would take hundreds of MiB."""
_LEVEL_FOR_LARGE = 19
_SMALLEST_GUESS = 1024


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
            return _unfold(cramjam.gzip.decompress_into, data, gzip_size(data), max_bytes, codec)
        case Codec.SNAPPY:
            return _decompress_snappy(memoryview(data), max_bytes)
        case Codec.LZ4:
            frame = _with_lz4_checksum(data, broken=False) if magic == 0 else data
            return _unfold(cramjam.lz4.decompress_into, frame, 4 * len(data), max_bytes, codec)
        case Codec.ZSTD if magic >= 2:
            return _unfold(cramjam.zstd.decompress_into, data, zstd_size(data), max_bytes, codec)
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


def decompress_as_readers_do(
    codec: int, data: Buffer, *, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> bytearray:
    """Undo `compress` of a v2 batch, but ignore bytes behind gzip and lz4 data, as Java's readers do.

    Raises as `decompress`.
    """
    try:
        return decompress(codec, data, max_bytes=max_bytes)
    except UnreadableRecords:
        end = end_of_frames(codec, data)
        if not 0 < end < len(data):
            raise
        return decompress(codec, memoryview(data)[:end], max_bytes=max_bytes)


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


# ----------------------------------------------------------------------------------------------------- snappy

_XERIAL_BLOCK = 32 * 1024


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, max_bytes: int) -> bytearray:
    """Xerial's framing, or one raw block as some clients send."""
    blocks = list(xerial_blocks(data)) if data[:8] == XERIAL_MAGIC else [data]
    sizes = [snappy_size(block) for block in blocks]
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


# -------------------------------------------------------------------------------------------------------- lz4


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
    if len(fixed) < 7 or int.from_bytes(fixed[:4], "little") != LZ4_MAGIC:
        raise UnreadableRecords("not lz4 data: no frame header")
    flags = fixed[4]
    end = 6 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    if end >= len(fixed):
        raise UnreadableRecords("not lz4 data: the frame header is cut off")
    fixed[end] = xxh32(bytes(fixed[0 if broken else 4 : end])) >> 8 & 0xFF
    return fixed


# -------------------------------------------------------------------------------------------------- in blocks

_BLOCK_BYTES = 128 * 1024
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
    for block in xerial_blocks(data) if data[:8] == XERIAL_MAGIC else [data]:
        size = snappy_size(block)
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
