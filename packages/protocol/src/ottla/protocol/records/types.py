"""The small vocabulary shared by every record format."""

from enum import IntEnum
from typing import TypeAlias

__all__ = ["NO_TIMESTAMP", "Buffer", "Codec", "TimestampType"]

Buffer: TypeAlias = bytes | bytearray | memoryview

NO_TIMESTAMP = -1
"""The timestamp of a record that has none, as all records of magic 0."""


class Codec(IntEnum):
    """Bits 0-2 of the attributes. ZSTD exists in magic 2 only (KIP-110)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Bit 3 of the attributes, from magic 1 on (KIP-32)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1
