from __future__ import annotations

from ottla.consumer.fetch.decoding import decode
from ottla.protocol.messages.fetch import AbortedTransaction
from ottla.protocol.records import BatchBuilder, ControlType, convert_down, end_transaction_marker
from ottla.protocol.topics import TopicPartition

ORDERS = TopicPartition("orders", 0)


def batch(base_offset: int, *values: bytes, producer_id: int = -1, transactional: bool = False) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.append(b"k", value, 1_000, [("h", None)])
    return builder.build(
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        transactional=transactional,
    )


def test_records_before_the_position_are_left_out() -> None:
    records, following = decode(ORDERS, batch(10, b"a", b"b", b"c"), 11)

    assert [(each.offset, each.value) for each in records] == [(11, b"b"), (12, b"c")]
    assert records[0].headers == (("h", None),)
    assert following == 13


def test_a_batch_cut_off_at_the_end_is_left_for_the_next_fetch() -> None:
    data = batch(0, b"a") + batch(1, b"b")[:-3]

    records, following = decode(ORDERS, data, 0)

    assert [each.value for each in records] == [b"a"]
    assert following == 1


def test_old_formats_are_read_too() -> None:
    for magic in (0, 1):
        records, following = decode(ORDERS, convert_down(batch(5, b"a", b"b"), magic), 6)

        assert [(each.offset, each.value) for each in records] == [(6, b"b")]
        assert following == 7


def test_aborted_transactions_are_left_out_up_to_their_marker() -> None:
    marker = end_transaction_marker(
        ControlType.ABORT,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=0,
        base_offset=3,
    )
    data = (
        batch(0, b"open", producer_id=7, transactional=True)
        + batch(1, b"other", producer_id=8, transactional=True)
        + batch(2, b"plain")
        + bytes(marker)
        + batch(4, b"later", producer_id=7, transactional=True)
    )

    aborted = [AbortedTransaction(producer_id=7, first_offset=0)]

    assert [each.value for each in decode(ORDERS, data, 0, aborted).records] == [b"other", b"plain", b"later"]
    assert [each.value for each in decode(ORDERS, data, 0).records] == [b"open", b"other", b"plain", b"later"]
    assert decode(ORDERS, data, 0).next_offset == 5


def test_an_abort_marker_ends_a_transaction_whose_records_are_behind_the_position() -> None:
    marker = end_transaction_marker(
        ControlType.ABORT,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=0,
        base_offset=3,
    )
    data = bytes(marker) + batch(4, b"committed", producer_id=7, transactional=True)

    # Brokers name every transaction whose marker is in what they give.
    aborted = [AbortedTransaction(producer_id=7, first_offset=0)]

    assert [each.value for each in decode(ORDERS, data, 3, aborted).records] == [b"committed"]


def test_nothing_fetched_moves_nothing() -> None:
    assert decode(ORDERS, b"", 42) == ([], 42)
