"""`flush`: close every batch, send without linger, and wait for the outcomes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from ottla.producer.accumulator import Accumulator
from ottla.producer.append.pending_metadata import PendingMetadata
from ottla.producer.metrics import ProducerMetrics

# A TimeoutError names at most so many topics.
TOPICS_NAMED = 5


class Flushing:
    """Waits for everything that was sent so far."""

    def __init__(
        self,
        accumulator: Accumulator,
        pending: PendingMetadata,
        metrics: ProducerMetrics,
        now_ms: Callable[[], float],
    ) -> None:
        self._accumulator = accumulator
        self._pending = pending
        self._metrics = metrics
        self._now_ms = now_ms

    async def flush(self, timeout_s: float | None = None) -> None:
        """Return once every record is acknowledged or failed. Raises TimeoutError."""
        began_ms = self._now_ms()
        try:
            async with asyncio.timeout(timeout_s):
                await self._pending.resolved()
                self._accumulator.flush(True)
                self._accumulator.close_open_batches()
                waiting = [batch.settled() for batch in self._accumulator.incomplete_batches()]
                if waiting:
                    await asyncio.wait(waiting)
        except TimeoutError:
            raise TimeoutError(self._incomplete(timeout_s)) from None
        finally:
            self._accumulator.flush(False)
            self._metrics.flush_time_total_ms += self._now_ms() - began_ms

    def _incomplete(self, timeout_s: float | None) -> str:
        counts: Counter[str] = Counter(self._pending.counts())
        for batch in self._accumulator.incomplete_batches():
            counts[batch.partition.topic] += batch.record_count
        most = ", ".join(f"{count} of {topic!r}" for topic, count in counts.most_common(TOPICS_NAMED))
        more = f" and more of {len(counts) - TOPICS_NAMED} other topics" if len(counts) > TOPICS_NAMED else ""
        return f"records are not acknowledged after {timeout_s} s: {most}{more}"
