"""Whether background tasks are alive: named gauges, one task each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.broker.metrics.registry import Metrics

if TYPE_CHECKING:
    import asyncio

_KIND: Final = ("ottla.broker", "BackgroundTask")


def show_running(metrics: Metrics, task: asyncio.Task[None], name: str) -> None:
    """Show 1 while a task that should never end runs, 0 once it has failed, nothing once it is cancelled."""
    gauge = metrics.gauge(*_KIND, "Running", lambda: not task.done(), task=name)

    def ended(_: object) -> None:
        if task.cancelled() and metrics.get(*_KIND, "Running", task=name) is gauge:
            metrics.remove(*_KIND, "Running", task=name)

    task.add_done_callback(ended)


def heartbeat(metrics: Metrics, now_ms: Callable[[], float], name: str) -> Callable[[], None]:
    """Show how long ago a repeated task last began; what is returned says that it begins now."""
    began = [now_ms()]
    metrics.gauge(*_KIND, "SinceLastRunMs", lambda: now_ms() - began[0], task=name)

    def beat() -> None:
        began[0] = now_ms()

    return beat
