from __future__ import annotations

import datetime
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.errors import ClientError
from ottla.client.serialization import (
    DeserializationContext,
    SerializationContext,
    SerializationFailed,
    check_deserializer,
    check_serializer,
    context_deserializer,
    context_serializer,
    deserializer,
    serializer,
)

VALUES: dict[str, Any] = {
    "bytes": b"\x00\xff",
    "str": "žluť",
    "json": {"a": [1, None, "ů"]},
    "msgpack": {"a": [1, None, b"\x00"]},
    "int32": -7,
    "int64": 1 << 40,
    "float64": 0.5,
}


@pytest.mark.parametrize("name", VALUES)
def test_what_a_named_serializer_writes_its_deserializer_reads(name: str) -> None:
    data = serializer(name)(VALUES[name])
    back = deserializer(name)

    assert isinstance(data, bytes)
    assert (back(data) if back else data) == VALUES[name]


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (b"abc", b"abc"),
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abc"), b"abc"),
        ("ů", "ů".encode()),
        ({"amount": 3}, msgpack.packb({"amount": 3})),
        (7, b"\x07"),
        ([True], b"\x91\xc3"),
    ],
)
def test_without_a_serializer_bytes_and_text_pass_and_the_rest_becomes_msgpack(
    value: object, data: bytes
) -> None:
    assert serializer()(value) == data


@pytest.mark.parametrize("key", [7, {"a": 1}, (1,)])
def test_keys_are_bytes_or_text_unless_a_serializer_is_given(key: object) -> None:
    with pytest.raises(TypeError, match="a key must be bytes or str; give a key_serializer"):
        serializer(is_key=True)(key)

    assert serializer("msgpack", is_key=True)(key) == msgpack.packb(key)


def test_keys_of_text_and_of_bytes_are_the_same() -> None:
    key = serializer(is_key=True)

    assert key("josef") == key(b"josef") == key(bytearray(b"josef")) == b"josef"


def test_msgpack_keeps_times_and_maps_with_any_keys() -> None:
    value = {1: datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)}

    back = deserializer("msgpack")

    assert back is not None
    assert back(serializer("msgpack")(value) or b"") == value


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(TREES)
def test_any_tree_comes_back_from_msgpack(value: object) -> None:
    back = deserializer("msgpack")

    assert back is not None
    assert back(serializer("msgpack")(value) or b"") == value


def test_a_callable_is_taken_as_it_is() -> None:
    def shout(value: Any) -> bytes:
        return str(value).upper().encode()

    assert serializer(shout) is shout
    assert deserializer(shout) is shout


def test_the_place_of_a_callable_is_imported() -> None:
    assert serializer("ottla.client.serialization:to_str") is serializer("str")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("jsn", "'jsn' is not known; give one of bytes, str, json"),
        ("no.such.module:x", "cannot be imported: No module named 'no'"),
        ("json:nothing", "cannot be imported: module 'json' has no attribute"),
        ("string:digits", "is a str, which cannot be called"),
    ],
)
def test_a_serializer_that_is_not_there_is_refused_in_words(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        serializer(spec)
    with pytest.raises(ValueError, match=words):
        deserializer(spec)


def test_names_of_java_classes_are_understood() -> None:
    assert serializer("kafka.serializer.StringEncoder") is serializer("str")
    assert serializer("org.apache.kafka.common.serialization.LongSerializer") is serializer("int64")
    assert deserializer("org.apache.kafka.common.serialization.ByteArrayDeserializer") is None


@pytest.mark.parametrize(("name", "wrong"), [("str", b"x"), ("bytes", "x")])
def test_a_named_serializer_refuses_other_types(name: str, wrong: object) -> None:
    with pytest.raises(TypeError, match="wanted, not"):
        serializer(name)(wrong)


def test_a_failure_says_of_what_and_for_which_topic() -> None:
    error = SerializationFailed("key", "orders", TypeError("no int"))

    assert isinstance(error, ClientError)
    assert str(error) == "the key of a record for 'orders' cannot be serialized: no int"


class Both:
    """Serializes and deserializes in context."""

    def serialize(self, value: str, context: SerializationContext) -> bytes:
        return f"{context.topic} {value}".encode()

    def deserialize(self, data: bytes, context: DeserializationContext) -> str:
        return f"{context.topic} {data.decode()}"


def test_an_object_with_serialize_and_deserialize_is_both_also_by_its_import_path() -> None:
    given = Both()
    path = f"{__name__}:Both"

    assert context_serializer(given) == given.serialize
    assert context_deserializer(given) == given.deserialize
    for spec in (path, given):
        check_serializer(spec)
        check_deserializer(spec)
    write = context_serializer(path)
    assert write is not None
    assert write("x", SerializationContext("t", "value", [])) == b"t x"


def test_a_callable_is_no_serializer_in_context_even_with_such_a_method() -> None:
    class Called(Both):
        def __call__(self, value: str) -> bytes:
            return value.encode()

    given = Called()

    assert context_serializer(given) is None
    assert serializer(given) is given


class Waiting:
    async def serialize(self, value: str, context: SerializationContext) -> bytes:
        return b""


class OfOneArgument:
    def serialize(self, value: str) -> bytes:
        return b""

    def deserialize(self, data: bytes) -> str:
        return ""


@pytest.mark.parametrize(
    ("check", "spec", "words"),
    [
        (check_serializer, Waiting(), "Waiting.serialize must not be async: raise PreparationNeeded to wait"),
        (check_serializer, OfOneArgument(), r"OfOneArgument.serialize must take \(value, context\)"),
        (check_deserializer, OfOneArgument(), r"OfOneArgument.deserialize must take \(data, context\)"),
        (
            check_deserializer,
            Waiting(),
            r"an object with deserialize\(data, context\), or a name",
        ),
        (check_serializer, 7, r"is a callable, an object with serialize\(value, context\), or a name"),
    ],
)
def test_objects_that_cannot_serialize_are_refused_in_words(check: Any, spec: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check(spec)
