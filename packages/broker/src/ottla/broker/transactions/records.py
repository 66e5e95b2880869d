"""The records of `__transaction_state`, in the layouts that Kafka 3.9 writes and its tools read.

A record without value is a tombstone: it removes the transactional id. Values are written in version 0, as
Kafka 3.9 does; version 1 is read too.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final, NamedTuple

from ottla.broker.coordinators.coordinator_partitions import Headers, KeyValue
from ottla.broker.transactions.events import UNREADABLE, Producer, TransactionSnapshot, TransactionState
from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.stored_messages import TransactionLogKey, TransactionLogValue, TransactionPartitions
from ottla.protocol.topics import TopicPartition

_KEY_VERSION: Final = 0
_VALUE_VERSION: Final = 0
_STATES: Final = tuple(TransactionState)
_NEVER_WRITTEN: Final = (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)


class TransactionRecord(NamedTuple):
    """The state of a transactional id; None removes the id."""

    transactional_id: str
    snapshot: TransactionSnapshot | None


def encode_record(record: TransactionRecord) -> KeyValue:
    """Encode a record as the log stores it."""
    key = TransactionLogKey(transactional_id=record.transactional_id).to_bytes(_KEY_VERSION)
    return KeyValue(key, None if record.snapshot is None else _value(record.snapshot))


def _value(snapshot: TransactionSnapshot) -> bytes:
    is_empty = snapshot.state is TransactionState.EMPTY
    value = TransactionLogValue(
        producer_id=snapshot.producer.id,
        producer_epoch=snapshot.producer.epoch,
        transaction_timeout_ms=snapshot.timeout_ms,
        transaction_status=_STATES.index(snapshot.state),
        transaction_partitions=None if is_empty else _by_topic(snapshot.partitions),
        transaction_last_update_timestamp_ms=snapshot.updated_ms,
        transaction_start_timestamp_ms=snapshot.started_ms,
    )
    return value.to_bytes(_VALUE_VERSION)


def _by_topic(partitions: frozenset[TopicPartition]) -> list[TransactionPartitions]:
    return [
        TransactionPartitions(topic=topic, partition_ids=[partition.partition for partition in group])
        for topic, group in groupby(sorted(partitions), lambda partition: partition.topic)
    ]


def decode_record(key: bytes, value: bytes | None) -> TransactionRecord:
    """Decode one record; `UNREADABLE` stands for a damaged value. Raises MalformedMessage for a key."""
    transactional_id = TransactionLogKey.from_bytes(key).transactional_id
    if value is None:
        return TransactionRecord(transactional_id, None)
    try:
        return TransactionRecord(transactional_id, _read(value))
    except (MalformedMessage, ValueError):
        return TransactionRecord(transactional_id, UNREADABLE)


def _read(encoded: bytes) -> TransactionSnapshot:
    value = TransactionLogValue.from_bytes(encoded)
    return TransactionSnapshot(
        producer=Producer(value.producer_id, value.producer_epoch),
        timeout_ms=value.transaction_timeout_ms,
        state=_read_state(value.transaction_status),
        partitions=frozenset(
            TopicPartition(topic.topic, number)
            for topic in value.transaction_partitions or ()
            for number in topic.partition_ids
        ),
        started_ms=value.transaction_start_timestamp_ms,
        updated_ms=value.transaction_last_update_timestamp_ms,
    )


def _read_state(status: int) -> TransactionState:
    state = _STATES[status] if 0 <= status < len(_STATES) else None
    if state is None or state in _NEVER_WRITTEN:
        raise ValueError(f"a transaction in the log has no status {status}")
    return state


class TransactionRecordCodec:
    """The `RecordCodec` of `__transaction_state`."""

    encode = staticmethod(encode_record)

    @staticmethod
    def decode(key: bytes, value: bytes | None, headers: Headers = ()) -> TransactionRecord:
        """Decode one record; it has no headers."""
        return decode_record(key, value)
