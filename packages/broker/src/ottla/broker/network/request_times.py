"""Times and sizes of answered requests: one by one on the general path, together on the fast paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.broker.network.request_metrics import FastPathTally, RequestMetrics
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from ottla.broker.api.fetch.fast_path import Answers
    from ottla.broker.api.produce.fast_path import ProduceFastPath
    from ottla.broker.network.dispatcher import Call
    from ottla.broker.network.frames import ProduceRun

FLUSH_AFTER_S: Final = 0.25
"""How long the counts of the fast paths may be ahead of the metrics."""


class RequestTimes:
    """Measures requests; counts of the fast paths reach the metrics with the next flush."""

    def __init__(
        self,
        metrics: RequestMetrics,
        produce_fast_path: ProduceFastPath,
        now_s: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """`now_s` and `call_later` are the loop's."""
        self.metrics = metrics
        self.fast_produces = FastPathTally(metrics, ApiKey.PRODUCE)
        self._fast_fetches = FastPathTally(metrics, ApiKey.FETCH)
        self._produce_fast_path = produce_fast_path
        self._now_s = now_s
        self._call_later = call_later
        self._flush_due = False

    # ---- general path

    def measure(self, call: Call) -> None:
        """Count one request that has been answered."""
        context, now_ms = call.context, self._now_s() * 1000
        key, total_ms = int(call.route.api_key), now_ms - context.received_ms
        metrics = self.metrics.of(key)
        self.metrics.requests(key, context.api_version).mark()
        queued_ms = context.begun_ms - context.received_ms
        metrics.request_bytes.update(call.size)
        metrics.total_time_ms.update(total_ms)
        metrics.queue_time_ms.update(queued_ms)
        metrics.remote_time_ms.update(context.remote_ms)
        metrics.local_time_ms.update(max(0.0, total_ms - queued_ms - context.remote_ms))

    # ---- fast paths

    def measure_run(self, run: ProduceRun, received_ms: float) -> None:
        """Count the produce requests of a run, which were answered together."""
        took_ms = self._now_s() * 1000 - received_ms
        self.fast_produces.note(run.version, took_ms, run.size_in_bytes / run.count, run.count)
        self.fast_path_used()

    def measure_waited_run(self, run: ProduceRun, received_ms: float, appended_ms: float) -> None:
        """Count the produce requests of a run that waited for replicas after its append."""
        metrics, count, now_ms = self.metrics.of(ApiKey.PRODUCE), run.count, self._now_s() * 1000
        metrics.total_time_ms.update(now_ms - received_ms, count)
        metrics.queue_time_ms.update(0.0, count)
        metrics.local_time_ms.update(appended_ms - received_ms, count)
        metrics.remote_time_ms.update(now_ms - appended_ms, count)
        metrics.request_bytes.update(run.size_in_bytes / count, count)
        self.metrics.requests(ApiKey.PRODUCE, run.version).mark(count)

    def measure_fetches(self, answers: Answers, received_ms: float) -> None:
        """Count fetches that were answered together."""
        took_ms, count = self._now_s() * 1000 - received_ms, answers.count
        self._fast_fetches.note(answers.version, took_ms, answers.size_in_bytes / count, count)
        self.fast_path_used()

    def measure_waited_fetch(self, answers: Answers, received_ms: float) -> None:
        """Count a fetch that waited for records before it was answered."""
        metrics, waited_ms = self.metrics.of(ApiKey.FETCH), self._now_s() * 1000 - received_ms
        metrics.total_time_ms.update(waited_ms)
        metrics.queue_time_ms.update(0.0)
        metrics.local_time_ms.update(0.0)
        metrics.remote_time_ms.update(waited_ms)
        metrics.request_bytes.update(answers.size_in_bytes)
        self.metrics.requests(ApiKey.FETCH, answers.version).mark()

    def fast_path_used(self) -> None:
        """Have the counts of the fast paths flushed before long."""
        if not self._flush_due:
            self._flush_due = True
            self._call_later(FLUSH_AFTER_S, self.flush)

    def flush(self) -> None:
        """Bring the metrics up to date with the requests that took a fast path."""
        self.fast_produces.flush()
        self._produce_fast_path.flush()
        self._fast_fetches.flush()
        self._flush_due = False
