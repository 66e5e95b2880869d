"""A proxy that corrupts responses: truncated, extended, modified, repeated, dropped, reordered."""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"


class CorruptingProxy:
    """Forwards requests unchanged, and corrupts a `share` of the responses, chosen by the seed."""

    def __init__(self, port: int, target_port: int) -> None:
        self.port = port
        self.share = 0.0
        self.lies = 0
        self._target_port = target_port
        self._rng = random.Random(0)
        self._writers: set[asyncio.StreamWriter] = set()

    def lie(self, seed: int, share: float) -> None:
        """Start to corrupt responses."""
        self._rng, self.share, self.lies = random.Random(seed), share, 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, self.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection(HOST, self._target_port)
        self._writers |= {writer, to_broker}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pass_on(reader, to_broker))
                tasks.create_task(self._answer(from_broker, writer))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers -= {writer, to_broker}
            writer.transport.abort()
            to_broker.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            size = await reader.readexactly(4)
            frame = size + await reader.readexactly(int.from_bytes(size, "big"))
            if self._rng.random() < self.share:
                self.lies += 1
                frame, goes_on = self._falsify(frame)
                writer.write(frame)
                if not goes_on:
                    await writer.drain()
                    raise ConnectionAbortedError
            else:
                writer.write(frame)
            await writer.drain()

    def _falsify(self, frame: bytes) -> tuple[bytes, bool]:
        """Return the bytes to send instead of a frame, and whether the connection stays open after it."""
        rng = self._rng
        match rng.randrange(9):
            case 0:  # random bytes of the right length
                return frame[:4] + rng.randbytes(len(frame) - 4), True
            case 1:  # a correct correlation id, then random bytes
                return frame[:8] + rng.randbytes(len(frame) - 8), True
            case 2:  # a truncated frame with its actual size
                kept = rng.randrange(4, len(frame))
                return (kept - 4).to_bytes(4, "big") + frame[4:kept], True
            case 3:  # the connection ends within the frame
                return frame[: rng.randrange(len(frame))], False
            case 4:  # a size beyond memory, or a negative one
                return rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x60\0\0\0")) + frame[4:], True
            case 5:  # the response to another request
                return frame[:4] + rng.randbytes(4) + frame[8:], True
            case 6:  # twice
                return frame * 2, True
            case 7:  # not at all
                return b"", True
            case _:  # flipped bits
                bent = bytearray(frame)
                for _ in range(rng.choice((1, 1, 3, 20))):
                    bent[rng.randrange(8, len(bent))] ^= 1 << rng.randrange(8)
                return bytes(bent), True


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError
