"""Frames in plain Python: the compiled module is tested against it."""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Final

RECEIVE_BUFFER_BYTES: Final = 2 << 20
_SIZE: Final = struct.Struct(">i")
SHORTEST_FRAME: Final = 8


TLS_HANDSHAKE: Final = 0x1603
"""How a TLS connection begins; a frame would be of 369 million bytes."""


class BadFrame(Exception):
    """The size of a frame is impossible: negative, too small or above the limit."""

    def __init__(self, size: int, limit: int) -> None:
        if size >> 16 == TLS_HANDSHAKE:
            super().__init__("the client speaks TLS, which this listener does not: see its security.protocol")
        else:
            super().__init__(f"a frame of {size} bytes is outside {SHORTEST_FRAME}..{limit}")
        self.size = size
        self.limit = limit


class TooLarge(BadFrame):
    """A request without records to append is larger than clients may send."""

    def __init__(self, size: int, limit: int, api_key: int) -> None:
        super().__init__(size, limit)
        self.args = (
            f"a request of {size} bytes with API key {api_key}: client.request.max.bytes is {limit}",
        )
        self.api_key = api_key


class ReceiveBuffer:
    """The one buffer that all connections of an event loop receive into."""

    def __init__(self, size: int = RECEIVE_BUFFER_BYTES) -> None:
        self.memory = bytearray(size)
        self.view = memoryview(self.memory)


class FrameReader:
    """Splits the bytes that one connection receives into frames.

    Between two receives it keeps only incomplete frames and frames that were not taken. A frame is a view
    that is valid until the next `get_buffer` or `park`. A size is checked before memory is allocated for it,
    and memory grows with the bytes received, not with the size announced.
    """

    def __init__(
        self,
        shared: ReceiveBuffer,
        max_frame_bytes: int,
        max_other_bytes: int | None = None,
        record_keys: Collection[int] = (),
    ) -> None:
        """`max_other_bytes` limits requests whose API key is not among `record_keys`."""
        self._record_keys = record_keys
        self._shared = shared
        self._limit = max_frame_bytes
        self._other_limit = max_frame_bytes if max_other_bytes is None else max_other_bytes
        self._shortest = SHORTEST_FRAME
        self._kept = bytearray()
        self._view = memoryview(b"")
        self._position = 0

    def set_limits(self, max_frame_bytes: int, max_other_bytes: int, shortest: int) -> None:
        """Hold the next frames to other limits: those before a login, or behind it."""
        self._limit, self._other_limit, self._shortest = max_frame_bytes, max_other_bytes, shortest

    @property
    def kept_bytes(self) -> int:
        """Bytes held between receives."""
        return len(self._kept)

    def get_buffer(self) -> memoryview:
        """Return memory for the next receive; never empty."""
        return self._shared.view

    def received(self, count: int) -> bool:
        """Take `count` bytes that were received into the memory of the last `get_buffer`.

        False when there is certainly no whole frame yet.
        """
        if self._kept:
            self._view, self._kept = memoryview(self._kept + self._shared.view[:count]), bytearray()
        else:
            self._view = self._shared.view[:count]
        self._position = 0
        return True

    def next_frame(self) -> memoryview | None:
        """Return the next whole frame without its size, or None. Raises `BadFrame`."""
        start, have = self._position, len(self._view) - self._position
        if have < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(self._view, start)
        if size < self._shortest or size > self._limit:
            raise BadFrame(size, self._limit)
        if size > self._other_limit:
            if have < _SIZE.size + 2:
                return None
            api_key = int.from_bytes(self._view[start + _SIZE.size : start + _SIZE.size + 2])
            if api_key not in self._record_keys:
                raise TooLarge(size, self._other_limit, api_key)
        if have - _SIZE.size < size:
            return None
        self._position = start + _SIZE.size + size
        return self._view[start + _SIZE.size : self._position]

    def give_back_frame(self, frame: memoryview) -> None:
        """Put back the frame of the last `next_frame`: it will be the next one again."""
        self._position -= _SIZE.size + len(frame)

    def park(self) -> None:
        """Copy the bytes that were not taken, so that the shared buffer is free for another connection."""
        rest = self._view[self._position :]
        self._kept = bytearray(rest)
        self._view, self._position = memoryview(self._kept), 0
        if not self._kept:
            self._view = memoryview(b"")
