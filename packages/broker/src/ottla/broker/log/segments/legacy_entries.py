"""Entries of the legacy formats, magic 0 and 1, written by older brokers."""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.records import legacy, magic_at, split_batches, validate_batch


class Span(NamedTuple):
    """The last offset and the largest timestamp of an entry of any magic."""

    last_offset: int
    max_timestamp: int


def spans_of(batches: bytes | bytearray | memoryview) -> list[Span]:
    """Check entries of any magic. Raises `CorruptMessage`."""
    spans = []
    for one in split_batches(batches):
        if magic_at(one) == 2:
            header = validate_batch(one)
            spans.append(Span(header.last_offset, header.max_timestamp))
        else:
            entry = legacy.read_entry(one)
            spans.append(Span(entry.offset, entry.timestamp_ms))
    return spans
