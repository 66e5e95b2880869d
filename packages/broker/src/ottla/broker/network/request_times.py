"""Times and sizes of answered requests: one by one on the general path, together on the fast paths."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ottla.broker.network.dispatcher import Call
    from ottla.broker.network.request_metrics import RequestMetrics
    from ottla.broker.requests.fast_path import FastAnswers, FastPath

FLUSH_AFTER_S: Final = 0.25
"""How long the counts of the fast paths may be ahead of the metrics."""


class RequestTimes:
    """Measures requests; counts of the fast paths reach the metrics with the next flush."""

    def __init__(
        self,
        metrics: RequestMetrics,
        fast_paths: Collection[FastPath],
        now_s: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """`now_s` and `call_later` are the loop's."""
        self.metrics = metrics
        self._fast_paths = fast_paths
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

    def measure_waited(self, api_key: int, answers: FastAnswers, received_ms: float, begun_ms: float) -> None:
        """Count requests of a fast path that waited for responses, after their effects at `begun_ms`."""
        metrics, count, now_ms = self.metrics.of(api_key), answers.count, self._now_s() * 1000
        metrics.total_time_ms.update(now_ms - received_ms, count)
        metrics.queue_time_ms.update(0.0, count)
        metrics.local_time_ms.update(begun_ms - received_ms, count)
        metrics.remote_time_ms.update(now_ms - begun_ms, count)
        metrics.request_bytes.update(answers.size_in_bytes / count, count)
        self.metrics.requests(api_key, answers.version).mark(count)

    def fast_path_used(self) -> None:
        """Plan a flush of the counts of the fast paths."""
        if not self._flush_due:
            self._flush_due = True
            self._call_later(FLUSH_AFTER_S, self.flush)

    def flush(self) -> None:
        """Bring the metrics up to date with the requests that took a fast path."""
        for fast_path in self._fast_paths:
            self.metrics.take(fast_path)
            fast_path.flush()
        self._flush_due = False
