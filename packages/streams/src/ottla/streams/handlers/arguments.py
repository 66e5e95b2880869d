"""The arguments of a user's function by its signature: a record, its decoded value, a batch, the context."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import Parameter
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect as types

from ottla.consumer import ConsumerRecord
from ottla.streams.errors import BatchUndecodable, InvalidHandler, RecordUndecodable
from ottla.streams.handlers.context import Context

Function = Callable[..., Any]
Call = Callable[[Sequence[ConsumerRecord], Context], Any]
"""Calls a user's function for the records of a work."""

_THE_RECORD: Final = (Parameter.empty, Any, object, ConsumerRecord)
_BATCHES: Final = (list, Sequence)
_STARS: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_BY_POSITION: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL)

ValueFormat = Literal["auto", "json", "msgpack"]
Decode = Callable[[ConsumerRecord[Any, Any]], Any]

FIRST_MSGPACK_BYTE: Final = b"\x80"
"""JSON is UTF-8 and never begins with this byte or a higher one; maps and arrays of msgpack always do."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a function for a work."""

    decode: Decode | None
    """Decodes the value of a record; None gives the record itself."""
    is_batch: bool
    """Whether the function takes a list of records or of values."""
    takes: tuple[tuple[str, bool], ...]
    """Its parameters in order: the name, or "" for one given by position, and whether it is the context."""

    @property
    def takes_context(self) -> bool:
        """Whether one of the parameters is the context."""
        return any(is_context for _, is_context in self.takes)

    def call_of(self, function: Function) -> Call:
        """Return the call of `function` with its arguments for a work.

        The call raises RecordUndecodable, or BatchUndecodable, before `function` runs.
        """
        payload = self._payload()
        if self.takes == (("", False),):
            return lambda records, _: function(payload(records))
        if self.takes == (("", False), ("", True)):
            return lambda records, context: function(payload(records), context)
        return lambda records, context: self._call(function, payload, records, context)

    def _payload(self) -> Callable[[Sequence[ConsumerRecord]], Any]:
        decode = self.decode
        if self.is_batch:
            return list if decode is None else lambda records: _decode_all(decode, records)
        return (lambda records: records[0]) if decode is None else (lambda records: decode(records[0]))

    def _call(
        self,
        function: Function,
        payload: Callable[[Sequence[ConsumerRecord]], Any],
        records: Sequence[ConsumerRecord],
        context: Context,
    ) -> Any:
        given = [(name, context if is_context else payload(records)) for name, is_context in self.takes]
        by_name = {name: value for name, value in given if name}
        return function(*(value for name, value in given if not name), **by_name)


def _decode_all(decode: Decode, records: Sequence[ConsumerRecord]) -> list[Any]:
    values: list[Any] = []
    errors: list[RecordUndecodable] = []
    for record in records:
        try:
            values.append(decode(record))
        except RecordUndecodable as error:
            errors.append(error)
    if errors:
        raise BatchUndecodable(errors)
    return values


def arguments_of(function: Function, value_format: ValueFormat = "auto") -> Arguments:
    """Return what a function is given, by its annotations.

    A parameter annotated `Context`, wherever it stands, is given the context. The first other parameter is
    given the record if it has no annotation or `ConsumerRecord`, the record with its key and value decoded if
    it is `ConsumerRecord[K, V]`, a list of a batch if it is a `list[T]`, and otherwise the record's value
    decoded as its type. Raises InvalidHandler for a function that cannot be served so, with one line that
    says why.
    """
    name = handler_name(function)
    if inspect.isgeneratorfunction(unwrapped(function)) or inspect.isasyncgenfunction(unwrapped(function)):
        raise InvalidHandler(f"handler {name} is a generator; return instead of yield")
    parameters, hints = _parameters(function, name), _hints(function, name)
    given = _given(parameters, hints, name)
    payload = next((parameter for parameter, is_context in given if not is_context), None)
    annotation = hints.get(payload.name, Parameter.empty) if payload else Parameter.empty
    decode, is_batch = _decoding(annotation, value_format, name)
    return Arguments(decode, is_batch, _by_position_or_name(parameters, given))


def _given(parameters: list[Parameter], hints: dict[str, Any], name: str) -> list[tuple[Parameter, bool]]:
    """Return the parameters that get the payload and the context, and whether it is the context."""
    given: list[tuple[Parameter, bool]] = []
    for parameter in parameters:
        is_context = _is_context(hints.get(parameter.name))
        if parameter.kind is not Parameter.VAR_KEYWORD and is_context not in (role for _, role in given):
            given.append((parameter, is_context))
        elif parameter.default is Parameter.empty and parameter.kind not in _STARS:
            taken = "context" if is_context else "record or value"
            raise InvalidHandler(
                f"handler {name} takes one {taken}, and its parameter {parameter.name!r} "
                "would be a second; give it a default, or bind it with functools.partial"
            )
    if not given:
        raise InvalidHandler(f"handler {name} takes no parameter; let it take a record: def {name}(record)")
    return given


def _by_position_or_name(
    parameters: list[Parameter], given: list[tuple[Parameter, bool]]
) -> tuple[tuple[str, bool], ...]:
    """Give by position what no parameter without an argument stands before, and the rest by name."""
    with_argument = [parameter for parameter, _ in given]
    without = next((at for at, parameter in enumerate(parameters) if parameter not in with_argument), None)
    by_position = parameters[:without]
    return tuple(
        (
            "" if parameter.kind in _BY_POSITION and parameter in by_position else parameter.name,
            is_context,
        )
        for parameter, is_context in given
    )


def handler_name(function: Function) -> str:
    """Return the name of a function, callable object or partial for messages and logs."""
    one = inspect.unwrap(unwrapped(function))
    return str(getattr(one, "__qualname__", type(one).__qualname__)).removesuffix(".__call__")


def unwrapped(function: Function) -> Function:
    """Return the function or method that a partial or a callable object calls in the end."""
    while isinstance(function, functools.partial):
        function = function.func
    is_plain = inspect.isroutine(function) or inspect.isclass(function)
    return function if is_plain else type(function).__call__


def _parameters(function: Function, name: str) -> list[Parameter]:
    bound = function.keywords if isinstance(function, functools.partial) else {}
    try:
        found = inspect.signature(function).parameters.values()
        return [parameter for parameter in found if parameter.name not in bound]
    except (TypeError, ValueError) as error:
        raise InvalidHandler(f"handler {name} shows no signature ({error}); wrap it in a def") from error


def _hints(function: Function, name: str) -> dict[str, Any]:
    target = unwrapped(function)
    try:
        return get_type_hints(target, localns=_enclosing(target), include_extras=True)
    except NameError as error:
        raise InvalidHandler(
            f"handler {name} has an annotation that names {error.name!r}, which does not exist when it runs; "
            "import or define it at the module's level, not under TYPE_CHECKING or inside a function"
        ) from error
    except TypeError as error:
        raise InvalidHandler(f"handler {name} has an annotation that is no type: {error}") from error


def _enclosing(function: Function) -> dict[str, Any]:
    """Return the variables of enclosing functions that a function uses, as far as they have values yet."""
    found: dict[str, Any] = {}
    if inspect.isfunction(function):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # assigned later
                found[name] = cell.cell_contents
    return found


def _is_context(kind: Any) -> bool:
    return kind is Context or kind == Context | None


def _decoding(kind: Any, value_format: ValueFormat, name: str) -> tuple[Decode | None, bool]:
    """Return the decoder of the payload's annotation, and whether it is a batch."""
    is_batch = kind in _BATCHES or get_origin(kind) in _BATCHES
    if is_batch:
        kind = next(iter(get_args(kind)), Parameter.empty)
    if any(kind is record for record in _THE_RECORD):
        return None, is_batch
    try:
        if get_origin(kind) is ConsumerRecord:
            return _record_decoder(kind, value_format), is_batch
        return value_decoder(kind, value_format), is_batch
    except (TypeError, NameError, ValueError) as error:
        shown = getattr(kind, "__name__", None) or repr(kind)
        raise InvalidHandler(f"handler {name}: the annotation {shown} {error}") from error


def _record_decoder(kind: Any, value_format: ValueFormat) -> Decode | None:
    """Return the function that makes a record with key and value of the types in `ConsumerRecord[K, V]`."""
    key, value = get_args(kind)
    key_of = None if key in (bytes, Any) else value_decoder(key, value_format, "key")
    value_of = None if value in (bytes, Any) else value_decoder(value, value_format)
    if key_of is None and value_of is None:
        return None

    def record_of(record: ConsumerRecord[Any, Any]) -> ConsumerRecord[Any, Any]:
        return ConsumerRecord(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp_ms,
            record.key if key_of is None else key_of(record),
            record.value if value_of is None else value_of(record),
            record.headers,
            timestamp_type=record.timestamp_type,
            leader_epoch=record.leader_epoch,
            serialized_key_size=record.serialized_key_size,
            serialized_value_size=record.serialized_value_size,
        )

    return record_of


def value_decoder(
    kind: Any, value_format: ValueFormat = "auto", field: Literal["key", "value"] = "value"
) -> Decode:
    """Return the function that decodes a record's value, or its key, as `kind`.

    `bytes` is the value as it is, `str` its UTF-8 text; every other type is read from JSON or msgpack and
    checked against the type. With "auto" the first byte decides: below 0x80 it is JSON. Only whole values
    that are one small integer in msgpack need "msgpack" to be said. A record without a value is decoded by
    `T | None` as None, by other types never. The function raises RecordUndecodable.

    Raises TypeError for a type that cannot be decoded; the message completes "annotation T …".
    """
    without_none, allows_none = _without_none(kind)
    is_key = field == "key"
    decode = _bytes_decoder(without_none, value_format)
    convert = _converter(without_none)
    how = _how(without_none, value_format)

    def value_of(record: ConsumerRecord[Any, Any]) -> Any:
        value = record.key if is_key else record.value
        try:
            if value is None:
                return _none(allows_none, field)
            return decode(value) if isinstance(value, bytes) else convert(value)
        except (ValueError, TypeError, RecursionError) as error:
            raise RecordUndecodable(record.topic_partition, record.offset, error, how, field) from error

    return value_of


def _how(kind: Any, value_format: ValueFormat) -> str:
    """Return how values are decoded, for messages."""
    if kind in (bytes, str):
        return "as bytes" if kind is bytes else "as UTF-8 text"
    source = {"auto": "JSON or msgpack", "json": "JSON", "msgpack": "msgpack"}[value_format]
    return f"as {getattr(kind, '__name__', None) or repr(kind)} from {source}"


def _none(allows_none: bool, field: Literal["key", "value"]) -> None:
    if not allows_none:
        what = "value (a tombstone)" if field == "value" else "key"
        raise ValueError(f"it has no {what}; annotate T | None to handle such records")


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
