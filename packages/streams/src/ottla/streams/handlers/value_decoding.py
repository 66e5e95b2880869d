"""Decode the values of records as the types that handlers are annotated with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec
from msgspec import inspect as types

from ottla.consumer import ConsumerRecord
from ottla.streams.errors import RecordUndecodable

ValueFormat = Literal["auto", "json", "msgpack"]
Decode = Callable[[ConsumerRecord], Any]

FIRST_MSGPACK_BYTE: Final = b"\x80"
"""JSON is UTF-8 and never begins with this byte or a higher one; maps and arrays of msgpack always do."""


def value_decoder(kind: Any, value_format: ValueFormat = "auto") -> Decode:
    """Return the function that decodes a record's value as `kind`.

    `bytes` is the value as it is, `str` its UTF-8 text; every other type is read from JSON or msgpack and
    checked against the type. With "auto" the first byte decides: below 0x80 it is JSON. Only whole values
    that are one small integer in msgpack need "msgpack" to be said. A record without a value is decoded by
    `T | None` as None, by other types never. The function raises RecordUndecodable.

    Raises TypeError for a type that cannot be decoded; the message completes "annotation T …".
    """
    without_none, allows_none = _without_none(kind)
    decode = _bytes_decoder(without_none, value_format)
    convert = _converter(without_none)
    how = _how(without_none, value_format)

    def value_of(record: ConsumerRecord) -> Any:
        value = record.value
        try:
            if value is None:
                return _no_value(allows_none)
            return decode(value) if isinstance(value, bytes) else convert(value)
        except (ValueError, TypeError, RecursionError) as error:
            raise RecordUndecodable(record.topic_partition, record.offset, error, how) from error

    return value_of


def _how(kind: Any, value_format: ValueFormat) -> str:
    """Return how values are decoded, for messages."""
    if kind in (bytes, str):
        return "as bytes" if kind is bytes else "as UTF-8 text"
    source = {"auto": "JSON or msgpack", "json": "JSON", "msgpack": "msgpack"}[value_format]
    return f"as {getattr(kind, '__name__', None) or repr(kind)} from {source}"


def _no_value(allows_none: bool) -> None:
    if not allows_none:
        raise ValueError("it has no value (a tombstone); annotate T | None to handle such records")


def _without_none(kind: Any) -> tuple[Any, bool]:
    """Return the type without None, and whether None was in it."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    others = tuple(member for member in members if member not in (None, type(None)))
    if not others:
        raise TypeError("is None, which no value is; annotate the type of the values")
    return (kind, False) if len(others) == len(members) else (Union[others], True)  # noqa: UP007


def _bytes_decoder(kind: Any, value_format: ValueFormat) -> Callable[[bytes], Any]:
    if kind is bytes:
        return bytes
    if kind is str:
        return bytes.decode
    _check_decodable(kind)
    if value_format == "json":
        return msgspec.json.Decoder(kind).decode
    from_msgpack = msgspec.msgpack.Decoder(kind).decode
    if value_format == "msgpack":
        return from_msgpack
    from_json = msgspec.json.Decoder(kind).decode

    def from_either(data: bytes) -> Any:
        return from_msgpack(data) if data[:1] >= FIRST_MSGPACK_BYTE else from_json(data)

    return from_either


def _converter(kind: Any) -> Callable[[Any], Any]:
    """Return the check for values that the consumer's own deserializer has decoded already."""

    def convert(value: Any) -> Any:
        return msgspec.convert(value, kind, from_attributes=True)

    return convert


def _check_decodable(kind: Any) -> None:
    for part in _parts(types.type_info(kind)):
        if isinstance(part, types.CustomType):
            raise TypeError(
                f"needs {part.cls.__name__}, which cannot be decoded from JSON or msgpack; annotate a "
                "msgspec.Struct, a dataclass, a TypedDict, a builtin type, or ConsumerRecord"
            )


def _parts(info: types.Type) -> Iterator[types.Type]:
    """Yield a type and all types inside it, each once: types may refer to themselves."""
    waiting: list[Any] = [info]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if isinstance(one, tuple | list):
            waiting.extend(one)
        elif isinstance(one, types.Type | types.Field) and id(one) not in seen:
            seen.add(id(one))
            if isinstance(one, types.Type):
                yield one
            waiting.extend(getattr(one, name) for name in one.__struct_fields__)
