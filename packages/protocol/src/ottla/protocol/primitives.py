"""The smallest pieces of the wire format, and the errors of reading and writing it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

Buffer = bytes | bytearray | memoryview
"""The buffers that messages are read from."""

ZERO_UUID: Final = UUID(int=0)
"""Kafka's "no topic id"."""

ONE_BYTE: Final = tuple(bytes([value]) for value in range(256))
MAX_TAGGED_FIELDS: Final = 128
MAX_STRING_BYTES: Final = 32_767
"""The longest string: of an old length of two bytes, and by Kafka's rule of flexible versions, too."""
_MAX_UVARINT_BYTES: Final = 5
_CACHED_LENGTHS: Final = 256


class MalformedMessage(ValueError):
    """Bytes that cannot be decoded as the expected message.

    `message` names the class, `version` its version, `field` the path of the field that could not be read
    (empty for the message as a whole), `position` the byte where it starts, `reason` the mistake.
    """

    def __init__(self, message: str, version: int, field: str, position: int, reason: str) -> None:
        super().__init__(message, version, field, position, reason)
        self.message = message
        self.version = version
        self.field = field
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        path = f"{self.message}.{self.field}" if self.field else self.message
        return f"{path} (version {self.version}), byte {self.position}: {self.reason}"


class UnsupportedField(ValueError):
    """A field is set that the version to be written lacks, and that must not be left out."""

    def __init__(self, field: str, version: int) -> None:
        super().__init__(field, version)
        self.field = field
        self.version = version

    def __str__(self) -> str:
        return f"version {self.version} cannot carry {self.field}"


class UnencodableValue(ValueError):
    """The value of a field does not fit its wire type: None, a number out of range, a wrong type."""

    def __init__(self, message: str, version: int, field: str, reason: str) -> None:
        super().__init__(message, version, field, reason)
        self.message = message
        self.version = version
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        path = f"{self.message}.{self.field}" if self.field else self.message
        return f"{path} (version {self.version}): {self.reason}"


class UnknownVersion(ValueError):
    """A message has no such version."""

    def __init__(self, message: str, version: int, first: int, last: int) -> None:
        super().__init__(message, version, first, last)
        self.message = message
        self.version = version

    def __str__(self) -> str:
        _, _, first, last = self.args
        return f"{self.message} has versions {first} to {last}, not {self.version}"


class Unreadable(Exception):
    """Raised inside a decoder, which does not know its place; `Message.decode` translates it."""


def encode_uvarint(value: int) -> bytes:
    """Write a non-negative integer in groups of seven bits, the lowest first (KIP-482)."""
    if value < 0x80:
        return ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_uvarint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the integer at `position` and the position after it.

    Raises Unreadable past five bytes, the most a 32-bit value takes, and IndexError at the end of the buffer.
    """
    value = 0
    for shift in range(0, 7 * _MAX_UVARINT_BYTES, 7):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise Unreadable(f"a variable-length integer has more than {_MAX_UVARINT_BYTES} bytes")


def encode_string_length(size: int) -> bytes:
    """Write the length of a string for flexible versions: one more, so that 0 is null.

    Raises OverflowError beyond `MAX_STRING_BYTES`, as Kafka's generated writers refuse it.
    """
    if size > MAX_STRING_BYTES:
        raise OverflowError(_too_long(size))
    return encode_uvarint(size + 1)


def decode_string_length(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the number that `encode_string_length` wrote at `position`, and the position after it.

    Raises Unreadable beyond `MAX_STRING_BYTES`, before anything is made of the string, and what
    `decode_uvarint` raises.
    """
    value, position = decode_uvarint(buffer, position)
    if value > MAX_STRING_BYTES + 1:
        raise Unreadable(_too_long(value - 1))
    return value, position


def _too_long(size: int) -> str:
    return f"a string of {size} bytes; at most {MAX_STRING_BYTES} are allowed"


def check_tag_count(count: int) -> None:
    """Raise Unreadable for more tagged fields in one struct than a version of Kafka will ever send."""
    if count > MAX_TAGGED_FIELDS:
        raise Unreadable(f"a struct announces {count} tagged fields; at most {MAX_TAGGED_FIELDS} are read")


def skip_tagged_fields(buffer: bytes | memoryview, position: int, end: int) -> int:
    """Skip unknown tagged fields (KIP-482): return the position after them."""
    count, position = decode_uvarint(buffer, position)
    check_tag_count(count)
    for _ in range(count):
        _, position = decode_uvarint(buffer, position)
        size, position = decode_uvarint(buffer, position)
        position += size
        if position > end:
            raise Unreadable(f"a tagged field of {size} bytes is longer than the message")
    return position


@lru_cache(maxsize=4096)
def uuid_from(raw: bytes) -> UUID:
    """Return the UUID of 16 bytes. Cached: messages repeat the ids of few topics."""
    return UUID(bytes=raw)


class ArrayPackers(dict[int, Callable[[Sequence[Any]], bytes]]):
    """Functions by length: each writes an array of fixed-width numbers with its count, in one call."""

    def __init__(self, code: str, *, flexible: bool) -> None:
        super().__init__()
        self._code = code
        self._flexible = flexible

    def __missing__(self, count: int) -> Callable[[Sequence[Any]], bytes]:
        head = encode_uvarint(count + 1) if self._flexible else struct.pack(">i", count)
        pack = struct.Struct(f">{len(head)}s{count}{self._code}").pack

        def write(values: Sequence[Any]) -> bytes:
            return pack(head, *values)

        if count < _CACHED_LENGTHS:
            self[count] = write
        return write


class ArrayUnpackers(dict[int, Callable[[Any, int], tuple[Any, ...]]]):
    """Functions by length: each reads so many fixed-width numbers in one call."""

    def __init__(self, code: str) -> None:
        super().__init__()
        self._code = code

    def __missing__(self, count: int) -> Callable[[Any, int], tuple[Any, ...]]:
        read = struct.Struct(f">{count}{self._code}").unpack_from
        if count < _CACHED_LENGTHS:
            self[count] = read
        return read
