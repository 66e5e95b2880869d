"""The producers' state at an offset, as Kafka keeps it beside a segment (`.snapshot`)."""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from ottla.protocol.records import crc32c
from ottla.protocol.storage.errors import CorruptStorage

__all__ = ["ProducerEntry", "decode_producer_snapshot", "encode_producer_snapshot"]

_VERSION = 1
_HEAD = struct.Struct(">hIi")
_CRC_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")


class ProducerEntry(NamedTuple):
    """The last batch of one producer, and the transaction it has open.

    -1 stands for none: of sequence and offset when only markers were written, of the first offset without a
    transaction. `timestamp_ms` is the batch's largest.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    current_transaction_first_offset: int


def encode_producer_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Version 1, a CRC-32C of what follows it, a count, and 46 bytes for each producer."""
    body = [_ENTRY.pack(*entry) for entry in entries]
    data = bytearray(_HEAD.pack(_VERSION, 0, len(body)) + b"".join(body))
    struct.pack_into(">I", data, 2, crc32c(memoryview(data)[_CRC_FROM:]))
    return bytes(data)


def decode_producer_snapshot(data: bytes) -> list[ProducerEntry]:
    """Undo `encode_producer_snapshot`. Raises CorruptStorage for another version, checksum, or length."""
    if len(data) < _HEAD.size:
        raise CorruptStorage(f"{len(data)} bytes are too few for a producer snapshot")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptStorage(f"a producer snapshot of version {version}, {_VERSION} is known", 0)
    if crc != crc32c(memoryview(data)[_CRC_FROM:]):
        raise CorruptStorage("a producer snapshot with a wrong checksum", 2)
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptStorage(f"a producer snapshot of {count} producers in {len(data)} bytes", 6)
    return [ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :])]
