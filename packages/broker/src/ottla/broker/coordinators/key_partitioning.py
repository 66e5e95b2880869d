"""The partition of a coordinator's topic that keeps a key; its leader is the coordinator of the key."""

from __future__ import annotations

import struct


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode`: signed 32 bits over UTF-16 code units."""
    value = 0
    for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(key: str, partitions: int) -> int:
    """Return which of `partitions` partitions keeps `key`, a group id or a transactional id."""
    value = java_string_hash(key)
    return 0 if value == -(1 << 31) else abs(value) % partitions
