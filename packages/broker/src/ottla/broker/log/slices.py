"""A region of a segment, to be sent from file to socket, and whether that would have to wait for the disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Final

from ottla.broker.log._search import in_memory
from ottla.broker.log.files import File

_CHUNK_BYTES: Final = 256 * 1024


class Slice:
    """Whole batches in a segment's file, which it keeps open even when the segment goes."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: File, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def __repr__(self) -> str:
        return f"Slice({self.file.path.name}, {self.position}, {self.length})"

    @property
    def segment_file(self) -> File:
        """The file it is in."""
        return self.file

    def fileno(self) -> int:
        """The file's descriptor, for sendfile and preadv."""
        return self.file.fileno()

    def read(self) -> bytes:
        """The bytes."""
        return self.file.pread(self.length, self.position)

    def is_hot(self) -> bool:
        """Whether reading it would not wait for the disk, as far as looking at a page here and there tells.

        True also where the system cannot say.
        """
        return in_memory(self.file.fileno(), self.position, self.length)

    def warm(self) -> None:
        """Bring it into memory. Blocks: for a thread."""
        position, end = self.position, self.position + self.length
        descriptor = self.file.fileno()
        os.posix_fadvise(descriptor, position, self.length, os.POSIX_FADV_WILLNEED)
        scratch = bytearray(min(_CHUNK_BYTES, max(1, self.length)))
        while position < end:
            count = os.preadv(descriptor, [scratch], position)
            if not count:
                return
            position += count


async def warm(slices: Iterable[Slice]) -> None:
    """Bring those that are cold into memory, on a thread; returns at once when none is."""
    cold = [one for one in slices if not one.is_hot()]
    if cold:
        await asyncio.to_thread(_warm_all, cold)


def _warm_all(cold: list[Slice]) -> None:
    for one in cold:
        one.warm()
