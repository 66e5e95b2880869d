import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.transactions.events import (
    LAST_EPOCH,
    UNREADABLE,
    Producer,
    TransactionSnapshot,
    TransactionState,
)
from ottla.broker.transactions.records import TransactionRecord, decode_record, encode_record
from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.stored_messages import TransactionLogValue, TransactionPartitions
from ottla.protocol.topics import TopicPartition

int64 = st.integers(0, 2**63 - 1)
text = st.text(st.characters(codec="utf-8"), max_size=12)
WRITTEN = [
    one
    for one in TransactionState
    if one not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
]
snapshots = st.builds(
    TransactionSnapshot,
    producer=st.builds(Producer, int64, st.integers(0, 2**15 - 1)),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from(WRITTEN[1:]),
    partitions=st.frozensets(st.builds(TopicPartition, text, st.integers(0, 99)), max_size=4),
    started_ms=int64,
    updated_ms=int64,
)
KEY = b"\0\0\0\1t"


@settings(deadline=None)
@given(text, snapshots)
def test_records_are_read_as_they_were_written(transactional_id: str, snapshot: TransactionSnapshot) -> None:
    record = TransactionRecord(transactional_id, snapshot)

    key, value, _ = encode_record(record)
    assert decode_record(key, value) == record


def test_an_open_transaction_has_kafkas_bytes() -> None:
    snapshot = TransactionSnapshot(
        producer=Producer(9, 2),
        timeout_ms=60_000,
        state=TransactionState.ONGOING,
        partitions=frozenset({TopicPartition("u", 1), TopicPartition("t", 7), TopicPartition("t", 3)}),
        started_ms=5,
        updated_ms=6,
    )

    key, value, _ = encode_record(TransactionRecord("t", snapshot))

    assert key == KEY
    assert value == (
        b"\0\0" + (9).to_bytes(8, "big") + b"\0\2" + (60_000).to_bytes(4, "big") + b"\1"
        b"\0\0\0\2" b"\0\1t\0\0\0\2\0\0\0\3\0\0\0\7" b"\0\1u\0\0\0\1\0\0\0\1"
        + (6).to_bytes(8, "big") + (5).to_bytes(8, "big")
    )  # fmt: skip


def test_an_empty_transaction_has_null_for_its_partitions() -> None:
    snapshot = TransactionSnapshot(producer=Producer(9, 0), timeout_ms=1, state=TransactionState.EMPTY)

    _, value, _ = encode_record(TransactionRecord("t", snapshot))

    assert value == (
        b"\0\0" + (9).to_bytes(8, "big") + b"\0\0\0\0\0\1\0" + b"\xff" * 4 + b"\xff" * 8 + b"\xff" * 8
    )


@pytest.mark.parametrize(("number", "state"), list(enumerate(WRITTEN)))
def test_states_have_kafkas_numbers(number: int, state: TransactionState) -> None:
    assert TransactionState.EMPTY.value == "Empty"
    snapshot = TransactionSnapshot(producer=Producer(0, 0), timeout_ms=1, state=state)

    _, value, _ = encode_record(TransactionRecord("t", snapshot))

    assert value is not None
    assert value[16] == number


def test_a_tombstone_removes_the_id() -> None:
    record = TransactionRecord("t", None)

    assert encode_record(record) == (KEY, None, ())
    assert decode_record(KEY, None) == record


def test_version_1_is_read() -> None:
    value = TransactionLogValue(
        producer_id=9,
        producer_epoch=2,
        transaction_timeout_ms=1,
        transaction_status=2,
        transaction_partitions=[TransactionPartitions(topic="t", partition_ids=[3])],
        transaction_last_update_timestamp_ms=6,
        transaction_start_timestamp_ms=5,
    )

    _, snapshot = decode_record(KEY, value.to_bytes(1))

    assert snapshot is not None
    assert (snapshot.state, snapshot.partitions) == (
        TransactionState.PREPARE_COMMIT,
        frozenset({TopicPartition("t", 3)}),
    )


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\0\0\5t", b"\0\1\0\1t"])
def test_a_damaged_key_is_malformed(key: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_record(key, None)


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\0short", b"\0\x63" + b"\0" * 40])
def test_a_damaged_value_is_unreadable(value: bytes) -> None:
    assert decode_record(KEY, value) == TransactionRecord("t", UNREADABLE)


@pytest.mark.parametrize("status", [-1, 6, 7, 8, 127])
def test_a_status_that_is_never_written_is_unreadable(status: int) -> None:
    value = TransactionLogValue(
        producer_id=9,
        producer_epoch=2,
        transaction_timeout_ms=1,
        transaction_status=status,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=6,
        transaction_start_timestamp_ms=5,
    )

    assert decode_record(KEY, value.to_bytes(0)).snapshot is UNREADABLE


# ---- version 2 of transactions

ENDED = TransactionSnapshot(
    producer=Producer(9, LAST_EPOCH),
    timeout_ms=1,
    state=TransactionState.PREPARE_COMMIT,
    partitions=frozenset({TopicPartition("t", 3)}),
    started_ms=5,
    updated_ms=6,
    previous=Producer(9, LAST_EPOCH - 1),
    next_id=17,
    version=2,
)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_facts_of_version_2_are_tagged_fields_at_every_level(level: int) -> None:
    _, value, _ = encode_record(TransactionRecord("t", ENDED), level)
    assert value is not None
    assert value[:2] == b"\0\1"
    stored = TransactionLogValue.from_bytes(value)

    assert (stored.previous_producer_id, stored.next_producer_id) == (9, 17)
    assert stored.client_transaction_version == 2
    read = decode_record(KEY, value).snapshot
    assert read is not None
    assert (read.next_id, read.version, read.previous.id) == (17, 2, 9)


def test_the_layout_without_tags_is_written_for_plain_transactions_at_level_0_only() -> None:
    plain = TransactionSnapshot(producer=Producer(9, 0), timeout_ms=1, state=TransactionState.EMPTY)

    versions = [encode_record(TransactionRecord("t", plain), level).value[:2] for level in range(3)]  # type: ignore[index]

    assert versions == [b"\0\0", b"\0\1", b"\0\1"]


def test_the_last_epoch_of_a_replaced_producer_id_is_known_after_a_load() -> None:
    replaced = TransactionSnapshot(
        producer=Producer(17, 0),
        timeout_ms=1,
        state=TransactionState.COMPLETE_COMMIT,
        previous=Producer(9, LAST_EPOCH - 1),
        version=2,
    )

    key, value, _ = encode_record(TransactionRecord("t", replaced))

    assert decode_record(key, value).snapshot == replaced
