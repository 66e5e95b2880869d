"""The limits of the buffer in bytes and records: calls of `send` wait for space, first in, first out."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from ottla.producer.errors import BufferFull
from ottla.producer.metrics import ProducerMetrics

FOREVER = -1


class Buffer(Protocol):
    """A buffer of bounded size."""

    @property
    def is_full(self) -> bool: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def buffer_memory(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def max_records(self) -> int: ...


class BufferSpace:
    """Holds up `send` while a buffer is full, for `max_block_ms` at most."""

    def __init__(self, buffer: Buffer, max_block_ms: int, metrics: ProducerMetrics) -> None:
        self._buffer = buffer
        self._max_block_ms = max_block_ms
        self._metrics = metrics
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def available_bytes(self) -> int:
        """Bytes of records that still fit."""
        return max(0, self._buffer.buffer_memory - self._buffer.size_bytes)

    async def wait(self) -> None:
        """Return once there is buffer space. Raises BufferFull after `max_block_ms`."""
        if not self._buffer.is_full:
            return
        if self._max_block_ms == 0:
            raise self._buffer_full(0)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        timeout_s = None if self._max_block_ms == FOREVER else self._max_block_ms / 1_000
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            raise self._buffer_full(self._max_block_ms) from None
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            self._metrics.bufferpool_wait_time_total_ms += (
                asyncio.get_running_loop().time() - began_s
            ) * 1_000
            # The next waiter may fit too, but only after this one has appended its record: hence call_soon.
            asyncio.get_running_loop().call_soon(self.wake_next)

    def wake_next(self) -> None:
        """Wake the first waiter if there is buffer space."""
        while self._waiters and not self._buffer.is_full:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def fail_all(self, error: BaseException) -> None:
        """Raise `error` in every waiter."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(error)

    def _buffer_full(self, waited_ms: int) -> BufferFull:
        self._metrics.buffer_exhausted_total += 1
        buffer = self._buffer
        return BufferFull(
            buffer.size_bytes,
            buffer.buffer_memory,
            waited_ms,
            waiting_records=buffer.record_count,
            max_records=buffer.max_records,
        )
