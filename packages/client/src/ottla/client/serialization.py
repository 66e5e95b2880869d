"""Serializers and deserializers of keys and values.

A serializer is a name ("bytes", "str", "json", "msgpack", "int32", "int64", "float64"), a callable of one
argument, or text of the form `package.module:name` to import one from. None is never passed to it: a record
without a value is a tombstone with any serializer, and a record without a key has no key.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Literal, cast

import msgpack

from ottla.client.errors import ClientError

Serialize = Callable[[Any], "bytes | None"]
Deserialize = Callable[[bytes], Any]
SerializerName = Literal["bytes", "str", "json", "msgpack", "int32", "int64", "float64"]
SerializerSpec = SerializerName | str | Serialize | None
DeserializerSpec = SerializerName | str | Deserialize | None


class SerializationFailed(ClientError):
    """A key or value could not be serialized; `__cause__` says why. The record was not queued."""

    def __init__(self, what: Literal["key", "value"], topic: str, cause: BaseException) -> None:
        super().__init__(f"the {what} of a record for {topic!r} cannot be serialized: {cause}")
        self.what = what
        self.topic = topic
        self.__cause__ = cause


def serializer(spec: SerializerSpec = None, *, is_key: bool = False) -> Serialize:
    """Return the serializer that a setting names.

    Without a setting bytes, bytearray, memoryview and str (as UTF-8) pass; any other *value* becomes msgpack.
    Keys must be bytes or str then, so that every client chooses the same partition for them. Raises
    ValueError for an unknown name.
    """
    if spec is None:
        return plain_key if is_key else plain_or_msgpack
    if callable(spec):
        return spec
    _refuse_no_text("serializer", spec)
    name = JAVA_CLASSES.get(spec, spec)
    if name in _SERIALIZERS:
        return _SERIALIZERS[name]
    return cast("Serialize", imported(spec, _SERIALIZERS))


def passes_bytes(serialize: Serialize) -> bool:
    """Return whether a serializer returns every bytes object as it is: it need not be called for them."""
    return serialize in (plain_key, plain_or_msgpack, only_bytes)


def deserializer(spec: DeserializerSpec = None) -> Deserialize | None:
    """Return the deserializer that a setting names, or None when bytes stay as they are.

    Raises ValueError for an unknown name.
    """
    if spec is None or callable(spec):
        return spec
    _refuse_no_text("deserializer", spec)
    name = JAVA_CLASSES.get(spec, spec)
    if name in _DESERIALIZERS:
        return _DESERIALIZERS[name]
    return cast("Deserialize", imported(spec, _DESERIALIZERS))


def _refuse_no_text(what: str, spec: object) -> None:
    if not isinstance(spec, str):
        raise ValueError(f"a {what} is a callable or a name such as 'json', not {spec!r}")


def imported(spec: str, known: Iterable[str] = (), *, must_be_callable: bool = True) -> Any:
    """Import `package.module:name`; a class is called without arguments.

    Raises ValueError when the import fails or the text has another form; the message lists the `known` names.
    """
    module, colon, name = spec.partition(":")
    if not colon:
        names = f"one of {', '.join(known)}, or " if known else ""
        raise ValueError(f"{spec!r} is not known; give {names}package.module:name of your own")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{spec!r} cannot be imported: {error}") from error
    made = found() if isinstance(found, type) else found
    if must_be_callable and not callable(made):
        raise ValueError(f"{spec!r} is a {type(made).__name__}, which cannot be called")
    return made


def plain_key(key: Any) -> bytes:
    """Pass bytes, encode str, reject other types."""
    return _plain(key, "a key must be bytes or str; give a key_serializer for others")


def plain_or_msgpack(value: Any) -> bytes:
    """Pass bytes, encode str, pack other types as msgpack."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return to_msgpack(value)


def only_bytes(value: Any) -> bytes:
    """Pass bytes, reject other types."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"bytes are wanted, not {type(value).__name__}")


def to_str(value: Any) -> bytes:
    """Encode text as UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"str is wanted, not {type(value).__name__}")
    return value.encode()


def to_json(value: Any) -> bytes:
    """Write JSON without spaces, as UTF-8."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def to_msgpack(value: Any) -> bytes:
    """Write msgpack; aware datetimes become its timestamps."""
    packed: bytes = msgpack.packb(value, datetime=True)
    return packed


def from_str(data: bytes) -> str:
    """Decode UTF-8."""
    return str(data, "utf-8")


def from_msgpack(data: bytes) -> Any:
    """Read msgpack; timestamps become aware datetimes, and keys of maps may have any hashable type."""
    return msgpack.unpackb(data, timestamp=3, strict_map_key=False)


def _plain(value: Any, otherwise: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{otherwise}, not {type(value).__name__}")


def _number(layout: str) -> tuple[Serialize, Deserialize]:
    packer = struct.Struct(layout)

    def unpack(data: bytes) -> Any:
        return packer.unpack(data)[0]

    return packer.pack, unpack


_INT32, _INT64, _FLOAT64 = _number(">i"), _number(">q"), _number(">d")

_SERIALIZERS: dict[str, Serialize] = {
    "bytes": only_bytes,
    "str": to_str,
    "json": to_json,
    "msgpack": to_msgpack,
    "int32": _INT32[0],
    "int64": _INT64[0],
    "float64": _FLOAT64[0],
}

_DESERIALIZERS: dict[str, Deserialize | None] = {
    "bytes": None,
    "str": from_str,
    "json": json.loads,
    "msgpack": from_msgpack,
    "int32": _INT32[1],
    "int64": _INT64[1],
    "float64": _FLOAT64[1],
}

# Class names in properties files of Java programs, those of Kafka 0.7 and 0.8 first.
JAVA_CLASSES = {
    "kafka.serializer.DefaultEncoder": "bytes",
    "kafka.serializer.DefaultDecoder": "bytes",
    "kafka.serializer.StringEncoder": "str",
    "kafka.serializer.StringDecoder": "str",
    **{
        f"org.apache.kafka.common.serialization.{java}{end}": name
        for java, name in {
            "ByteArray": "bytes",
            "ByteBuffer": "bytes",
            "Bytes": "bytes",
            "String": "str",
            "Integer": "int32",
            "Long": "int64",
            "Double": "float64",
        }.items()
        for end in ("Serializer", "Deserializer")
    },
}
