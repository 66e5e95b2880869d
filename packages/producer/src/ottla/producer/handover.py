"""How records get from many threads to the one that sends them: a bounded queue, emptied in runs."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.client.environment import monotonic_s
from ottla.client.errors import ClientError
from ottla.producer.errors import BufferFull, ProducerClosed
from ottla.producer.record import RecordMetadata

if TYPE_CHECKING:
    from ottla.client.blocking import LoopThread
    from ottla.producer.producer import Producer
    from ottla.producer.sending import Acknowledgement

MOST_RECORDS = 10_000
RUN = 1_000
LARGE_BYTES = 1_024
CHECK_S = 1.0
SIZED = (bytes, str, bytearray, memoryview)


class SyncAcknowledgement:
    """What a thread holds of a record: `result()` waits for its RecordMetadata.

    It stands for the record too, until that is handed over.
    """

    __slots__ = (
        "_callbacks", "_error", "_handed", "_inner", "_thread", "headers", "key", "partition", "size",
        "timestamp_ms", "topic", "value",
    )  # fmt: skip

    def __init__(
        self,
        thread: LoopThread[Producer],
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Any,
    ) -> None:
        self._thread = thread
        self.topic = topic
        self.value = value
        self.key = key
        self.partition = partition
        self.timestamp_ms = timestamp_ms
        self.headers = headers
        self.size = 100
        if isinstance(value, SIZED):
            self.size += len(value)
        if isinstance(key, SIZED):
            self.size += len(key)
        self._inner: Acknowledgement | None = None
        self._error: BaseException | None = None
        self._handed: asyncio.Future[None] | None = None
        self._callbacks: list[Callable[[SyncAcknowledgement], object]] | None = None

    def done(self) -> bool:
        """Whether the record is written, or given up."""
        return self._error is not None or (self._inner is not None and self._inner.done())

    def __repr__(self) -> str:
        if self._inner is not None:
            return f"<Sync{repr(self._inner)[1:]}"
        state = "pending" if self._error is None else f"failed: {self._error}"
        return f"<SyncAcknowledgement {self.topic} {state}>"

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is written, for `timeout` seconds at most; return where.

        Raises what kept it from being written; TimeoutError, and then it may still come to be.
        """
        if self._error is not None:
            raise self._error
        if self._inner is not None and self._inner.done():
            return self._inner.result()
        return self._thread.call(self._settled, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `result` does; return what kept the record from being written, or None."""
        try:
            self.result(timeout)
        except BaseException as error:
            if not self.done():
                raise
            return error
        return None

    def add_done_callback(self, function: Callable[[SyncAcknowledgement], object]) -> None:
        """Call `function(acknowledgement)` once it is done, on the producer's thread: it must not wait."""
        self._thread.post(self._attach, function)

    # On the loop's thread:

    def placed(self, inner: Acknowledgement) -> None:
        """Take in what the producer gave for the record, which is let go of."""
        self._inner = inner
        self._over()
        for function in self._callbacks or ():
            self._tell(inner, function)

    def refused(self, error: BaseException) -> None:
        """Take in why the producer did not take the record."""
        self._error = error
        self._over()
        # Not called from here, which is amid the pump: what an application's function raises would end that
        # with `_pumping` set, and no record would wake it again.
        loop = asyncio.get_running_loop()
        for function in self._callbacks or ():
            loop.call_soon(function, self)

    def _tell(self, inner: Acknowledgement, function: Callable[[SyncAcknowledgement], object]) -> None:
        inner.add_done_callback(lambda _: function(self))

    def _over(self) -> None:
        self.value = self.key = self.headers = None
        if self._handed is not None and not self._handed.done():
            self._handed.set_result(None)

    async def _settled(self) -> RecordMetadata:
        if self._inner is None and self._error is None:
            if self._handed is None:
                self._handed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._handed)
        if self._error is not None:
            raise self._error
        assert self._inner is not None
        return await self._inner

    def _attach(self, function: Callable[[SyncAcknowledgement], object]) -> None:
        if self._inner is not None:
            self._tell(self._inner, function)
        elif self._error is not None:
            function(self)
        else:
            self._callbacks = [*(self._callbacks or ()), function]


class Handover:
    """Takes records of any thread, and gives them to the producer on its own, in order.

    One wake-up of the loop carries over all records that came meanwhile. There is room for 10,000 records,
    and for large ones of `most_bytes`; beyond that `put` waits up to `max_block_ms`.

    Putting a small record takes no lock: two threads that fight for one, and for the interpreter's, cost more
    than all the rest. A thread appends and then looks whether the pump runs; the pump says that it does not,
    and then looks whether something was appended. None is overlooked, and to pump once too often is harmless.
    """

    def __init__(self, thread: LoopThread[Producer], *, most_bytes: int, max_block_ms: int) -> None:
        self._thread = thread
        self._most_bytes = most_bytes
        self._max_block_ms = max_block_ms
        self._queue: deque[SyncAcknowledgement | asyncio.Future[None]] = deque()
        self._pumping = False
        self._blocked = False
        self._has_room = threading.Condition()
        self._large_bytes = 0
        self._waiters = 0
        self._producer: Producer | None = None

    def open(self, producer: Producer) -> None:
        """Say where records go."""
        self._producer = producer

    def put(self, record: SyncAcknowledgement) -> None:
        """Hand a record over. Raises BufferFull, NotRunning, Forked."""
        self._thread.check()
        if record.size > LARGE_BYTES or len(self._queue) >= MOST_RECORDS:
            self._await_room(record.size)
        self._queue.append(record)
        if not self._pumping:
            self._pumping = True
            self._wake()

    async def emptied(self) -> None:
        """Wait until all records that were put before are with the producer. On the loop's thread."""
        if not self._pumping and not self._queue:
            return
        mark: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(mark)
        self._pump()
        await mark

    def _wake(self) -> None:
        try:
            self._thread.post(self._pump)
        except BaseException:
            self._pumping = False
            raise

    def _is_full(self) -> bool:
        return self._large_bytes >= self._most_bytes or len(self._queue) >= MOST_RECORDS

    def _await_room(self, size: int) -> None:
        """Wait, unless this is a callback on the loop's own thread; count a large record."""
        with self._has_room:
            if not self._thread.is_here:
                self._wait()
            if size > LARGE_BYTES:
                self._large_bytes += size

    def _wait(self) -> None:
        deadline_s = monotonic_s() + self._max_block_ms / 1_000 if self._max_block_ms >= 0 else None
        self._waiters += 1
        try:
            while self._is_full():
                self._thread.check()
                left_s = CHECK_S if deadline_s is None else deadline_s - monotonic_s()
                if left_s <= 0:
                    raise BufferFull(self._large_bytes, self._most_bytes, self._max_block_ms)
                self._has_room.wait(min(left_s, CHECK_S))
        finally:
            self._waiters -= 1

    # On the loop's thread:

    def _pump(self) -> None:
        """Hand over a run of records; then let the loop have a turn before the next."""
        if self._blocked:
            return
        queue = self._queue
        for _ in range(min(RUN, len(queue))):
            record = queue.popleft()
            if not isinstance(record, SyncAcknowledgement):
                if not record.done():
                    record.set_result(None)
            elif not self._hand_over(record) and self._is_waited_with(record):
                return
        self._tell_of_room()
        if not queue:
            self._pumping = False
        if queue:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _tell_of_room(self) -> None:
        # Not at the first place that is free: threads that wait would take turns with this one for each.
        if self._waiters and len(self._queue) <= MOST_RECORDS // 2 and self._large_bytes < self._most_bytes:
            with self._has_room:
                self._has_room.notify_all()

    def _hand_over(self, record: SyncAcknowledgement) -> bool:
        """Say whether the producer took, or refused, a record at once; it did not if it has no room."""
        assert self._producer is not None
        try:
            inner = self._producer.send_nowait(
                record.topic, record.value, record.key, record.partition, record.timestamp_ms, record.headers
            )
        except BufferFull as error:
            if self._max_block_ms != 0:
                return False
            self._gone(record)
            record.refused(error)
        except Exception as error:
            self._gone(record)
            record.refused(error)
        else:
            if record.size > LARGE_BYTES:
                self._gone(record)
            record.placed(inner)
        return True

    def _is_waited_with(self, record: SyncAcknowledgement) -> bool:
        try:
            self._thread.submit(partial(self._hand_over_slowly, record))
        except ClientError as error:  # it is about to close, and will not make room
            self._gone(record)
            record.refused(error)
            return False
        self._blocked = True
        return True

    async def _hand_over_slowly(self, record: SyncAcknowledgement) -> None:
        """Wait for the producer's room with one record; all others wait behind it."""
        assert self._producer is not None
        try:
            inner = await self._producer.send(
                record.topic, record.value, record.key, record.partition, record.timestamp_ms, record.headers
            )
        except asyncio.CancelledError:
            record.refused(ProducerClosed("the producer was closed before there was room for the record"))
            raise
        except BaseException as error:
            record.refused(error)
            if not isinstance(error, Exception):
                raise
        else:
            record.placed(inner)
        finally:
            self._gone(record)
            self._blocked = False
            asyncio.get_running_loop().call_soon(self._pump)

    def _gone(self, record: SyncAcknowledgement) -> None:
        if record.size > LARGE_BYTES:
            with self._has_room:
                self._large_bytes -= record.size
