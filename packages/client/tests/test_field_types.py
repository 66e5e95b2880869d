"""Types of keys and values: what they write, read and refuse."""

from __future__ import annotations

import datetime
import json
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import msgpack
import msgspec
import pydantic
import pytest

from ottla.client.config_definition import SettingError
from ottla.client.field_types import FieldType, field_type, optional


@dataclass
class Order:
    drink: str
    price: float
    notes: list[str] = field(default_factory=list)


class Struct(msgspec.Struct):
    drink: str
    at: datetime.datetime


class Model(pydantic.BaseModel):
    drink: str
    price: float


class Guest(TypedDict):
    name: str
    visits: int


class Pair(NamedTuple):
    a: int
    b: str


@dataclass
class Mixed:
    """A dataclass with a pydantic model inside, which msgspec does not know."""

    model: Model


AT = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
VALUES: list[tuple[Any, Any]] = [
    (Order, Order("tea", 2.5, ["hot"])),
    (Struct, Struct("tea", AT)),
    (Model, Model(drink="tea", price=2.5)),
    (Guest, {"name": "franz", "visits": 3}),
    (Pair, Pair(1, "x")),
    (Mixed, Mixed(Model(drink="tea", price=2.5))),
    (list[Order], [Order("tea", 2.5)]),
    (list[Model], [Model(drink="tea", price=2.5)]),
    (dict[str, int], {"a": 1}),
    (int, 7),
    (str, "čaj"),
    (bytes, b"\xff"),
]


@pytest.mark.parametrize("wire_format", ["json", "msgpack"])
@pytest.mark.parametrize(("kind", "value"), VALUES, ids=str)
def test_what_a_type_writes_it_reads(kind: Any, value: Any, wire_format: Any) -> None:
    given: FieldType[Any] = FieldType(kind, wire_format=wire_format)

    data = given.serializer(value)

    assert type(data) is bytes
    assert given.read(data) == value
    if kind not in (str, bytes):
        (json.loads if wire_format == "json" else msgpack.unpackb)(data)


@pytest.mark.parametrize(
    ("kind", "wrong", "words"),
    [
        (Order, {"drink": "tea"}, "Order is wanted, not dict"),
        (Model, Order("tea", 1.0), "Model is wanted, not Order"),
        (Guest, {"name": "franz"}, "missing required field `visits`"),
        (list[Order], [Order("tea", 1.0), 7], r"Expected `object`, got `int` - at `\$\[1\]`"),
        (list[Model], [7], "Input should be a valid dictionary or instance of Model - at 0"),
        (str, b"tea", "str is wanted, not bytes"),
        (bytes, "tea", "bytes are wanted, not str"),
    ],
)
def test_values_of_another_type_are_not_written(kind: Any, wrong: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words) as failed:
        FieldType(kind).serializer(wrong)

    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        (
            Order,
            b'{"drink": "tea", "price": "dear"}',
            r"no Order in JSON: Expected `float`, got `str` - at `\$.price`",
        ),
        (Order, b"{", "no Order in JSON: Input data was truncated"),
        (Model, b'{"drink": 7}', r"no Model in JSON: Input should be a valid string - at drink \(2 errors\)"),
        (str, b"\xff", "no str in UTF-8: 'utf-8' codec can't decode byte 0xff"),
        (Order, None, r"there is none, and Order \| None would take such records: optional\(Order\)"),
    ],
)
def test_bytes_that_are_no_such_value_are_refused_in_one_line(kind: Any, data: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as failed:
        FieldType(kind).read(data)

    assert "\n" not in str(failed.value)


def test_optional_types_read_none() -> None:
    union: Any = Order | None
    packed = optional(FieldType(Order, wire_format="msgpack"))
    for given in (optional(Order), FieldType[Order | None](union), packed):
        assert given.read(None) is None
        assert given.read(given.serializer(Order("tea", 1.0))) == Order("tea", 1.0)
    assert packed.wire_format == "msgpack"


def test_a_type_may_be_named_by_its_import_path() -> None:
    assert field_type(f"{__name__}:Order") == FieldType(Order)
    assert field_type(None) is None
    with pytest.raises(ValueError, match="cannot be imported"):
        field_type("no.such:Order")


class Opaque:
    """A class without fields."""


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Opaque, "Opaque has no form in json: Unable to generate pydantic-core schema"),
        (type(None), "None is no type of keys or values"),
        ("Order", "'Order' is not known"),
    ],
)
def test_types_without_a_form_are_refused_in_one_line(kind: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as failed:
        field_type(kind)

    assert "\n" not in str(failed.value)


def test_a_type_can_be_pickled_and_compared() -> None:
    given = FieldType(Order, wire_format="msgpack")

    assert pickle.loads(pickle.dumps(given)) == given
    assert given != FieldType(Order)
    with pytest.raises(SettingError, match="the format of Order is 'json' or 'msgpack', not 'xml'"):
        FieldType(Order, wire_format="xml")  # type: ignore[arg-type]


BARE = """
import sys
sys.modules["msgspec"] = sys.modules["pydantic"] = None
from dataclasses import dataclass
from ottla.client.field_types import FieldType

@dataclass
class Order:
    drink: str

assert FieldType(str).read(b"tea") == "tea"
try:
    FieldType(Order)
except ValueError as error:
    print(error)
"""


def test_without_msgspec_and_pydantic_an_error_names_both() -> None:
    printed = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=True).stdout

    assert (
        printed.strip() == "Order cannot be read from JSON: install msgspec or pydantic, or give a serializer"
    )
