"""Records as plain data, for worker processes."""

from __future__ import annotations

from typing import NamedTuple

from ottla.consumer import ConsumerRecord
from ottla.protocol.records import TimestampType


class RecordData(NamedTuple):
    """The parts of a record; it can be pickled."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_type: int
    leader_epoch: int


def data_of(record: ConsumerRecord) -> RecordData:
    """Return the parts of a record."""
    return RecordData(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        record.key,
        record.value,
        record.headers,
        int(record.timestamp_type),
        record.leader_epoch,
    )


def record_of(data: RecordData) -> ConsumerRecord:
    """Return an equal record."""
    return ConsumerRecord(
        data.topic,
        data.partition,
        data.offset,
        data.timestamp_ms,
        data.key,
        data.value,
        data.headers,
        timestamp_type=TimestampType(data.timestamp_type),
        leader_epoch=data.leader_epoch,
    )
