"""At least once: outputs go to the producer at once, and work is finished when they are acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Protocol

from ottla.producer import Acknowledgement, ProducerRecord
from ottla.producer.record import Headers
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import TOO_LARGE, OutputTooLarge, StateTooLarge
from ottla.streams.seams import Work, WorkState, state_of


class SendingProducer(Protocol):
    """The part of a producer that outputs need."""

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Acknowledgement:
        """Queue a record; wait only while the buffer is full."""


class DirectOutputs:
    """Implements `Outputs` and `Sender` by a producer.

    What a failed attempt has sent is sent: its retry sends it again.
    """

    def __init__(self, producer: SendingProducer) -> None:
        self._producer = producer

    async def send(self, work: Work, record: ProducerRecord) -> None:
        """Queue a record; raises what the producer raises."""
        acknowledgement = await self._producer.send(*record)
        state_of(work).outputs.append(acknowledgement)

    def settle(self, work: Work) -> asyncio.Future[None] | None:
        """Return a future of all acknowledgements of the attempt; None if they are there already."""
        state = work.context
        if not isinstance(state, WorkState) or not state.outputs:
            return None
        outputs, state.outputs = state.outputs, []
        settled = _Settled(len(outputs), state.changelogs)
        for output in outputs:
            output.add_done_callback(settled.count)
        return settled.future

    def discard(self, work: Work) -> None:
        """Forget the acknowledgements of an attempt that failed."""
        if isinstance(work.context, WorkState):
            work.context.outputs.clear()

    def revoked(self, partition: TopicPartition) -> None:
        """Do nothing: what was sent belongs to its work."""


class _Settled:
    """Counts acknowledgements down; the future is done after the last one, or fails with the first error."""

    def __init__(self, left: int, changelogs: Collection[str]) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = left
        self._changelogs = changelogs

    def count(self, acknowledgement: Acknowledgement) -> None:
        self._left -= 1
        error = acknowledgement.exception()
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(self._named(acknowledgement, error))
        elif not self._left:
            self.future.set_result(None)

    def _named(self, acknowledgement: Acknowledgement, error: BaseException) -> BaseException:
        partition = acknowledgement.topic_partition
        if partition is None or not isinstance(error, TOO_LARGE):
            return error
        kind = StateTooLarge if partition.topic in self._changelogs else OutputTooLarge
        return kind(partition.topic, error)
