"""The acknowledgement that `SyncProducer.send` returns: usable from any thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.producer.record import RecordMetadata

if TYPE_CHECKING:
    from ottla.client.blocking import LoopThread
    from ottla.producer.accumulator import Acknowledgement
    from ottla.producer.producer import Producer

SIZED = (bytes, str, bytearray, memoryview)
# The memory of a record besides its key and value.
OVERHEAD_BYTES = 100


class SyncAcknowledgement:
    """The acknowledgement of a record, for threads: `result()` waits for its RecordMetadata.

    It holds the record too, until the producer takes it.
    """

    __slots__ = (
        "_callbacks", "_error", "_inner", "_taken", "_thread", "headers", "key", "partition", "size",
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
        self.size = OVERHEAD_BYTES
        if isinstance(value, SIZED):
            self.size += len(value)
        if isinstance(key, SIZED):
            self.size += len(key)
        self._inner: Acknowledgement | None = None
        self._error: BaseException | None = None
        self._taken: asyncio.Future[None] | None = None
        self._callbacks: list[Callable[[SyncAcknowledgement], object]] | None = None

    def done(self) -> bool:
        """Whether the record is written or failed."""
        return self._error is not None or (self._inner is not None and self._inner.done())

    def __repr__(self) -> str:
        if self._inner is not None:
            return f"<Sync{repr(self._inner)[1:]}"
        state = "pending" if self._error is None else f"failed: {self._error}"
        return f"<SyncAcknowledgement {self.topic} {state}>"

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the record is written, for `timeout` seconds at most; return its metadata.

        Raises the record's error, or TimeoutError: then the record may still be written.
        """
        if self._error is not None:
            raise self._error
        if self._inner is not None and self._inner.done():
            return self._inner.result()
        return self._thread.call(self._settled, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `result` does; return the record's error, or None."""
        try:
            self.result(timeout)
        except BaseException as error:
            if not self.done():
                raise
            return error
        return None

    def add_done_callback(self, function: Callable[[SyncAcknowledgement], object]) -> None:
        """Call `function(acknowledgement)` once it is done, on the producer's thread: it must not block."""
        self._thread.post(self._attach, function)

    # On the loop's thread:

    def taken(self, inner: Acknowledgement) -> None:
        """Follow the producer's acknowledgement, and drop the record: the producer took it."""
        self._inner = inner
        self._drop_record()
        for function in self._callbacks or ():
            self._tell(inner, function)

    def rejected(self, error: BaseException) -> None:
        """Fail with the error that the producer raised for the record."""
        self._error = error
        self._drop_record()
        # Not called here, inside the drain of the send queue: an exception of an application's function
        # would end the drain while it counts as running, and no record would start it again.
        loop = asyncio.get_running_loop()
        for function in self._callbacks or ():
            loop.call_soon(function, self)

    def _tell(self, inner: Acknowledgement, function: Callable[[SyncAcknowledgement], object]) -> None:
        inner.add_done_callback(lambda _: function(self))

    def _drop_record(self) -> None:
        self.value = self.key = self.headers = None
        if self._taken is not None and not self._taken.done():
            self._taken.set_result(None)

    async def _settled(self) -> RecordMetadata:
        if self._inner is None and self._error is None:
            if self._taken is None:
                self._taken = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._taken)
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
