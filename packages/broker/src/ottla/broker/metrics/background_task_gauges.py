"""Gauges of background tasks: whether each runs, and when it last began."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.broker.metrics.registry import Metrics

if TYPE_CHECKING:
    import asyncio

_KIND: Final = ("ottla.broker", "BackgroundTask")


def show_running(metrics: Metrics, task: asyncio.Task[None], name: str) -> None:
    """Register a gauge: 1 while an endless task runs, 0 once it has failed; removed when it is cancelled."""
    gauge = metrics.gauge(*_KIND, "Running", lambda: not task.done(), task=name)

    def ended(_: object) -> None:
        if task.cancelled() and metrics.get(*_KIND, "Running", task=name) is gauge:
            metrics.remove(*_KIND, "Running", task=name)

    task.add_done_callback(ended)


def show_last_run(metrics: Metrics, now_ms: Callable[[], float], name: str) -> Callable[[], None]:
    """Register a gauge of the time since a repeated task last began; call the result when it begins."""
    began = [now_ms()]
    metrics.gauge(*_KIND, "SinceLastRunMs", lambda: now_ms() - began[0], task=name)

    def mark_begun() -> None:
        began[0] = now_ms()

    return mark_begun
