"""The part of ZooKeeper's wire format (jute) that the coordinator supports.

Big-endian numbers, strings and buffers with a 4-byte length (-1 is null), vectors with a count.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from ottla.zookeeper.errors import Marshalling, Unimplemented
from ottla.zookeeper.session import NULL, Acl, Check, Create, Delete, Operation, SetData, Stat

INT = struct.Struct("!i")
LONG = struct.Struct("!q")
REPLY_HEADER = struct.Struct("!iqi")
REQUEST_HEADER = struct.Struct("!ii")
CONNECT_REQUEST = struct.Struct("!iqiq")
CONNECT_REPLY = struct.Struct("!iiq")
STAT = struct.Struct("!qqqqiiiqiiq")
MULTI_HEADER = struct.Struct("!i?i")
EVENT = struct.Struct("!ii")

WATCH_XID = -1
PING_XID = -2
AUTH_XID = -4
SET_WATCHES_XID = -8
CONNECTED_STATE = 3


class OpCode(IntEnum):
    """The requests that the coordinator supports."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    CLOSE_SESSION = -11


class Reader:
    """Decodes one frame; raises Marshalling when it ends too early."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._position = 0

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """Read a fixed layout."""
        try:
            values = layout.unpack_from(self._frame, self._position)
        except struct.error as error:
            raise Marshalling("", "the request ends too early") from error
        self._position += layout.size
        return values

    def integer(self) -> int:
        """Read 4 bytes."""
        return self.unpack(INT)[0]

    def long(self) -> int:
        """Read 8 bytes."""
        return self.unpack(LONG)[0]

    def flag(self) -> bool:
        """Read one byte; a frame that ends here means False, as from clients before 3.4."""
        if self._position >= len(self._frame):
            return False
        self._position += 1
        return self._frame[self._position - 1] != 0

    def buffer(self) -> bytes:
        """Read bytes; null becomes empty."""
        length = self.integer()
        if length < 0:
            return b""
        end = self._position + length
        if end > len(self._frame):
            raise Marshalling("", "a length passes the end of the request")
        value = self._frame[self._position : end]
        self._position = end
        return value

    def data(self) -> bytes:
        """Read the data of a znode; null becomes `NULL`."""
        (length,) = self.unpack(INT)
        if length < 0:
            return NULL
        self._position -= INT.size
        return self.buffer()

    def text(self) -> str:
        """Read a string."""
        try:
            return self.buffer().decode()
        except UnicodeDecodeError as error:
            raise Marshalling("", "not UTF-8") from error

    def count(self) -> int:
        """Read the number of items that follow; each has at least 4 bytes."""
        count = self.integer()
        if count > (len(self._frame) - self._position) // 4:
            raise Marshalling("", "a count passes the end of the request")
        return max(count, 0)

    def texts(self) -> list[str]:
        """Read a vector of strings."""
        return [self.text() for _ in range(self.count())]

    def acl(self) -> tuple[Acl, ...]:
        """Read an ACL."""
        return tuple(Acl(self.integer(), self.text(), self.text()) for _ in range(self.count()))


def buffer(value: bytes) -> bytes:
    """Write bytes; `NULL` as null."""
    return INT.pack(-1) if value is NULL else INT.pack(len(value)) + value


def text(value: str) -> bytes:
    """Write a string."""
    return buffer(value.encode())


def texts(values: Iterable[str]) -> bytes:
    """Write a vector of strings."""
    encoded = [value.encode() for value in values]  # thousands of names: no call of ours for each
    pack = INT.pack
    return pack(len(encoded)) + b"".join([pack(len(value)) + value for value in encoded])


def acl(entries: tuple[Acl, ...]) -> bytes:
    """Write an ACL."""
    written = [INT.pack(entry.permissions) + text(entry.scheme) + text(entry.identity) for entry in entries]
    return INT.pack(len(written)) + b"".join(written)


def stat(value: Stat) -> bytes:
    """Write a stat."""
    return STAT.pack(*value)


def frame(body: bytes) -> bytes:
    """Prefix a frame with its length."""
    return INT.pack(len(body)) + body


def reply(xid: int, zxid: int, error: int, body: bytes = b"") -> bytes:
    """Write a framed response."""
    return frame(REPLY_HEADER.pack(xid, zxid, error) + body)


def event(event_type: int, path: str) -> bytes:
    """Write a framed watch event."""
    return reply(WATCH_XID, -1, 0, EVENT.pack(event_type, CONNECTED_STATE) + text(path))


# -- operations


class WireOperation(NamedTuple):
    """A write and its request code, which decides the form of the response."""

    code: OpCode
    operation: Operation


def read_operation(code: int, reader: Reader) -> WireOperation:
    """Read one write; raises Unimplemented for unsupported operations."""
    match code:
        case OpCode.CREATE | OpCode.CREATE2:
            path, data, entries, flags = reader.text(), reader.data(), reader.acl(), reader.integer()
            if flags not in (0, 1, 2, 3):
                raise Unimplemented(path, "containers and TTL")
            return WireOperation(OpCode(code), Create(path, data, bool(flags & 1), bool(flags & 2), entries))
        case OpCode.DELETE:
            return WireOperation(OpCode.DELETE, Delete(reader.text(), reader.integer()))
        case OpCode.SET_DATA:
            return WireOperation(OpCode.SET_DATA, SetData(reader.text(), reader.data(), reader.integer()))
        case OpCode.CHECK:
            return WireOperation(OpCode.CHECK, Check(reader.text(), reader.integer()))
    raise Unimplemented("", f"operation {code}")


def read_multi(reader: Reader) -> list[WireOperation]:
    """Read the writes of a multi."""
    operations: list[WireOperation] = []
    while True:
        code, done, _ = reader.unpack(MULTI_HEADER)
        if done:
            return operations
        operations.append(read_operation(code, reader))


def operation_answer(code: OpCode, path: str, value: Stat | None) -> bytes:
    """Write the response of one write."""
    if code is OpCode.CREATE:
        return text(path)
    if code is OpCode.CREATE2:
        assert value is not None
        return text(path) + stat(value)
    if code is OpCode.SET_DATA:
        assert value is not None
        return stat(value)
    return b""


def multi_answer(results: Iterable[tuple[OpCode, bytes]]) -> bytes:
    """Write the response of a successful multi."""
    written = b"".join(MULTI_HEADER.pack(code, False, 0) + body for code, body in results)
    return written + MULTI_HEADER.pack(-1, True, -1)


def multi_failure(count: int, failed: int, error: int, untried: int) -> bytes:
    """Write the response of a multi that failed at operation `failed`: 0 before it, `untried` after it."""
    codes = [0 if index < failed else error if index == failed else untried for index in range(count)]
    written = b"".join(MULTI_HEADER.pack(-1, False, code) + INT.pack(code) for code in codes)
    return written + MULTI_HEADER.pack(-1, True, -1)
