"""Control batches: the markers that end a transaction in each partition it wrote to (KIP-98)."""

import struct
from enum import IntEnum
from typing import NamedTuple

from ottla.protocol.records._codec import BatchBuilder, RecordIterator
from ottla.protocol.records.compression import Buffer
from ottla.protocol.records.errors import CorruptRecords

__all__ = ["ControlType", "EndTransactionMarker", "end_transaction_marker", "read_end_transaction_marker"]

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class ControlType(IntEnum):
    """The second int16 of a control record's key."""

    ABORT = 0
    COMMIT = 1


class EndTransactionMarker(NamedTuple):
    """How a transaction of a producer ended, and the epoch of the coordinator that ended it."""

    type: ControlType
    coordinator_epoch: int


def end_transaction_marker(
    kind: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
) -> bytes:
    """A control batch with one marker."""
    builder = BatchBuilder(max_bytes=128)
    builder.append(_KEY.pack(0, kind), _VALUE.pack(0, coordinator_epoch), timestamp_ms)
    return builder.build(
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_end_transaction_marker(batch: Buffer) -> EndTransactionMarker | None:
    """The marker in a control batch; None for a control record of a type that ends no transaction.

    Also None for a batch that compaction has emptied: all of the transaction is gone. Raises CorruptRecords
    when key or value are too short. Newer versions of either may be longer: what they add is ignored, as
    Kafka does.
    """
    record = next(RecordIterator(batch), None)
    if record is None:
        return None
    if record.key is None or len(record.key) < _KEY.size:
        raise CorruptRecords("a control batch without a control record")
    version, kind = _KEY.unpack_from(record.key)
    if version < 0:
        raise CorruptRecords(f"a control record of version {version}")
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise CorruptRecords("an end transaction marker without a coordinator epoch")
    return EndTransactionMarker(ControlType(kind), int(_VALUE.unpack_from(record.value)[1]))
