"""Schema ids of values: in front of the value, or in a header beside it. Pure.

A value of a registry begins with a zero and the id of its schema in four bytes. Newer serializers write a one
and the GUID of the schema, or the same zero and id, into the header `__key_schema_id` or `__value_schema_id`,
and leave the value as it is. For Protobuf there follows the place of the message in its file.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

KEY_HEADER: Final = "__key_schema_id"
VALUE_HEADER: Final = "__value_schema_id"
_BY_ID, _BY_GUID = 0, 1
_ID_BYTES: Final = 5
_GUID_BYTES: Final = 17
_MOST_INDEXES: Final = 64


class NotFramed(ValueError):
    """The bytes before or beside a value make no sense; the message says why."""


@dataclass(frozen=True, slots=True)
class Framed:
    """A value that names its schema by id or GUID; `place` is that which the header has behind it."""

    schema: int | str
    payload: bytes
    place: bytes | None = None

    def message(self) -> tuple[tuple[int, ...], bytes]:
        """Return the place of the Protobuf message in its file, and the bytes of the message.

        Raises NotFramed.
        """
        if self.place is None:
            return message_place(self.payload)
        return (message_place(self.place)[0] if self.place else (0,)), self.payload


def framed(
    data: bytes | None, of: Literal["key", "value"], headers: Sequence[tuple[str, bytes | None]] = ()
) -> Framed | None:
    """Return a key or a value with the id of its schema; None where it names none."""
    if data is None:
        return None
    wanted = KEY_HEADER if of == "key" else VALUE_HEADER
    header = next((value for name, value in headers if name == wanted), None)
    if header is not None and (found := _of_header(header, data)) is not None:
        return found
    if len(data) < _ID_BYTES or data[0] != _BY_ID:
        return None
    return Framed(int.from_bytes(data[1:_ID_BYTES], "big"), data[_ID_BYTES:])


def _of_header(header: bytes, data: bytes) -> Framed | None:
    if len(header) >= _GUID_BYTES and header[0] == _BY_GUID:
        return Framed(str(uuid.UUID(bytes=header[1:_GUID_BYTES])), data, header[_GUID_BYTES:])
    if len(header) >= _ID_BYTES and header[0] == _BY_ID:
        return Framed(int.from_bytes(header[1:_ID_BYTES], "big"), data, header[_ID_BYTES:])
    return None


def message_place(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the indexes of a message, from the outermost on, and the bytes behind them. Raises NotFramed.

    They are numbers in zigzag encoding behind their count; a count of zero means the first message.
    """
    count, at = _number(data, 0)
    if not 0 <= count <= _MOST_INDEXES:
        raise NotFramed(f"the message is {count} levels deep in its file")
    indexes = []
    for _ in range(count):
        index, at = _number(data, at)
        if index < 0:
            raise NotFramed(f"the message has the index {index} in its file")
        indexes.append(index)
    return tuple(indexes) or (0,), data[at:]


def prefix(schema_id: int) -> bytes:
    """Return that which stands in front of a value: a zero and the id of its schema. Raises OverflowError."""
    return b"\0" + schema_id.to_bytes(4, "big")


def guid_header(guid: str) -> bytes:
    """Return the header beside a value: a one and the GUID of its schema. Raises ValueError."""
    return bytes((_BY_GUID,)) + uuid.UUID(guid).bytes


def place_bytes(place: Sequence[int]) -> bytes:
    """Return the indexes of a Protobuf message as they stand behind an id or a GUID."""
    if list(place) == [0]:
        return b"\0"
    return b"".join(_zigzag(number) for number in (len(place), *place))


def _zigzag(number: int) -> bytes:
    rest, out = number << 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _number(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    for position in range(at, min(at + 5, len(data))):
        found |= (data[position] & 0x7F) << shift
        shift += 7
        if not data[position] & 0x80:
            return (found >> 1) ^ -(found & 1), position + 1
    raise NotFramed("the place of the message in its file is cut off")
