"""Batches for tests, and malformed ones with a right checksum."""

from __future__ import annotations

import struct
from typing import Any

from ottla.protocol.records import BATCH_HEADER_SIZE, BatchBuilder, Codec, crc32c

NOW_MS = 1_700_000_000_000


def a_batch(count: int = 3, codec: Codec = Codec.NONE, **options: Any) -> bytes:
    """A batch of `count` records; `options` are for `BatchBuilder.build`."""
    builder = BatchBuilder(1 << 20, codec=codec)
    for i in range(count):
        builder.append(b"key-%d" % i, b"value-%d" % i, NOW_MS + i, [("h", b"x")] if i == 1 else None)
    return builder.build(**options)


def resealed(batch: bytes | bytearray) -> bytes:
    """The batch with its length and checksum made right again."""
    fixed = bytearray(batch)
    struct.pack_into(">i", fixed, 8, len(fixed) - 12)
    struct.pack_into(">I", fixed, 17, crc32c(bytes(fixed[21:])))
    return bytes(fixed)


def with_body(body: bytes, count: int = 1) -> bytes:
    """A batch that says it has `count` records, with these bytes for records."""
    batch = bytearray(a_batch(1)[:BATCH_HEADER_SIZE] + body)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    return resealed(batch)
