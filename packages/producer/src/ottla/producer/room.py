"""Who waits for room in the producer's buffer, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from ottla.producer.errors import BufferFull
from ottla.producer.metrics import ProducerMetrics

FOREVER = -1


class Filling(Protocol):
    """A buffer that may be full."""

    @property
    def is_full(self) -> bool: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def buffer_memory(self) -> int: ...


class Room:
    """Makes senders wait while a buffer is full, up to `max_block_ms`."""

    def __init__(self, buffer: Filling, max_block_ms: int, metrics: ProducerMetrics) -> None:
        self._buffer = buffer
        self._max_block_ms = max_block_ms
        self._metrics = metrics
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Return once there is room. Raises BufferFull when there is none in time."""
        if not self._buffer.is_full:
            return
        if self._max_block_ms == 0:
            raise self._refusal(0)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        bound_s = None if self._max_block_ms == FOREVER else self._max_block_ms / 1_000
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(bound_s):
                await turn
        except TimeoutError:
            raise self._refusal(self._max_block_ms) from None
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)
            self._metrics.bufferpool_wait_time_total_ms += (
                asyncio.get_running_loop().time() - began_s
            ) * 1_000
            # Whoever comes next may fit in too: but only once this one, if it got its turn, is in.
            asyncio.get_running_loop().call_soon(self.open)

    def open(self) -> None:
        """Let the first one in, if there is room now."""
        while self._waiting and not self._buffer.is_full:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def close(self, error: BaseException) -> None:
        """Send everybody away."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(error)

    def _refusal(self, waited_ms: int) -> BufferFull:
        self._metrics.buffer_exhausted_total += 1
        return BufferFull(self._buffer.size_bytes, self._buffer.buffer_memory, waited_ms)
