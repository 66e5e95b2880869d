"""Frames out of a stream of bytes: four bytes of length, then so many bytes."""

from __future__ import annotations

import struct

_LENGTH = struct.Struct(">i")
_USUAL_BYTES = 64 * 1024


class FrameTooLarge(ValueError):
    """A length that is negative or above the bound; nothing was allocated for it."""


class FrameReader:
    """Gathers received bytes; gives whole frames, each as a buffer of its own that nobody writes to again.

    A frame larger than the usual buffer is received straight into the memory it is handed out in.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._max = max_frame_bytes
        self._buffer = bytearray(_USUAL_BYTES)
        self._filled = 0

    def space(self) -> memoryview:
        """Return where to receive into; never empty."""
        return memoryview(self._buffer)[self._filled :]

    def received(self, count: int) -> list[memoryview]:
        """Take note of `count` bytes in `space()`; return the frames that are whole now.

        Raises FrameTooLarge.
        """
        self._filled += count
        frames: list[memoryview] = []
        start = 0
        while (size := self._size_at(start)) is not None and start + size <= self._filled:
            frames.append(self._take(start, size))
            start += size
        if start or (size is not None and size > len(self._buffer)):
            self._keep(start, size or 0)
        return frames

    def _size_at(self, start: int) -> int | None:
        if self._filled - start < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, start)
        if not 0 <= length <= self._max:
            raise FrameTooLarge(f"a frame of {length} bytes was announced, at most {self._max} are taken")
        return int(length) + _LENGTH.size

    def _take(self, start: int, size: int) -> memoryview:
        if start == 0 and size == len(self._buffer) == self._filled:
            return memoryview(self._buffer)[_LENGTH.size :].toreadonly()  # `_keep` replaces the buffer
        return memoryview(bytes(memoryview(self._buffer)[start + _LENGTH.size : start + size]))

    def _keep(self, start: int, size: int) -> None:
        """Begin anew with what is left from `start` on, in a buffer large enough for the frame there."""
        rest = self._buffer[start : self._filled]
        if len(self._buffer) == _USUAL_BYTES and size <= _USUAL_BYTES and start < _USUAL_BYTES:
            self._buffer[: len(rest)] = rest
        else:
            self._buffer = bytearray(max(size, _USUAL_BYTES))
            self._buffer[: len(rest)] = rest
        self._filled = len(rest)
