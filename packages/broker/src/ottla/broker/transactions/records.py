"""The records of `__transaction_state`, in the layouts that Apache Kafka writes and its tools read.

A record without value is a tombstone: it removes the transactional id. Values are written in version 0, as by
Kafka 3.9. Version 1 adds the facts of transactions version 2 as tagged fields, which Kafka 3.9 skips; it is
written where there are such facts, and from `transaction.version` 1 on always.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Final, NamedTuple

from ottla.broker.coordinators.coordinator_partitions import Headers, KeyValue
from ottla.broker.transactions.events import (
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    UNREADABLE,
    Producer,
    TransactionSnapshot,
    TransactionState,
)
from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.stored_messages import TransactionLogKey, TransactionLogValue, TransactionPartitions
from ottla.protocol.topics import TopicPartition

_KEY_VERSION: Final = 0
_PLAIN: Final = 0
_WITH_TAGS: Final = 1
_STATES: Final = tuple(TransactionState)
_NEVER_WRITTEN: Final = (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)


class TransactionRecord(NamedTuple):
    """The state of a transactional id; None removes the id."""

    transactional_id: str
    snapshot: TransactionSnapshot | None


def encode_record(record: TransactionRecord, level: int = 0) -> KeyValue:
    """Encode a record as the log stores it at a level of `transaction.version`."""
    key = TransactionLogKey(transactional_id=record.transactional_id).to_bytes(_KEY_VERSION)
    return KeyValue(key, None if record.snapshot is None else _value(record.snapshot, level))


def _value(snapshot: TransactionSnapshot, level: int) -> bytes:
    is_empty = snapshot.state is TransactionState.EMPTY
    needs_tags = level > 0 or snapshot.version > 0 or snapshot.next_id != NO_PRODUCER_ID
    tags = {
        "previous_producer_id": snapshot.previous.id,
        "next_producer_id": snapshot.next_id,
        "client_transaction_version": snapshot.version,
    }
    value = TransactionLogValue(
        producer_id=snapshot.producer.id,
        producer_epoch=snapshot.producer.epoch,
        transaction_timeout_ms=snapshot.timeout_ms,
        transaction_status=_STATES.index(snapshot.state),
        transaction_partitions=None if is_empty else _by_topic(snapshot.partitions),
        transaction_last_update_timestamp_ms=snapshot.updated_ms,
        transaction_start_timestamp_ms=snapshot.started_ms,
        **(tags if needs_tags else {}),
    )
    return value.to_bytes(_WITH_TAGS if needs_tags else _PLAIN)


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
        previous=Producer(value.previous_producer_id, _last_epoch_before(value)),
        next_id=value.next_producer_id,
        version=value.client_transaction_version,
    )


def _last_epoch_before(value: TransactionLogValue) -> int:
    """Return the epoch of the previous producer id, -1 where the record does not show it.

    An id is replaced when its epochs are used up, so it had the last one that clients get.
    """
    is_replaced = value.previous_producer_id not in (NO_PRODUCER_ID, value.producer_id)
    return LAST_EPOCH - 1 if is_replaced and not value.producer_epoch else NO_PRODUCER_EPOCH


def _read_state(status: int) -> TransactionState:
    state = _STATES[status] if 0 <= status < len(_STATES) else None
    if state is None or state in _NEVER_WRITTEN:
        raise ValueError(f"a transaction in the log has no status {status}")
    return state


class TransactionRecordCodec:
    """The `RecordCodec` of `__transaction_state`; `level` returns that of `transaction.version`."""

    def __init__(self, level: Callable[[], int] = lambda: 0) -> None:
        self._level = level

    def encode(self, record: TransactionRecord) -> KeyValue:
        """Encode a record as the log stores it."""
        return encode_record(record, self._level())

    @staticmethod
    def decode(key: bytes, value: bytes | None, headers: Headers = ()) -> TransactionRecord:
        """Decode one record; it has no headers."""
        return decode_record(key, value)
