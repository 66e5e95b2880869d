"""Rows that are sent to brokers, and their acknowledgements."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ottla.client.blocking import Call, LoopThread
from ottla.producer import Producer
from ottla.producer.accumulator import Acknowledgements

if TYPE_CHECKING:
    import pyarrow as pa


class RowSender:
    """Hands rows to a producer on its own thread while Spark computes the next ones.

    An error of a row is raised by a later `put`, or by `finish`.
    """

    def __init__(self, thread: LoopThread[Any], producer: Producer) -> None:
        self._thread = thread
        self._producer = producer
        self._handing_over: Call[None] | None = None
        # Used on the producer's loop only.
        self._underway: deque[Acknowledgements] = deque()

    def put(self, topic: str, records: pa.RecordBatch) -> None:
        """Send rows to a topic, after those of earlier calls; wait while the producer's buffer is full."""
        self._handed_over()
        self._handing_over = self._thread.submit(lambda: self._hand_over(topic, records))

    def finish(self) -> None:
        """Wait until all rows are acknowledged. Raises the first error."""
        self._handed_over()
        self._thread.call(self._settled)

    def _handed_over(self) -> None:
        before, self._handing_over = self._handing_over, None
        if before is not None:
            before.result()

    async def _hand_over(self, topic: str, records: pa.RecordBatch) -> None:
        self._underway.append(await self._producer.send_arrow(topic, records))
        while self._underway and self._underway[0].done():
            await self._underway.popleft()

    async def _settled(self) -> None:
        await self._producer.flush()
        while self._underway:
            await self._underway.popleft()
