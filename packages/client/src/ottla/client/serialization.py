"""Serializers and deserializers of keys and values.

A serializer is a name ("bytes", "str", "json", "msgpack", "int32", "int64", "float64"), a callable of one
argument, a `Serializer`, which sees the topic and the headers too, or text of the form `package.module:name`
to import one from. None is never passed to it: a record without a value is a tombstone with any serializer,
and a record without a key has no key.

`Serializer` and `Deserializer` do not wait. One that must, for a schema say, raises PreparationNeeded with
the coroutine function to await; the client awaits it and calls again. So a record whose schema is known costs
no await.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import struct
from collections.abc import Awaitable, Callable, Iterable
from importlib import import_module
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast

import msgpack

from ottla.client.errors import ClientError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

RecordField = Literal["key", "value"]
SentHeader = tuple[str, "bytes | str | None"]

# A preparation that never suffices must end; a schema with its references needs one or two.
MOST_PREPARATIONS = 16


class SerializationContext(NamedTuple):
    """The record of a key or value to serialize."""

    topic: str
    field: RecordField
    """Whether it is the record's key or its value."""
    headers: list[SentHeader]
    """The record's headers. The serializer may change the list: it belongs to this record alone."""


class DeserializationContext(NamedTuple):
    """The record of a key or value to deserialize."""

    topic: str
    partition: int
    offset: int
    field: RecordField
    """Whether it is the record's key or its value."""
    headers: tuple[tuple[str, bytes | None], ...]


class Serializer(Protocol[T_contra]):
    """Serializes keys or values of records that it sees. It is not callable: callables see the value."""

    def serialize(self, value: T_contra, context: SerializationContext, /) -> bytes | None:
        """Return the bytes of a key or value; None for a record without. May raise PreparationNeeded."""


class Deserializer(Protocol[T_co]):
    """Deserializes keys or values of records that it sees. It is not callable, like `Serializer`."""

    def deserialize(self, data: bytes, context: DeserializationContext, /) -> T_co:
        """Return the key or value of bytes. May raise PreparationNeeded."""


Serialize = Callable[[Any], "bytes | None"]
Deserialize = Callable[[bytes], Any]
SerializeInContext = Callable[[Any, SerializationContext], "bytes | None"]
DeserializeInContext = Callable[[bytes, DeserializationContext], Any]
SerializerName = Literal["bytes", "str", "json", "msgpack", "int32", "int64", "float64"]
SerializerSpec = SerializerName | str | Serialize | Serializer[Any] | None
DeserializerSpec = SerializerName | str | Deserialize | Deserializer[Any] | None


class PreparationNeeded(Exception):
    """A serializer or deserializer must wait first: the client awaits `prepare()` and calls it again.

    Several tasks may await the preparations of one serializer at the same time. An error of `prepare()` is
    the error of the record; the next record tries again.
    """

    def __init__(self, prepare: Callable[[], Awaitable[object]]) -> None:
        super().__init__("a preparation must be awaited first")
        self.prepare = prepare


class SerializationFailed(ClientError):
    """A key or value could not be serialized; `__cause__` says why. The record was not queued."""

    def __init__(self, what: RecordField, topic: str, cause: BaseException) -> None:
        super().__init__(f"the {what} of a record for {topic!r} cannot be serialized: {one_line(cause)}")
        self.what = what
        self.topic = topic
        self.__cause__ = cause


class SerializerUnprepared(SerializationFailed):
    """A serializer must wait first, for a schema say, and `send_nowait` cannot. `send` can."""

    def __init__(self, what: RecordField, topic: str) -> None:
        super().__init__(what, topic, ValueError("its serializer must wait first; await send once"))


def one_line(cause: BaseException) -> str:
    """Return the text of an error in one line; its name if it has no text, as TimeoutError."""
    return " ".join(str(cause).split()) or type(cause).__name__


class RecordSerializers:
    """The serializers of keys and of values that a producer's settings name."""

    def __init__(self, key: SerializerSpec = None, value: SerializerSpec = None) -> None:
        self._key_in_context = context_serializer(key)
        self._value_in_context = context_serializer(value)
        self._serialize_key = plain_key if self._key_in_context else serializer(key, is_key=True)
        self._serialize_value = plain_or_msgpack if self._value_in_context else serializer(value)
        self.see_context = bool(self._key_in_context or self._value_in_context)
        """Whether one of them sees headers, and may add some."""
        self.pass_bytes_keys = not self._key_in_context and passes_bytes(self._serialize_key)
        self.pass_bytes_values = not self._value_in_context and passes_bytes(self._serialize_value)

    def key(self, topic: str, key: Any) -> bytes | None:
        """Serialize a key without its context. Raises SerializationFailed."""
        try:
            return None if key is None else _bytes(self._serialize_key(key))
        except Exception as error:
            raise SerializationFailed("key", topic, error) from error

    def value(self, topic: str, value: Any) -> bytes | None:
        """Serialize a value without its context. Raises SerializationFailed."""
        try:
            return None if value is None else _bytes(self._serialize_value(value))
        except Exception as error:
            raise SerializationFailed("value", topic, error) from error

    def serialize(
        self, topic: str, key: Any, value: Any, headers: Iterable[SentHeader]
    ) -> tuple[bytes | None, bytes | None, list[SentHeader]]:
        """Return key and value as bytes, and the headers with those that serializers added.

        Raises SerializationFailed, and UnpreparedField when one must wait first.
        """
        own = list(headers)
        if self._key_in_context is None:
            sent_key = self.key(topic, key)
        else:
            sent_key = _in_context(self._key_in_context, key, SerializationContext(topic, "key", own))
        if self._value_in_context is None:
            return sent_key, self.value(topic, value), own
        context = SerializationContext(topic, "value", own)
        return sent_key, _in_context(self._value_in_context, value, context), own


def _in_context(serialize: SerializeInContext, given: Any, context: SerializationContext) -> bytes | None:
    try:
        return None if given is None else _bytes(serialize(given, context))
    except PreparationNeeded as needed:
        raise UnpreparedField(context.field, context.topic, needed) from None
    except Exception as error:
        raise SerializationFailed(context.field, context.topic, error) from error


class UnpreparedField(Exception):
    """The serializer of a record's key or value must wait first; inside of clients."""

    def __init__(self, field: RecordField, topic: str, needed: PreparationNeeded) -> None:
        super().__init__(f"the serializer of a {field} for {topic!r} must wait first")
        self.field = field
        self.topic = topic
        self.needed = needed


async def when_prepared(serialize: Callable[[], T], timeout_s: float | None) -> T:
    """Return what `serialize` does, awaiting the preparations that it needs.

    Raises SerializationFailed, also after `timeout_s` and if a preparation fails.
    """
    unprepared: UnpreparedField | None = None
    try:
        async with asyncio.timeout(timeout_s):
            for _ in range(MOST_PREPARATIONS):
                try:
                    return serialize()
                except UnpreparedField as found:
                    unprepared = found
                await unprepared.needed.prepare()
    except SerializationFailed:
        raise
    except Exception as error:
        if unprepared is None:
            raise
        raise SerializationFailed(unprepared.field, unprepared.topic, error) from error
    assert unprepared is not None
    endless = RuntimeError(f"{MOST_PREPARATIONS} preparations did not suffice")
    raise SerializationFailed(unprepared.field, unprepared.topic, endless)


def context_serializer(spec: SerializerSpec) -> SerializeInContext | None:
    """Return the `serialize` of a Serializer; None for any other setting. Raises ValueError."""
    found = _method(spec, "serialize")
    return cast("SerializeInContext | None", found)


def context_deserializer(spec: DeserializerSpec) -> DeserializeInContext | None:
    """Return the `deserialize` of a Deserializer; None for any other setting. Raises ValueError."""
    found = _method(spec, "deserialize")
    return cast("DeserializeInContext | None", found)


def _method(spec: object, verb: str) -> Callable[..., Any] | None:
    if isinstance(spec, str):
        if ":" not in spec:
            return None
        spec = imported(spec, must_be_callable=False)
    method = None if callable(spec) else getattr(spec, verb, None)
    if not callable(method):
        return None
    _check_method(spec, verb, method)
    return cast("Callable[..., Any]", method)


def _check_method(spec: object, verb: str, method: Callable[..., Any]) -> None:
    given = "value" if verb == "serialize" else "data"
    name = f"{type(spec).__name__}.{verb}"
    if inspect.iscoroutinefunction(method):
        raise ValueError(f"{name} must not be async: raise PreparationNeeded to wait")
    try:
        inspect.signature(method).bind(None, None)
    except TypeError:
        raise ValueError(f"{name} must take ({given}, context)") from None
    except ValueError:  # native code may show no signature
        return


def check_serializer(spec: SerializerSpec, *, is_key: bool = False) -> None:
    """Raise ValueError for a setting that is no serializer."""
    if context_serializer(spec) is None:
        serializer(spec, is_key=is_key)


def check_deserializer(spec: DeserializerSpec) -> None:
    """Raise ValueError for a setting that is no deserializer."""
    if context_deserializer(spec) is None:
        deserializer(spec)


def serializer(spec: SerializerSpec = None, *, is_key: bool = False) -> Serialize:
    """Return the serializer that a setting names.

    Without a setting bytes, bytearray, memoryview and str (as UTF-8) pass; any other *value* becomes msgpack.
    Keys must be bytes or str then, so that every client chooses the same partition for them. Raises
    ValueError for an unknown name, and for a Serializer: `RecordSerializers` calls those.
    """
    if spec is None:
        return plain_key if is_key else plain_or_msgpack
    if callable(spec):
        return spec
    path = _text("serializer", spec)
    name = JAVA_CLASSES.get(path, path)
    if name in _SERIALIZERS:
        return _SERIALIZERS[name]
    return cast("Serialize", imported(path, _SERIALIZERS))


def passes_bytes(serialize: Serialize) -> bool:
    """Return whether a serializer returns every bytes object as it is: it need not be called for them."""
    return serialize in (plain_key, plain_or_msgpack, only_bytes)


def deserializer(spec: DeserializerSpec = None) -> Deserialize | None:
    """Return the deserializer that a setting names, or None when bytes stay as they are.

    Raises ValueError for an unknown name.
    """
    if spec is None or callable(spec):
        return spec
    path = _text("deserializer", spec)
    name = JAVA_CLASSES.get(path, path)
    if name in _DESERIALIZERS:
        return _DESERIALIZERS[name]
    return cast("Deserialize", imported(path, _DESERIALIZERS))


def _text(what: Literal["serializer", "deserializer"], spec: object) -> str:
    if isinstance(spec, str):
        return spec
    method = "serialize(value, context)" if what == "serializer" else "deserialize(data, context)"
    raise ValueError(
        f"a {what} is a callable, an object with {method}, or a name such as 'json', not {spec!r}"
    )


def _bytes(serialized: object) -> bytes | None:
    """Convert what an application's serializer returned: native code takes nothing but bytes."""
    if serialized is None or type(serialized) is bytes:
        return serialized
    if isinstance(serialized, bytes | bytearray | memoryview):
        return bytes(serialized)
    raise TypeError(f"the serializer returned {type(serialized).__name__}, not bytes")


def imported(
    spec: str, known: Iterable[str] = (), *, must_be_callable: bool = True, make: bool = True
) -> Any:
    """Import `package.module:name`; with `make` a class is called without arguments.

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
    if not make:
        return found
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
