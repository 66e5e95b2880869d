import gzip
import random
import struct
import tracemalloc
from contextlib import suppress

import cramjam
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.errors import MessageTooLarge, UnsupportedCompressionType
from ottla.protocol.records import (
    BatchBuilder,
    Codec,
    CorruptRecords,
    DecompressedTooLarge,
    UnreadableRecords,
    compress,
    decode_records,
    decompress,
    scan_records,
)
from ottla.protocol.records.compressed_frames import check_lz4_frame
from ottla.protocol.records.compression import xxh32

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
MIB = 1 << 20


def magics(codec: Codec) -> list[int]:
    return [2] if codec == Codec.ZSTD else [0, 1, 2]


@pytest.mark.parametrize("codec", Codec)
@given(data=st.binary(max_size=2000), repeat=st.integers(1, 200))
@settings(max_examples=25, deadline=None)
def test_everything_comes_back(codec: Codec, data: bytes, repeat: int) -> None:
    plain = data * repeat
    for magic in magics(codec):
        assert decompress(codec, compress(codec, plain, magic=magic), magic=magic) == plain
        assert decompress(codec, compress(codec, memoryview(plain), magic=magic), magic=magic) == plain


@pytest.mark.parametrize("codec", COMPRESSED)
def test_incompressible_and_large_data_come_back(codec: Codec) -> None:
    for plain in (random.Random(4).randbytes(3 * MIB), bytes(3 * MIB), b"word " * MIB):
        assert decompress(codec, compress(codec, plain)) == plain


def test_levels_are_the_codecs_own() -> None:
    plain = b"".join(b"%d," % (i * i) for i in range(20_000))

    for codec, low, high in ((Codec.GZIP, 1, 9), (Codec.LZ4, 1, 9), (Codec.ZSTD, -5, 15)):
        small, large = compress(codec, plain, level=high), compress(codec, plain, level=low)
        assert len(small) < len(large)
        assert decompress(codec, small) == decompress(codec, large) == plain


def test_levels_of_zstd_that_take_much_memory_are_for_small_data() -> None:
    far, near = (random.Random(seed).randbytes(50_000) for seed in range(2))
    large = far + near * 180 + far  # the window of level 19 does not reach back to the beginning

    assert len(compress(Codec.ZSTD, large, level=22)) == len(compress(Codec.ZSTD, large, level=19))
    assert len(cramjam.zstd.compress(large, level=22)) < len(compress(Codec.ZSTD, large, level=22))


def test_codecs_that_do_not_exist_are_refused() -> None:
    for codec, magic in ((5, 2), (7, 1), (Codec.ZSTD, 1), (Codec.ZSTD, 0)):
        with pytest.raises(UnsupportedCompressionType):
            compress(codec, b"", magic=magic)
        with pytest.raises(UnsupportedCompressionType):
            decompress(codec, b"", magic=magic)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_is_refused_within_the_limit_of_memory(codec: Codec) -> None:
    bomb = compress(codec, bytes(64 * MIB))
    decompress(codec, compress(codec, b"warm"))

    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLarge):
            decompress(codec, bomb, max_bytes=MIB)
        assert tracemalloc.get_traced_memory()[1] < MIB + MIB // 4
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_in_a_batch_is_refused(codec: Codec) -> None:
    builder = BatchBuilder(2 * MIB, codec=codec)
    builder.append(None, bytes(MIB), 1)
    batch = builder.build()

    for read in (decode_records, scan_records):
        with pytest.raises(MessageTooLarge):
            read(batch, max_decompressed_bytes=MIB)
        read(batch, max_decompressed_bytes=MIB + 100)


def test_the_limit_is_exact() -> None:
    for codec in Codec:
        packed = compress(codec, b"x" * 5000)
        assert len(decompress(codec, packed, max_bytes=5000)) == 5000
        with pytest.raises(DecompressedTooLarge):
            decompress(codec, packed, max_bytes=4999)


LIARS = {
    "gzip trailer": (Codec.GZIP, gzip.compress(bytes(100))[:-4] + b"\xff\xff\xff\xff"),
    "zstd content size": (Codec.ZSTD, b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8 + b"\x01\0\0"),
    "snappy length": (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f\x00a"),
    "xerial block": (Codec.SNAPPY, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1\x7f\xff\xff\xff"),
}


@pytest.mark.parametrize("name", LIARS)
def test_a_size_that_lies_costs_no_memory(name: str) -> None:
    codec, data = LIARS[name]
    tracemalloc.start()
    try:
        with pytest.raises((CorruptRecords, DecompressedTooLarge)):
            decompress(codec, data)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", COMPRESSED)
@given(data=st.binary(max_size=300))
@settings(max_examples=60, deadline=None)
def test_random_bytes_are_a_typed_error_or_data(codec: Codec, data: bytes) -> None:
    for magic in magics(codec):
        with suppress(CorruptRecords, DecompressedTooLarge):
            assert len(decompress(codec, data, max_bytes=MIB, magic=magic)) <= MIB


@pytest.mark.parametrize("codec", COMPRESSED)
def test_flipped_and_cut_data_are_a_typed_error_or_data(codec: Codec) -> None:
    packed = compress(codec, b"some text, some more text, and some text again " * 20)
    for i in range(len(packed)):
        for bad in (packed[:i], packed[:i] + bytes([packed[i] ^ 0x55]) + packed[i + 1 :]):
            with suppress(CorruptRecords, DecompressedTooLarge):
                decompress(codec, bad, max_bytes=MIB)


# --------------------------------------------------------------------------------------------- framing


def test_snappy_is_written_in_xerial_blocks_and_raw_is_read_too() -> None:
    plain = random.Random(5).randbytes(100_000)
    packed = compress(Codec.SNAPPY, plain)

    assert packed[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    size = struct.unpack_from(">i", packed, 16)[0]
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + size])) == plain[:32768]
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(plain))) == plain


def test_lz4_blocks_are_independent_and_the_header_checksum_is_broken_in_magic_0_only() -> None:
    plain = b"abc" * 50_000
    right, broken = compress(Codec.LZ4, plain), compress(Codec.LZ4, plain, magic=0)

    assert right[4] & 0x20, "blocks must be independent"
    assert not right[4] & 0x04, "there must be no content checksum"
    at = 6 + (8 if right[4] & 8 else 0)
    assert right[at] == xxh32(right[4:at]) >> 8 & 0xFF
    assert broken[at] == xxh32(right[:at]) >> 8 & 0xFF
    assert right[:at] + right[at + 1 :] == broken[:at] + broken[at + 1 :]
    assert compress(Codec.LZ4, plain, magic=1) == right
    with pytest.raises(CorruptRecords):
        decompress(Codec.LZ4, broken, magic=1)
    assert decompress(Codec.LZ4, right, magic=0) == plain


def test_gzip_is_what_other_libraries_read() -> None:
    assert gzip.decompress(compress(Codec.GZIP, b"plain")) == b"plain"
    assert decompress(Codec.GZIP, gzip.compress(b"plain")) == b"plain"


def test_zstd_without_a_content_size_is_read() -> None:
    compressor = cramjam.zstd.Compressor(3)
    compressor.compress(b"streamed " * 50_000)

    assert decompress(Codec.ZSTD, bytes(compressor.finish())) == b"streamed " * 50_000


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, MIB])
@pytest.mark.parametrize(
    "options", [{}, {"block_checksum": True}, {"content_checksum": True}, {"store_size": False}]
)
def test_lz4_frames_of_clients_are_what_java_reads(size: int, options: dict[str, bool]) -> None:
    plain = random.Random(size).randbytes(size // 2) * 2
    check_lz4_frame(compress(Codec.LZ4, plain))
    for block_size in (4, 5, 6, 7):
        check_lz4_frame(lz4.frame.compress(plain, block_size=block_size, block_linked=False, **options))
    linked = bytearray(lz4.frame.compress(plain, block_size=4, block_linked=False, **options))
    linked[4] &= ~0x20

    for refused in (linked, linked[:6], b"", compress(Codec.LZ4, plain) * 2):
        with pytest.raises(UnreadableRecords):
            check_lz4_frame(refused)
