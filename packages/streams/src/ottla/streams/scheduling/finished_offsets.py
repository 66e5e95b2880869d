"""The finished offsets above a committed offset, as text for the commit metadata. Pure.

The text is `ottla1.` and base64 of: one byte for the kind, a CRC-32, the body. The body is lengths of runs as
varints (unfinished, finished, unfinished, ... from the committed offset on) or a bitmap (bit 0 of the
first byte is the committed offset), whichever is smaller, deflated if that is smaller still. The CRC covers
topic, partition and committed offset too: metadata that was damaged, that another application wrote, or that
stands beside another offset, means that nothing is known finished.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from ottla.protocol.topics import TopicPartition
from ottla.streams.scheduling._core import encode_bitmap, encode_runs

Ranges = Sequence[tuple[int, int]]
"""Ascending disjoint ranges of offsets: first, and one past the last."""

PREFIX = "ottla1."
RUNS, BITMAP, DEFLATED = 1, 2, 4
_HEAD_BYTES = 5
_MAX_BODY_BYTES = 1 << 20
_DEFLATE_FROM_BYTES = 64
_MAX_CUTS = 4
_VARINT_CONTINUES = bytes(range(0x80, 0x100))


def encode(partition: TopicPartition, offset: int, finished: Ranges, max_bytes: int) -> tuple[str, int]:
    """Return the text, at most `max_bytes` long, and how many of the ranges it names, from the first on.

    A text that is too long is cut near the longest that fits: what would fit without deflating, and a few
    steps on from there, because each step deflates and the event loop waits meanwhile.
    """
    high, text = len(finished), _text(partition, offset, finished)
    size = len(text)
    if size <= max_bytes:
        return text, high
    low = _fits_plain(offset, finished, max_bytes)
    text = _text(partition, offset, finished[:low])
    for _ in range(_MAX_CUTS):
        step = (high - low) * (max_bytes - len(text)) // (size - len(text))  # sizes grow about evenly
        middle = low + step - step // 32
        if middle == low:
            break
        longer = _text(partition, offset, finished[:middle])
        if len(longer) <= max_bytes:
            low, text = middle, longer
        else:
            high, size = middle, len(longer)
    return text, low


def _fits_plain(offset: int, finished: Ranges, max_bytes: int) -> int:
    """Return how many ranges fit for certain, as runs or as a bitmap that are not deflated."""
    body_bytes = max(0, (max_bytes - len(PREFIX)) // 4 * 3 - _HEAD_BYTES)
    lengths = encode_runs(offset, finished)[:body_bytes].translate(None, _VARINT_CONTINUES)
    by_bitmap = bisect_right(finished, offset + 8 * body_bytes, key=lambda known: known[1])
    return max(len(lengths) // 2, by_bitmap)


def decode(partition: TopicPartition, offset: int, text: str) -> list[tuple[int, int]]:
    """Return the ranges that metadata beside a committed offset names; none if it is not such metadata."""
    if not text.startswith(PREFIX):
        return []
    try:
        data = base64.b64decode(text[len(PREFIX) :], validate=True)
    except (binascii.Error, ValueError):
        return []
    if len(data) < _HEAD_BYTES:
        return []
    kind, body = data[0], data[_HEAD_BYTES:]
    if not is_intact(partition, offset, data):
        return []
    if kind & DEFLATED:
        try:
            body = zlib.decompressobj().decompress(body, _MAX_BODY_BYTES)
        except zlib.error:
            return []
    found = _bitmap_ranges(body, offset) if kind & BITMAP else _run_ranges(body, offset)
    return list(found)


def is_intact(partition: TopicPartition, offset: int, data: bytes) -> bool:
    """Return whether the CRC is that of this partition, offset and body."""
    return data[1:_HEAD_BYTES] == _crc(partition, offset, data[0], data[_HEAD_BYTES:])


def worst_bytes(span: int, unfinished: int) -> int:
    """Return how long the text may become, however the records of a span finish that are unfinished now."""
    runs = 2 * (unfinished + 1) * max(1, (span.bit_length() + 6) // 7)
    body = min(runs, (span + 7) // 8)
    return len(PREFIX) + (_HEAD_BYTES + body + 2) // 3 * 4


def _text(partition: TopicPartition, offset: int, finished: Ranges) -> str:
    if not finished:
        return ""
    runs = encode_runs(offset, finished)
    span = finished[-1][1] - offset
    kind, body = (RUNS, runs) if len(runs) <= (span + 7) // 8 else (BITMAP, encode_bitmap(offset, finished))
    if len(body) >= _DEFLATE_FROM_BYTES and len(packed := zlib.compress(body, 6)) < len(body):
        kind, body = kind | DEFLATED, packed
    data = bytes([kind]) + _crc(partition, offset, kind, body) + body
    return PREFIX + base64.b64encode(data).decode("ascii")


def _crc(partition: TopicPartition, offset: int, kind: int, body: bytes) -> bytes:
    about = f"{partition.topic}\0{partition.partition}\0{offset}\0{kind}\0".encode()
    return zlib.crc32(body, zlib.crc32(about)).to_bytes(4, "big")


def _varints(body: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in body:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield value
            value = shift = 0


def _run_ranges(body: bytes, offset: int) -> Iterator[tuple[int, int]]:
    lengths, at = _varints(body), offset
    for unfinished, finished in zip(lengths, lengths, strict=False):
        first = at + unfinished
        at = first + finished
        if finished:
            yield first, at


def _bitmap_ranges(body: bytes, offset: int) -> Iterator[tuple[int, int]]:
    # Text of ones and zeros, the committed offset first: `find` goes from run to run.
    bits = bin(int.from_bytes(body, "little"))[:1:-1]
    first = bits.find("1")
    while first >= 0:
        end = bits.find("0", first)
        end = len(bits) if end < 0 else end
        yield offset + first, offset + end
        first = bits.find("1", end)
