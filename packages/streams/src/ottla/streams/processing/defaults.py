"""The plain parts of a processor, used where no others are given."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer import Consumer
from ottla.streams.seams import Plan


class ConsumerCommits:
    """Commits through the consumer (implements `seams.Commits`)."""

    is_pending = False

    def __init__(self, consumer: Consumer, interval_ms: int) -> None:
        self._consumer = consumer
        self.interval_ms = interval_ms

    async def commit(self, plans: Sequence[Plan]) -> Sequence[Plan]:
        """Commit the offsets with their metadata; return all of the plans."""
        await self._consumer.commit(
            {plan.partition: OffsetAndMetadata(plan.offset, plan.metadata) for plan in plans}
        )
        return plans
