"""Preparation of client batches on a thread: conversion of legacy formats, recompression, opening for checks.

The functions are pure and may run on any thread. `convert`, `prepare` and `opened` may take milliseconds and
belong on one (`runtime.threads.RecordThreads`): decompressed records can be a thousand times as large as the
request. They check a batch of any size, block after block. Of one that they have to hold, to write or compact
it, they open at most 32 MiB; beyond that they raise MessageTooLarge.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ottla.broker.config.broker import DEFAULT_LZ4_LEVEL
from ottla.broker.log.append.batch_validation import MAX_OPENED_BYTES, TimestampLimits, check_size
from ottla.broker.log.append.record_checks import check_records, reads_records, takes_long, validated
from ottla.protocol.errors import InvalidRecord
from ottla.protocol.records import (
    Codec,
    DecompressedTooLarge,
    all_magic_2,
    convert_to_v2,
    magic_at,
    read_header,
    recompress,
    split_batches,
)

if TYPE_CHECKING:
    from ottla.broker.config import LogConfig

_CODEC: Final = 0x07
_CODECS: Final = {
    "uncompressed": Codec.NONE,
    "none": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


_MOST_QUICK_BATCHES: Final = 4


class TakesLong(Exception):
    """Compression with the topic's codec and level takes long: it belongs where such work waits in line."""


def quick_bytes(config: LogConfig) -> int:
    """The most bytes of records that the topic's codec compresses at its level within half a second or so."""
    codec, level = target_codec(config), target_level(config) or 0
    if codec is Codec.ZSTD and level >= 10:
        return 256 << 10 if level >= 16 else 2 << 20
    if (codec is Codec.GZIP and level >= 7) or (codec is Codec.LZ4 and level >= 10):
        return 4 << 20
    return MAX_OPENED_BYTES


def target_codec(config: LogConfig) -> Codec | None:
    """The codec a topic stores with; None when it keeps the producer's codec."""
    return _CODECS.get(config.compression_type)


def target_level(config: LogConfig) -> int | None:
    """The level a topic's own codec compresses with; None is the codec's default."""
    match target_codec(config):
        case Codec.GZIP:
            return config.compression_gzip_level
        case Codec.LZ4 if config.compression_lz4_level != DEFAULT_LZ4_LEVEL:
            return config.compression_lz4_level
        case Codec.ZSTD:
            return config.compression_zstd_level
    return None  # Kafka's default of lz4 is its fast algorithm, which other levels are not


def needs_conversion(batches: bytes | bytearray | memoryview) -> bool:
    """Whether any batch is older than v2. Raises CorruptMessage for torn ones."""
    return not all_magic_2(batches)


def convert(
    batches: bytes | bytearray | memoryview,
    now_ms: int,
    config: LogConfig,
    most_bytes: int = MAX_OPENED_BYTES,
) -> bytes:
    """Convert message sets of magic 0 and 1 into one v2 batch, in the topic's codec.

    Messages without a timestamp get -1, as in Kafka, unless the topic stamps with `now_ms`. Raises
    `CorruptMessage`, `InvalidRecord`, and `TakesLong` for more than `most_bytes`.
    """
    if magic_at(batches) == 2:
        raise InvalidRecord("formats are mixed in one set of records")
    if len(batches) > most_bytes and most_bytes < MAX_OPENED_BYTES:
        raise TakesLong
    appended = config.message_timestamp_type == "LogAppendTime"
    with _quick(most_bytes):
        return convert_to_v2(
            batches,
            now_ms if appended else None,
            codec=target_codec(config),
            level=target_level(config),
            max_decompressed_bytes=most_bytes,
        )


def needs_preparation(batches: bytes | bytearray | memoryview, config: LogConfig) -> bool:
    """Whether v2 batches have to be recompressed before they are appended."""
    codec = target_codec(config)
    if codec is None:
        return False
    return any(read_header(batch).attributes & _CODEC != codec for batch in split_batches(batches))


def prepare(
    batches: bytes | bytearray | memoryview, config: LogConfig, most_bytes: int = MAX_OPENED_BYTES
) -> bytes:
    """The same v2 batches, recompressed where they have another codec than the topic.

    Raises `TakesLong` where one unfolds to more than `most_bytes`, or there are more than a few.
    """
    codec = target_codec(config)
    assert codec is not None
    level = target_level(config)
    parts = list(split_batches(batches))
    if len(parts) > _MOST_QUICK_BATCHES and most_bytes < MAX_OPENED_BYTES:
        raise TakesLong
    with _quick(most_bytes):
        return b"".join(_recompressed(batch, codec, level, most_bytes) for batch in parts)


@contextmanager
def _quick(most_bytes: int) -> Iterator[None]:
    try:
        yield
    except DecompressedTooLarge:
        if most_bytes < MAX_OPENED_BYTES:
            raise TakesLong from None
        raise


def may_have_to_be_opened(config: LogConfig) -> bool:
    """Whether a topic's settings may require that batches are decompressed."""
    return config.compact or target_codec(config) is not None


def must_be_opened(batches: bytes | bytearray | memoryview, config: LogConfig) -> bool:
    """Whether v2 batches have to be decompressed before the append. Raises CorruptMessage for torn ones."""
    target = target_codec(config)
    codecs = {read_header(batch).attributes & _CODEC for batch in split_batches(batches)}
    if (config.compact and codecs - {Codec.NONE}) or (target is not None and codecs - {target}):
        return True
    return takes_long(batches, config)


def opened(
    batches: bytes | bytearray | memoryview,
    config: LogConfig,
    now_ms: int,
    most_bytes: int = MAX_OPENED_BYTES,
) -> bytes:
    """Do the checks and changes of v2 batches that need their records, and the change to the topic's codec.

    Raises `CorruptMessage`, `MessageTooLarge` and `InvalidRecord`, and `TakesLong` as `prepare` does.
    """
    headers = validated(batches)
    check_size(headers, config.max_message_bytes)  # as they were sent; the append checks the result
    if reads_records(config):
        batches, _ = check_records(batches, headers, config, TimestampLimits(config), now_ms)
    return prepare(batches, config, most_bytes) if target_codec(config) is not None else bytes(batches)


def _recompressed(batch: memoryview, codec: Codec, level: int | None, most_bytes: int) -> bytes:
    header = read_header(batch)
    if header.is_control or header.attributes & _CODEC == codec:
        return bytes(batch)
    return recompress(batch, codec, level=level, max_decompressed_bytes=most_bytes)
