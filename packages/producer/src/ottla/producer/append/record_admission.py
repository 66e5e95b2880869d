"""Admission of records: whether `send` may take one now, on either path, and the wait for buffer space.

The buffer has limits in bytes and in records. Calls of `send` wait for space first in, first out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NoReturn, Protocol

from ottla.producer.accumulator import Appender
from ottla.producer.errors import BufferFull, ProducerClosed
from ottla.producer.metrics import ProducerMetrics

FOREVER = -1


class Transaction(Protocol):
    """The state of a transactional producer."""

    @property
    def takes_records(self) -> bool:
        """Whether a record may be sent."""

    def refuse(self, doing: str) -> NoReturn:
        """Raise the error that says why a call is not allowed now."""


class RecordAdmission:
    """Admits records while the producer is open, and in a transaction if it is transactional.

    `has_fast_path`: no setting needs to see single records. The fast path of the appender is opened and
    closed with the admission, so that the fast path has one flag to read.
    """

    def __init__(self, appender: Appender, *, has_fast_path: bool) -> None:
        self._appender = appender
        self._has_fast_path = has_fast_path
        self._transaction: Transaction | None = None
        self.is_open = False

    def open(self, transaction: Transaction | None = None) -> None:
        """Admit records; those of a transactional producer while `transaction` takes them."""
        self.is_open = True
        self._transaction = transaction
        self.update()

    def close(self) -> None:
        """Admit no record any more."""
        self.is_open = False
        self.update()

    def close_fast_path(self) -> None:
        """Send every record through the general path, which checks it, until `update`."""
        self._appender.fast_path = False

    def update(self) -> None:
        """Open the fast path if records may be sent now, close it otherwise."""
        takes_records = self._transaction is None or self._transaction.takes_records
        self._appender.fast_path = self.is_open and self._has_fast_path and takes_records

    def check_open(self) -> None:
        """Raise ProducerClosed unless the producer is open."""
        if not self.is_open:
            raise not_open()

    def check(self) -> None:
        """Raise unless a record may be sent now: ProducerClosed, TransactionError, or why it failed."""
        self.check_open()
        if self._transaction is not None and not self._transaction.takes_records:
            self._transaction.refuse("send records")


def not_open() -> ProducerClosed:
    """Return the error of a call before the start or after the end."""
    return ProducerClosed("the producer is not open; use it inside `async with`, or await start()")


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
