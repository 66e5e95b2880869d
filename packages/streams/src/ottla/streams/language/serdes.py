"""Serdes: how keys and values of a type become bytes, and types again. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
import msgspec.inspect

from ottla.client.serialization import deserializer, serializer
from ottla.streams.errors import TopologyError

T = TypeVar("T")


@dataclass(frozen=True)
class Serde(Generic[T]):
    """A serializer and a deserializer of one type. None is never given to them."""

    serialize: Callable[[T], bytes]
    deserialize: Callable[[bytes], T]
    name: str = field(default="", compare=False)
    """How messages name the form, such as "Order from JSON"; by default the deserializer's name."""

    def __str__(self) -> str:
        return self.name or str(getattr(self.deserialize, "__qualname__", self.deserialize))


TypeOrSerde = type[T] | Serde[T]
"""The argument of `key=` and `value=`. bytes are kept, str is UTF-8, every other type is JSON."""


def named_serde(name: str) -> Serde[Any]:
    """Return the serde of a serializer's name: "int64", "msgpack" and the others of producer and consumer."""
    write, read = serializer(name), deserializer(name)

    def serialize(value: Any) -> bytes:
        return write(value) or b""

    return Serde(serialize, read or bytes, name)


def serde_of(kind: TypeOrSerde[T]) -> Serde[T]:
    """Return the serde of a type, or the given one. Raises TopologyError for types without a form in JSON."""
    if isinstance(kind, Serde):
        return kind
    if kind is bytes:
        return _BYTES
    if kind is str:
        return _STR
    try:
        if isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType):
            raise TypeError("it is a class of its own")
        read = msgspec.json.Decoder(kind)
    except TypeError as error:
        shown = getattr(kind, "__name__", repr(kind))
        raise TopologyError(
            f"{shown} has no form in JSON ({error}); give a msgspec.Struct, a dataclass, a builtin or a Serde"
        ) from error
    return Serde(_json.encode, read.decode, f"{getattr(kind, '__name__', repr(kind))} from JSON")


def write_any(value: Any) -> bytes:
    """Serialize a value of unknown type: bytes as they are, str as UTF-8, others as JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return _json.encode(value)


_json = msgspec.json.Encoder()
_BYTES: Serde[Any] = Serde(bytes, bytes, "bytes")
_STR: Serde[Any] = Serde(str.encode, bytes.decode, "UTF-8 text")
