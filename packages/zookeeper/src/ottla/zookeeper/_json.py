"""Write JSON as Kafka does, and read JSON with every field checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

from ottla.zookeeper.errors import MalformedZnode

T = TypeVar("T")
_MISSING = object()


def encode(value: object) -> bytes:
    """Encode without spaces and as UTF-8, keys in the order given."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def parse(path: str, data: bytes) -> object:
    """Parse JSON; raises MalformedZnode."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedZnode(path, f"not JSON: {error}") from error


def integer(value: object) -> int:
    """Read an integer, also from a string of digits as some tools write them."""
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is not an integer")
    if isinstance(value, str) and not (value.isascii() and value.lstrip("-").isdigit()):
        raise ValueError(f"{value!r} is not an integer")
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{value!r} does not fit in 64 bits")
    return number


def integer32(value: object) -> int:
    """Read an integer that brokers send on in 32 bits; 2^31-1 is refused, as an epoch is raised by 1."""
    number = value if type(value) is int else integer(value)
    if not -(2**31) <= number < 2**31 - 1:
        raise ValueError(f"{value!r} or the number after it does not fit in 32 bits")
    return number


def text(value: object) -> str:
    """Read a string."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    return value


def text_or_number(value: object) -> str:
    """Read a string that old versions wrote as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else text(value)


def array(item: Callable[[object], T]) -> Callable[[object], tuple[T, ...]]:
    """Read an array of what `item` reads."""

    def read(value: object) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise ValueError(f"{value!r} is not an array")
        return tuple(item(element) for element in value)

    return read


def by_text(item: Callable[[object], T]) -> Callable[[object], dict[str, T]]:
    """Read an object into a dict of strings to what `item` reads."""

    def read(value: object) -> dict[str, T]:
        if not isinstance(value, dict):
            raise ValueError(f"{value!r} is not an object")
        return {name: item(member) for name, member in value.items()}

    return read


def by_number(item: Callable[[object], T]) -> Callable[[object], dict[int, T]]:
    """Read an object whose keys are 32-bit numbers in strings, ascending in the result."""

    def read(value: object) -> dict[int, T]:
        if not isinstance(value, dict):
            raise ValueError(f"{value!r} is not an object")
        return dict(sorted((integer32(name), item(member)) for name, member in value.items()))

    return read


class Fields:
    """The fields of one JSON object; any error becomes MalformedZnode with the path and the field."""

    def __init__(self, path: str, value: object) -> None:
        if not isinstance(value, Mapping):
            raise MalformedZnode(path, "not a JSON object")
        self._path = path
        self._fields = value

    @classmethod
    def of(cls, path: str, data: bytes) -> Fields:
        """Parse `data` as one JSON object."""
        return cls(path, parse(path, data))

    def required(self, name: str, read: Callable[[object], T]) -> T:
        """Read a required field."""
        value = self._fields.get(name, _MISSING)
        if value is _MISSING:
            raise MalformedZnode(self._path, f"no field {name!r}")
        return self._read(name, value, read)

    def optional(self, name: str, read: Callable[[object], T], default: T) -> T:
        """Read a field that may be absent or null."""
        value = self._fields.get(name)
        return default if value is None else self._read(name, value, read)

    def version(self, *known: int) -> int:
        """Read the field `version`; raises for one that is not `known`."""
        version = self.required("version", integer)
        if known and version not in known:
            raise MalformedZnode(self._path, f"version {version} is not one of {known}")
        return version

    def _read(self, name: str, value: object, read: Callable[[object], T]) -> T:
        try:
            return read(value)
        except MalformedZnode as error:
            raise MalformedZnode(self._path, f"field {name!r}: {error.detail}") from error
        except (ValueError, TypeError) as error:
            raise MalformedZnode(self._path, f"field {name!r}: {error}") from error


def number_text(path: str, data: bytes, read: Callable[[object], int] = integer) -> int:
    """Read a znode that is nothing but a number; raises MalformedZnode."""
    try:
        return read(data.decode("ascii"))
    except ValueError as error:
        raise MalformedZnode(path, str(error)) from error
