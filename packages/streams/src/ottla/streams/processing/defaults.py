"""The plain parts of a processor, used where no others are given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer import Consumer, ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.seams import Plan, Stop, Verdict, Work


class RecordFunction:
    """Calls an async function with each record (implements `seams.Handler`)."""

    def __init__(self, function: Callable[[ConsumerRecord], Awaitable[None]]) -> None:
        self._function = function

    async def __call__(self, work: Work) -> None:
        """Call the function with the records one after the other."""
        for record in work.records:
            await self._function(record)


class StopAtFailures:
    """Every failure stops the processor (implements `seams.FailurePolicy`)."""

    def decide(self, work: Work, error: BaseException, now_ms: int) -> Verdict:
        """Return Stop."""
        return Stop()

    async def set_aside(self, work: Work, error: BaseException) -> None:
        """Raise the error: there is no dead-letter topic."""
        raise error


class NoOutputs:
    """Handlers send nothing through the processor (implements `seams.Outputs`)."""

    def settle(self, work: Work) -> asyncio.Future[None] | None:
        """Return None."""
        return None

    def discard(self, work: Work) -> None:
        """Do nothing."""

    def revoked(self, partition: TopicPartition) -> None:
        """Do nothing."""


class ConsumerCommits:
    """Commits through the consumer (implements `seams.Commits`)."""

    def __init__(self, consumer: Consumer, interval_ms: int) -> None:
        self._consumer = consumer
        self.interval_ms = interval_ms

    async def commit(self, plans: Sequence[Plan]) -> None:
        """Commit the offsets with their metadata."""
        await self._consumer.commit(
            {plan.partition: OffsetAndMetadata(plan.offset, plan.metadata) for plan in plans}
        )
