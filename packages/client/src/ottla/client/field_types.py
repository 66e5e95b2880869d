"""Types of keys and values: dataclasses, msgspec structs, pydantic models, TypedDicts, as JSON or msgpack.

`bytes` are kept as they are, and `str` is UTF-8. All other types need msgspec or pydantic, which are imported
when a type needs them: pydantic for its models and for types that have some inside, msgspec for the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Union, cast, get_args, get_origin

from ottla.client.config_definition import SettingError
from ottla.client.serialization import (
    check_deserializer,
    from_msgpack,
    from_str,
    imported,
    one_line,
    only_bytes,
    to_msgpack,
    to_str,
)

if TYPE_CHECKING:
    # At run time defaults of type variables need Python 3.13, and only type checkers look at them.
    from typing_extensions import TypeVar

    AnyBytes = bytes | bytearray | memoryview
    K_co = TypeVar("K_co", covariant=True, default=bytes)
    V_co = TypeVar("V_co", covariant=True, default=bytes)
    K_contra = TypeVar("K_contra", contravariant=True, default=AnyBytes | str)
    V_contra = TypeVar("V_contra", contravariant=True, default=Any)
else:
    from typing import TypeVar

    K_co = TypeVar("K_co", covariant=True)
    V_co = TypeVar("V_co", covariant=True)
    K_contra = TypeVar("K_contra", contravariant=True)
    V_contra = TypeVar("V_contra", contravariant=True)

T = TypeVar("T")
Format = Literal["json", "msgpack"]


class FieldType(Generic[T]):
    """A type of keys or values, and its format on the wire. Raises SettingError for a type that has none.

    `Order | None` takes records without a key or value, which are None; `optional` gives it to type checkers.
    """

    def __init__(self, kind: type[T], *, wire_format: Format = "json") -> None:
        self.kind: Any = kind
        self.wire_format = wire_format
        self.without_none, self.takes_none = without_none(kind)
        if wire_format not in ("json", "msgpack"):
            raise SettingError(f"the format of {self} is 'json' or 'msgpack', not {wire_format!r}")
        _ = self._codec  # raises now, not at the first record

    def __str__(self) -> str:
        return getattr(self.without_none, "__name__", None) or str(self.without_none)

    def __repr__(self) -> str:
        return f"FieldType({self.kind!r}, wire_format={self.wire_format!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FieldType):
            return NotImplemented
        return (self.kind, self.wire_format) == (other.kind, other.wire_format)

    def __hash__(self) -> int:
        return hash((str(self.kind), self.wire_format))

    def __reduce__(self) -> tuple[object, ...]:
        return _field_type_of, (self.kind, self.wire_format)

    def read(self, data: bytes | None) -> T:
        """Return the key or value of bytes. Raises ValueError for other bytes, for None unless optional."""
        if data is None:
            if self.takes_none:
                return cast("T", None)
            raise ValueError(f"there is none, and {self} | None would take such records: optional({self})")
        try:
            return cast("T", self._codec.read(data))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"no {self} in {self.form}: {_reason(error)}") from error

    @property
    def serializer(self) -> Callable[[Any], bytes]:
        """The serializer of these keys or values; None is never given to it."""
        return self._codec.write

    @property
    def deserializer(self) -> Callable[[bytes | None], T] | None:
        """The deserializer of these keys or values, which is given None too; bytes need none."""
        return None if self.without_none is bytes else self.read

    @property
    def form(self) -> str:
        """The form on the wire, for messages."""
        if self.without_none in (bytes, str):
            return "bytes" if self.without_none is bytes else "UTF-8"
        return "JSON" if self.wire_format == "json" else "msgpack"

    @cached_property
    def _codec(self) -> _Codec:
        kind = self.without_none
        if kind is bytes:
            return _Codec(only_bytes, bytes)
        if kind is str:
            return _Codec(to_str, from_str)
        uses_pydantic = hasattr(kind, "__pydantic_validator__")
        found = None if uses_pydantic else _msgspec_codec(kind, self.wire_format)
        found = found or _pydantic_codec(kind, self.wire_format)
        if found is not None:
            return found
        instead = "install pydantic" if uses_pydantic else "install msgspec or pydantic, or give a serializer"
        raise SettingError(f"{self} cannot be read from {self.form}: {instead}")


def _field_type_of(kind: Any, wire_format: Format) -> FieldType[Any]:
    return FieldType(kind, wire_format=wire_format)


def optional(kind: type[T] | FieldType[T], *, wire_format: Format = "json") -> FieldType[T | None]:
    """Return the type of keys or values that may be missing: those of records without one are None."""
    given: FieldType[Any] = kind if isinstance(kind, FieldType) else FieldType(kind, wire_format=wire_format)
    return FieldType(given.kind | None, wire_format=given.wire_format)


def field_type(given: Any) -> FieldType[Any] | None:
    """Return the FieldType that a setting gives: a type, a FieldType, or `package.module:name` of one."""
    if given is None or isinstance(given, FieldType):
        return given
    if isinstance(given, str):
        given = imported(given, make=False)
    return given if isinstance(given, FieldType) else FieldType(given)


def check_alone(given: Any, name: str, other: str, also: object) -> FieldType[Any] | None:
    """Return the FieldType of a setting. Raises SettingError if the serializer in its place is set, too."""
    if given is not None and also is not None:
        raise SettingError(f"{name} brings its own {other}: give one of {name} and {other}")
    try:
        return field_type(given)
    except ValueError as error:
        raise SettingError(f"{name}: {error}") from error


def check_deserializers(config: Any) -> None:
    """Check how the frozen configuration of a consumer reads keys and values; make FieldTypes of its types.

    Raises ValueError for a deserializer that is none, SettingError as `check_alone`.
    """
    for name, deserializer in (("key_type", "key_deserializer"), ("value_type", "value_deserializer")):
        given = getattr(config, deserializer)
        check_deserializer(given)
        object.__setattr__(config, name, check_alone(getattr(config, name), name, deserializer, given))


def without_none(kind: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether None was in it. Raises SettingError for None alone."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    others = tuple(member for member in members if member not in (None, type(None)))
    if not others:
        raise SettingError("None is no type of keys or values; name the type that they have")
    return (kind, False) if len(others) == len(members) else (Union[others], True)  # noqa: UP007


class _Codec(NamedTuple):
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def _msgspec_codec(kind: Any, wire_format: Format) -> _Codec | None:
    """Return a codec by msgspec; None if it is not installed, or for a type that it does not know."""
    try:
        msgspec = import_module("msgspec")
        inspect = import_module("msgspec.inspect")
    except ImportError:
        return None
    try:
        if _has_custom_types(inspect, inspect.type_info(kind)):
            return None
        library = getattr(msgspec, wire_format)
        decode, encode = library.Decoder(kind).decode, library.Encoder().encode
    except (TypeError, NameError) as error:
        raise SettingError(
            f"{getattr(kind, '__name__', kind)} has no form in {wire_format}: {error}"
        ) from error
    check = _class_check(kind) or (lambda value: msgspec.convert(value, kind, from_attributes=False))
    return _Codec(_checked(check, encode), decode)


def _has_custom_types(inspect: Any, info: Any) -> bool:
    """Return whether a type, or one inside of it, is a class that msgspec does not know."""
    waiting, seen = [info], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, tuple | list):
            waiting.extend(part)
        elif isinstance(part, inspect.Type | inspect.Field) and id(part) not in seen:
            seen.add(id(part))
            if isinstance(part, inspect.CustomType):
                return True
            waiting.extend(getattr(part, name) for name in part.__struct_fields__)
    return False


def _pydantic_codec(kind: Any, wire_format: Format) -> _Codec | None:
    """Return a codec by pydantic; None if it is not installed."""
    try:
        pydantic = import_module("pydantic")
    except ImportError:
        return None
    try:
        adapter = pydantic.TypeAdapter(kind)
    except pydantic.PydanticSchemaGenerationError as error:
        name, reason = getattr(kind, "__name__", kind), one_line(error).split(" Set ")[0]
        raise SettingError(f"{name} has no form in {wire_format}: {reason}") from error
    check = _class_check(kind) or (lambda value: adapter.validate_python(value, strict=True))
    if wire_format == "json":
        return _Codec(_checked(check, adapter.dump_json), adapter.validate_json)

    def pack(value: Any) -> bytes:
        return to_msgpack(adapter.dump_python(value, mode="json"))

    return _Codec(_checked(check, pack), lambda data: adapter.validate_python(from_msgpack(data)))


def _class_check(kind: Any) -> Callable[[Any], object] | None:
    """Return the check of a class with fields, whose objects type checkers know; None for other types."""
    is_class = isinstance(kind, type) and (
        dataclasses.is_dataclass(kind)
        or hasattr(kind, "__pydantic_validator__")
        or hasattr(kind, "__struct_fields__")
    )
    if not is_class:
        return None

    def check(value: Any) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"{kind.__name__} is wanted, not {type(value).__name__}")

    return check


def _checked(check: Callable[[Any], object], write: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def checked(value: Any) -> bytes:
        try:
            check(value)
        except ValueError as error:
            raise TypeError(_reason(error)) from error
        return write(value)

    return checked


def _reason(error: BaseException) -> str:
    """Return the reason of a failed validation in one line: the first of several, with their number."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return one_line(error)
    found = errors(include_url=False, include_context=False, include_input=False)
    where = ".".join(map(str, found[0]["loc"]))
    more = f" ({len(found)} errors)" if len(found) > 1 else ""
    return f"{found[0]['msg']}{f' - at {where}' if where else ''}{more}"
