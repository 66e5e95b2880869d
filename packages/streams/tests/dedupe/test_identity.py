from __future__ import annotations

from typing import Any

import pytest

from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord
from ottla.streams.dedupe import (
    Identity,
    IdentityFailed,
    MessageIds,
    by_function,
    by_header,
    by_key,
    by_message_id,
)


def record(key: Any = None, **headers: bytes | None) -> ConsumerRecord:
    listed = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return ConsumerRecord("orders", 3, 17, key=key, value=b"v", headers=listed)


@pytest.mark.parametrize(
    ("identity", "one", "expected"),
    [
        (by_key(), record(b"k"), b"k"),
        (by_key(), record("text"), b"text"),
        (by_key(), record(None), None),
        (by_key(), record(b""), b""),
        (by_header("order-id"), record(order_id=b"7"), b"7"),
        (by_header("order-id"), record(order_id=b""), None),
        (by_header("order-id"), record(order_id=None), None),
        (by_header("order-id"), record(other=b"7"), None),
        (by_message_id(), record(message_id=b"m"), b"m"),
        (by_function(lambda one: one.offset), record(), b"17"),
        (by_function(lambda one: None), record(), None),
    ],
)
def test_an_identity_is_read_off_a_record(
    identity: Identity, one: ConsumerRecord, expected: bytes | None
) -> None:
    assert identity.of(one) == expected


def test_a_long_identity_is_its_digest_and_stays_distinct() -> None:
    long, other = b"x" * 1_000, b"x" * 999 + b"y"

    found = by_key().of(record(long))

    assert found is not None
    assert len(found) == 32
    assert found == by_key().of(record(long)) != by_key().of(record(other))


def test_a_function_that_fails_is_reported_in_one_line_with_the_place() -> None:
    def order_id(one: ConsumerRecord) -> object:
        raise KeyError("id")

    with pytest.raises(IdentityFailed) as raised:
        by_function(order_id).of(record())

    assert str(raised.value) == (
        "orders-3 offset 17: no identity can be read: order_id raised KeyError: 'id'"
    )
    assert not raised.value.retriable


def test_a_function_that_returns_something_else_is_reported() -> None:
    with pytest.raises(IdentityFailed, match="is a dict; it must be bytes, text or an integer"):
        by_function(lambda one: {"id": 1}).of(record())


def test_message_ids_are_unique_and_stay_as_they_are_if_given() -> None:
    numbers = iter(["first", "second"])
    ids = MessageIds(source=lambda: next(numbers))
    record_ = ProducerRecord("orders", b"v", headers=[("a", b"1")])

    stamped = [ids.on_send(record_), ids.on_send(record_)]
    kept = ids.on_send(ProducerRecord("orders", headers={"message-id": b"mine"}))

    assert [one.headers for one in stamped if one is not None] == [
        [("a", b"1"), ("message-id", b"first-0")],
        [("a", b"1"), ("message-id", b"first-1")],
    ]
    assert kept is not None
    assert list(kept.headers) == [("message-id", b"mine")]


def test_headers_that_are_an_iterator_are_not_used_up() -> None:
    kept = MessageIds().on_send(ProducerRecord("orders", headers=iter([("message-id", b"mine")])))

    assert kept is not None
    assert list(kept.headers) == [("message-id", b"mine")]


def test_an_empty_id_is_replaced() -> None:
    stamped = MessageIds(source=lambda: "s").on_send(ProducerRecord("orders", headers={"message-id": b""}))

    assert stamped is not None
    assert list(stamped.headers)[-1] == ("message-id", b"s-0")
