"""The annotations of a function decide its arguments, before any record."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import msgpack
import msgspec
import pytest

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import BatchUndecodable, InvalidHandler, RecordUndecodable
from ottla.streams.handlers.arguments import arguments_of
from ottla.streams.handlers.context import Context

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers


class Order(msgspec.Struct):
    id: int
    note: str | None = None


@dataclass
class Payment:
    amount: float


class Address(TypedDict):
    city: str


class Unknown:
    pass


ORDER = b'{"id": 7}'


def record(value: bytes | None, offset: int = 5) -> ConsumerRecord:
    return ConsumerRecord("orders", 2, offset, 1, b"k", value)


def given(function: Callable[..., Any], *values: bytes | None) -> Any:
    """Return the result of a function for records with these values."""
    records = [record(value, offset) for offset, value in enumerate(values)]
    return arguments_of(function).call_of(function)(records, Context(records, 1, None))


def test_a_function_without_annotation_gets_the_record() -> None:
    assert given(lambda it: it.value, b"x") == b"x"


def test_a_function_gets_the_record_by_its_type() -> None:
    def handle(it: ConsumerRecord) -> object:
        return it.offset, it.value

    assert given(handle, b"x") == (0, b"x")


def test_a_value_is_decoded_as_the_annotated_type_from_json_and_from_msgpack() -> None:
    def order(it: Order) -> object:
        return it

    def payment(it: Payment) -> object:
        return it

    def address(it: Address) -> object:
        return it

    assert given(order, ORDER) == given(order, msgpack.packb({"id": 7})) == Order(7)
    assert given(payment, b' {"amount": 1.5}') == Payment(1.5)
    assert given(address, msgpack.packb({"city": "Brno"})) == {"city": "Brno"}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (bytes, b"\xff", b"\xff"),
        (str, "ž".encode(), "ž"),
        (int, b"12", 12),
        (dict, b'{"a": [1]}', {"a": [1]}),
        (dict[str, int], msgpack.packb({"a": 1}), {"a": 1}),
        (tuple[int, ...], b"[1,2]", (1, 2)),
        (str | None, None, None),
        (Order | None, ORDER, Order(7)),
    ],
)
def test_builtin_types_are_decoded(kind: Any, value: bytes | None, expected: object) -> None:
    def handle(it: Any) -> object:
        return it

    handle.__annotations__["it"] = kind
    assert given(handle, value) == expected


def test_the_context_is_given_wherever_it_is_annotated() -> None:
    def first(context: Context, it: Order) -> object:
        return context.partition, it.id

    def last(it: Order, *, context: Context) -> object:
        return context.partition, it.id

    def alone(context: Context) -> object:
        return context.partition, json.loads(context.record.value)["id"]

    def second(it: Order, limit: int = 3, context: Context | None = None) -> object:
        assert limit == 3
        assert context is not None
        return context.partition, it.id

    for each in (first, last, alone, second):
        assert given(each, ORDER) == (TopicPartition("orders", 2), 7)


def test_a_list_is_a_batch_of_records_or_of_values() -> None:
    def values(orders: list[Order]) -> object:
        return [each.id for each in orders]

    def records(them: Sequence[ConsumerRecord]) -> object:
        return [each.offset for each in them]

    def bare(them: list) -> object:  # type: ignore[type-arg]
        return [each.offset for each in them]

    assert given(values, b'{"id": 1}', b'{"id": 2}') == [1, 2]
    assert given(records, b"", b"") == given(bare, b"", b"") == [0, 1]
    assert arguments_of(values).is_batch


def test_callable_objects_partials_and_bound_methods_are_served() -> None:
    class Charging:
        def __call__(self, it: Order) -> object:
            return it.id

        def charge(self, it: Order) -> object:
            return it.id

    def charge(limit: int, it: Order) -> object:
        return it.id * limit

    assert given(Charging(), ORDER) == given(Charging().charge, ORDER) == 7
    assert (
        given(functools.partial(charge, 2), ORDER) == given(functools.partial(charge, limit=2), ORDER) == 14
    )


def test_a_value_that_is_no_such_type_says_which_record_and_why() -> None:
    def handle(it: Order) -> object:
        return it

    with pytest.raises(
        RecordUndecodable, match=r"topic orders, partition 2, offset 0.*`int`, got `str`"
    ) as it:
        given(handle, b'{"id": "seven"}')

    assert (it.value.partition, it.value.offset) == (TopicPartition("orders", 2), 0)
    assert isinstance(it.value.cause, msgspec.ValidationError)


@pytest.mark.parametrize("value", [b"", b"{", b"\xc1", b"\xff\xff", b"[" * 100_000, b"null", None])
def test_what_is_no_json_and_no_msgpack_is_undecodable(value: bytes | None) -> None:
    def handle(it: Order) -> object:
        return it

    with pytest.raises(RecordUndecodable):
        given(handle, value)


def test_a_tombstone_for_a_handler_of_values_says_what_to_annotate() -> None:
    def handle(it: str) -> object:
        return it

    with pytest.raises(RecordUndecodable, match=r"annotate T \| None"):
        given(handle, None)


def test_a_batch_names_all_its_records_that_cannot_be_decoded() -> None:
    def handle(orders: list[Order]) -> None:
        raise AssertionError("called")

    with pytest.raises(BatchUndecodable) as raised:
        given(handle, b"{", ORDER, b"x")

    assert [each.offset for each in raised.value.errors] == [0, 2]


def test_an_annotation_that_cannot_be_served_is_one_line_at_registration() -> None:
    def custom(it: Unknown) -> None: ...
    def inside(it: list[dict[str, Unknown]]) -> None: ...
    def nothing() -> None: ...
    def two(it: Order, other: Order) -> None: ...
    def late(it: OnlyForCheckers) -> None: ...
    def none(it: None) -> None: ...
    def generating(it: Order) -> Any:
        yield it

    def ambiguous(it: Order | Payment) -> None: ...

    expected: dict[Callable[..., Any], str] = {
        custom: r"handler .*custom: the annotation Unknown needs Unknown, which cannot be decoded.*Struct",
        inside: "needs Unknown, which cannot be decoded",
        nothing: "takes no parameter",
        two: "'other' would be a second",
        late: "names 'OnlyForCheckers', which does not exist when it runs.*TYPE_CHECKING",
        none: "None, which no value is",
        generating: "is a generator",
        ambiguous: "more than one",
    }
    for function, words in expected.items():
        with pytest.raises(InvalidHandler, match=words) as raised:
            arguments_of(function)
        assert "\n" not in str(raised.value)


def test_a_type_that_refers_to_itself_is_served() -> None:
    def handle(it: Node) -> object:
        return it.next.next if it.next else None

    assert given(handle, b'{"next": {"next": null}}') is None


def test_a_function_may_use_variables_that_are_assigned_later() -> None:
    def handle(it: Order) -> object:
        return it.id + later

    arguments = arguments_of(handle)
    later = 1
    one = [record(ORDER)]
    assert arguments.call_of(handle)(one, Context(one, 1, None)) == 8


class Node(msgspec.Struct):
    next: Node | None = None


def test_a_setting_says_the_format_of_values_that_both_could_be() -> None:
    def handle(it: int) -> object:
        return it

    call = arguments_of(handle, "msgpack").call_of(handle)
    only = [record(msgpack.packb(49))]

    assert call(only, Context(only, 1, None)) == 49
    assert given(handle, b"1") == 1
