"""The lag of the event loop: as telling as a garbage-collection log of a JVM."""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.broker.metrics.registry import Metrics

SAMPLE_INTERVAL_MS: Final = 100


async def watch_event_loop_lag(metrics: Metrics) -> None:
    """Measure until cancelled how much later than due a timer of the running loop fires.

    The lag is `ottla.broker:type=EventLoop,name=LagMs`: a task that blocks the loop also delays this timer.
    """
    loop = asyncio.get_running_loop()
    lag = metrics.histogram("ottla.broker", "EventLoop", "LagMs")
    while True:
        due = loop.time() + SAMPLE_INTERVAL_MS / 1000
        await asyncio.sleep(SAMPLE_INTERVAL_MS / 1000)
        lag.update(max(0.0, (loop.time() - due) * 1000))
