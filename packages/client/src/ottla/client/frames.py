"""Split a stream of bytes into frames: four bytes of length, then that many bytes."""

from __future__ import annotations

import struct
from typing import Final

_LENGTH = struct.Struct(">i")
_USUAL_BYTES = 64 * 1024
_ROUND_TO_BYTES = 256 * 1024
_TLS_ALERT: Final = 0x1503
"""The first two bytes of an alert of TLS: its type, and the major version, which has stayed 3."""


class FrameTooLarge(ValueError):
    """A frame's length is negative or above the maximum; no memory was allocated for it."""

    def __init__(self, length: int, most: int) -> None:
        super().__init__(f"a frame has {length} bytes, at most {most} are allowed")
        self.is_tls_alert = length >> 16 == _TLS_ALERT


class FrameReader:
    """Collects received bytes and returns whole frames, each in memory that stays unchanged while it is used.

    A frame larger than the usual buffer is received directly into the memory that is returned.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._max = max_frame_bytes
        self._usual = bytearray(_USUAL_BYTES)
        self._receive_buffers = ReceiveBuffers()
        self._buffer = self._usual
        self._end = _USUAL_BYTES
        self._filled = 0

    def space(self) -> memoryview:
        """Return the memory to receive into; never empty."""
        return memoryview(self._buffer)[self._filled : self._end]

    def received(self, count: int) -> list[memoryview]:
        """Account for `count` bytes received into `space()`; return the frames that are complete now.

        Raises FrameTooLarge.
        """
        self._filled += count
        if self._buffer is not self._usual:
            return [self._take_large()] if self._filled == self._end else []
        if (only := self._only_frame()) is not None:
            return [only]
        frames: list[memoryview] = []
        start = 0
        while (size := self._size_at(start)) is not None and start + size <= self._filled:
            frames.append(memoryview(bytes(memoryview(self._buffer)[start + _LENGTH.size : start + size])))
            start += size
        if size is not None and size > _USUAL_BYTES:
            self._begin_large(start, size)
        elif start:
            self._begin_usual(start)
        return frames

    def _only_frame(self) -> memoryview | None:
        """Return the frame if exactly one was received, as nearly always; None leaves it to the loop."""
        filled, length = self._filled, self._filled - _LENGTH.size
        if not 0 <= length <= self._max or _LENGTH.unpack_from(self._buffer)[0] != length:
            return None
        self._receive_buffers.rest()
        self._filled = 0
        return memoryview(bytes(memoryview(self._buffer)[_LENGTH.size : filled]))

    def _size_at(self, start: int) -> int | None:
        if self._filled - start < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, start)
        if not 0 <= length <= self._max:
            raise FrameTooLarge(length, self._max)
        return int(length) + _LENGTH.size

    def _take_large(self) -> memoryview:
        frame = memoryview(self._buffer)[_LENGTH.size : self._end].toreadonly()
        self._buffer, self._end, self._filled = self._usual, _USUAL_BYTES, 0
        return frame

    def _begin_large(self, start: int, size: int) -> None:
        """Continue in a buffer that holds the whole frame that begins at `start`."""
        large = self._receive_buffers.take(size)
        rest = self._filled - start
        large[:rest] = memoryview(self._buffer)[start : self._filled]
        self._buffer, self._end, self._filled = large, size, rest

    def _begin_usual(self, start: int) -> None:
        self._receive_buffers.rest()
        rest = self._buffer[start : self._filled]
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)


class ReceiveBuffers:
    """Large buffers, reused once no view of them is left: fresh memory costs as much as copying.

    A few are kept for frames up to `LARGEST_BYTES`, and freed after `PATIENCE` reads without a large frame.
    """

    MOST = 4
    LARGEST_BYTES = 16 * 1024 * 1024
    PATIENCE = 50

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []
        self._rested = 0

    def take(self, size: int) -> bytearray:
        """Return a buffer of at least `size` bytes, with arbitrary content."""
        self._rested = 0
        for buffer in self._buffers:
            if size <= len(buffer) <= 4 * size and _is_free(buffer):
                return buffer
        rounded = -(-size // _ROUND_TO_BYTES) * _ROUND_TO_BYTES
        buffer = bytearray(rounded + 1)
        buffer.pop()  # leaves room for the byte by which `_is_free` grows it
        if rounded <= self.LARGEST_BYTES:
            self._keep(buffer)
        return buffer

    def rest(self) -> None:
        """Count a read without a large frame."""
        self._rested += 1
        if self._rested > self.PATIENCE:
            self._buffers.clear()

    def _keep(self, buffer: bytearray) -> None:
        if len(self._buffers) == self.MOST:
            self._buffers.pop(0)
        self._buffers.append(buffer)


def _is_free(buffer: bytearray) -> bool:
    """Return whether no view of a buffer is left: a buffer with views cannot be resized."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
