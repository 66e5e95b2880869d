"""The queue of `SyncProducer.send`: records from any thread to the producer's thread, bounded, in order."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ottla.client.environment import monotonic_s
from ottla.client.errors import ClientError
from ottla.client.serialization import SerializerUnprepared
from ottla.producer.errors import BufferFull, ProducerClosed
from ottla.producer.sync_acknowledgement import SyncAcknowledgement

if TYPE_CHECKING:
    from ottla.client.blocking import LoopThread
    from ottla.producer.producer import Producer

MOST_RECORDS = 10_000
RUN = 1_000
LARGE_BYTES = 1_024
CHECK_S = 1.0


class SyncSendQueue:
    """Takes records from any thread, and sends them on the producer's thread, in order.

    One wake-up of the loop takes all records that are in the queue. It holds 10,000 records, or
    `most_records` if that is less, and large records of `most_bytes` in all; beyond that `put` waits up to
    `max_block_ms`.

    Putting a small record takes no lock: two threads that contend for one, besides the interpreter's, cost
    more than all the rest. A thread appends its record, and then checks whether a drain is scheduled. The
    drain declares itself ended, and then checks whether the queue is empty. Whichever is first, the other
    sees it: no record is overlooked, and one drain too many is harmless.
    """

    def __init__(
        self,
        thread: LoopThread[Producer],
        *,
        most_bytes: int,
        most_records: int = 0,
        max_block_ms: int,
        clock: Callable[[], float] = monotonic_s,
    ) -> None:
        self._thread = thread
        self._most_bytes = most_bytes
        self._most_records = min(most_records or MOST_RECORDS, MOST_RECORDS)
        self._max_block_ms = max_block_ms
        self._queue: deque[SyncAcknowledgement | asyncio.Future[None]] = deque()
        self._draining = False
        self._blocked = False
        self._space = threading.Condition()
        self._large_bytes = 0
        self._waiters = 0
        self._producer: Producer | None = None
        self._clock = clock

    def open(self, producer: Producer) -> None:
        """Set the producer that sends the records."""
        self._producer = producer

    def put(self, record: SyncAcknowledgement) -> None:
        """Put a record into the queue. Raises BufferFull, ProducerClosed, Forked."""
        self._thread.check()
        if record.size > LARGE_BYTES or len(self._queue) >= self._most_records:
            self._await_space(record.size)
        self._queue.append(record)
        if not self._draining:
            self._draining = True
            self._wake()

    async def emptied(self) -> None:
        """Wait until the producer has taken every record that was put before. On the loop's thread."""
        if not self._draining and not self._queue:
            return
        mark: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(mark)
        self._drain()
        await mark

    def _wake(self) -> None:
        try:
            self._thread.post(self._drain)
        except BaseException:
            self._draining = False
            raise

    def _is_full(self) -> bool:
        return self._large_bytes >= self._most_bytes or len(self._queue) >= self._most_records

    def _await_space(self, size: int) -> None:
        """Wait for space, unless this is a callback on the loop's own thread; count a large record."""
        with self._space:
            if not self._thread.is_here:
                self._wait()
            if size > LARGE_BYTES:
                self._large_bytes += size

    def _wait(self) -> None:
        deadline_s = self._clock() + self._max_block_ms / 1_000 if self._max_block_ms >= 0 else None
        self._waiters += 1
        try:
            while self._is_full():
                self._thread.check()
                left_s = CHECK_S if deadline_s is None else deadline_s - self._clock()
                if left_s <= 0:
                    raise BufferFull(
                        self._large_bytes,
                        self._most_bytes,
                        self._max_block_ms,
                        waiting_records=len(self._queue),
                        max_records=self._most_records,
                    )
                self._space.wait(min(left_s, CHECK_S))
        finally:
            self._waiters -= 1

    # On the loop's thread:

    def _drain(self) -> None:
        """Send a run of records; the loop runs before the next one."""
        if self._blocked:
            return
        queue = self._queue
        for _ in range(min(RUN, len(queue))):
            record = queue.popleft()
            if not isinstance(record, SyncAcknowledgement):
                if not record.done():
                    record.set_result(None)
            elif not self._send(record) and self._block_on(record):
                return
        self._notify_of_space()
        if not queue:
            self._draining = False
        if queue:
            self._draining = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _notify_of_space(self) -> None:
        # Not at the first free slot: waiting threads and this one would alternate for every record.
        if (
            self._waiters
            and len(self._queue) <= self._most_records // 2
            and self._large_bytes < self._most_bytes
        ):
            with self._space:
                self._space.notify_all()

    def _send(self, record: SyncAcknowledgement) -> bool:
        """Return whether the producer took or rejected a record; False where `send` must wait."""
        assert self._producer is not None
        try:
            inner = self._producer.send_nowait(
                record.topic, record.value, record.key, record.partition, record.timestamp_ms, record.headers
            )
        except (BufferFull, SerializerUnprepared) as error:
            if self._max_block_ms != 0:
                return False
            self._uncount(record)
            record.rejected(error)
        except Exception as error:
            self._uncount(record)
            record.rejected(error)
        else:
            if record.size > LARGE_BYTES:
                self._uncount(record)
            record.taken(inner)
        return True

    def _block_on(self, record: SyncAcknowledgement) -> bool:
        try:
            self._thread.submit(partial(self._send_blocked, record))
        except ClientError as error:  # the loop is closing, and frees no buffer space
            self._uncount(record)
            record.rejected(error)
            return False
        self._blocked = True
        return True

    async def _send_blocked(self, record: SyncAcknowledgement) -> None:
        """Wait with one record, for buffer space or its serializer; all others wait behind it."""
        assert self._producer is not None
        try:
            inner = await self._producer.send(
                record.topic, record.value, record.key, record.partition, record.timestamp_ms, record.headers
            )
        except asyncio.CancelledError:
            record.rejected(
                ProducerClosed("the producer was closed before there was buffer space for the record")
            )
            raise
        except BaseException as error:
            record.rejected(error)
            if not isinstance(error, Exception):
                raise
        else:
            record.taken(inner)
        finally:
            self._uncount(record)
            self._blocked = False
            asyncio.get_running_loop().call_soon(self._drain)

    def _uncount(self, record: SyncAcknowledgement) -> None:
        if record.size > LARGE_BYTES:
            with self._space:
                self._large_bytes -= record.size
