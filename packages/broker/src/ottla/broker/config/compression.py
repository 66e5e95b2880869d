"""Codecs and levels that a broker or a topic may compress with (KIP-390)."""

from __future__ import annotations

from typing import Final

from ottla.client.config_definition import Check, between

COMPRESSION_TYPES: Final = ("producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd")
DEFAULT_GZIP_LEVEL: Final = -1
DEFAULT_LZ4_LEVEL: Final = 9
DEFAULT_ZSTD_LEVEL: Final = 3
LZ4_LEVEL: Final[Check] = between(1, 17)
ZSTD_LEVEL: Final[Check] = between(-131_072, 22)


def gzip_level(level: int) -> str | None:
    """Accept 1 to 9, and -1 for the codec's default."""
    return None if level == DEFAULT_GZIP_LEVEL or 1 <= level <= 9 else "must be between 1 and 9, or -1"
