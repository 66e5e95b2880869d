"""The lines that `ottla produce` reads, on a thread that Ctrl-C need not wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO, Final, NamedTuple, Self

CHUNK_BYTES: Final = 64 * 1024
_AHEAD: Final = 2


class Lines(NamedTuple):
    """Lines of one file that were read together, without line ends."""

    file: str
    first_number: int
    lines: list[bytes]


class Input:
    """Lines of files, read ahead on a thread of its own: standard input may be slow, or a terminal.

    The thread is a daemon, and reads without Python's buffer: a read without an end does not keep the
    program from ending.
    """

    def __init__(self, files: Sequence[IO[bytes]], longest: int) -> None:
        self._chunks = chunks_of(files, longest)
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Lines | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(_AHEAD)
        self._left = False

    async def __aenter__(self) -> Self:
        threading.Thread(target=self._read, name="ottla-produce-input", daemon=True).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        self._room.release()

    async def next(self) -> Lines | None:
        """Return the next lines, as soon as there are some; None at the end. Raises the errors of reading."""
        found = await self._queue.get()
        self._room.release()
        if isinstance(found, Exception):
            raise found
        return found

    def _read(self) -> None:
        end: Exception | None = None
        try:
            for chunk in self._chunks:
                self._room.acquire()
                if self._left:
                    return
                self._give(chunk)
        except OSError as error:
            end = ValueError(f"the input cannot be read: {error.strerror or error}")
        except Exception as error:  # `next` raises it
            end = error
        self._give(end)

    def _give(self, found: Lines | Exception | None) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._queue.put_nowait, found)


def chunks_of(files: Sequence[IO[bytes]], longest: int) -> Iterator[Lines]:
    """Yield the lines of files as they become available.

    Raises ValueError for a line longer than a record can be, without reading it to its end.
    """
    for file in files:
        name, number, rest = getattr(file, "name", "input"), 1, b""
        read: Callable[[int], bytes | None] = getattr(file, "raw", file).read
        while data := read(CHUNK_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if lines:
                yield Lines(name, number, [line.removesuffix(b"\r") for line in lines])
            number += len(lines)
            if len(rest) > longest:
                raise ValueError(f"{name}, line {number} is longer than a record can be, {longest} bytes")
        if rest:
            yield Lines(name, number, [rest])
