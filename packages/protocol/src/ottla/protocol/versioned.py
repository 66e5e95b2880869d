"""Messages that carry their own version, because they are stored or passed on."""

from __future__ import annotations

import struct
from typing import Final, Self

from ottla.protocol.primitives import Buffer, MalformedMessage
from ottla.protocol.schema import Message

_VERSION: Final = struct.Struct(">h")


class VersionedMessage(Message):
    """A message whose bytes start with its version, as two bytes."""

    def to_bytes(self, version: int) -> bytes:
        """Return the version and the body. Raises what `encode` raises."""
        return _VERSION.pack(version) + self.encode(version)

    @classmethod
    def from_bytes(cls, buffer: Buffer, *, exact: bool = True) -> Self:
        """Read the version and the body it announces. Raises MalformedMessage, for unknown versions too."""
        return cls._read(buffer, version_of(buffer), exact=exact)

    @classmethod
    def _read(cls, buffer: Buffer, version: int, *, exact: bool) -> Self:
        if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
            raise MalformedMessage(cls.__name__, version, "version", 0, "there is no such version")
        return cls.decode(memoryview(buffer)[_VERSION.size :], version, exact=exact)


def version_of(buffer: Buffer) -> int:
    """Return the version a versioned message starts with. Raises MalformedMessage when there is none."""
    if len(buffer) < _VERSION.size:
        raise MalformedMessage("VersionedMessage", -1, "version", 0, "the message ends too early")
    version: int = _VERSION.unpack_from(buffer)[0]
    return version
