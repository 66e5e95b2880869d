"""How late the event loop runs: what a garbage-collection log is to a JVM."""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.broker.metrics.registry import Metrics

SAMPLE_INTERVAL_MS: Final = 100


async def watch_event_loop_lag(metrics: Metrics) -> None:
    """Measure for ever how much later than asked a timer of the running loop fires.

    The lag goes into `ottla.broker:type=EventLoop,name=LagMs`: whatever holds the loop, holds
    this timer too.
    """
    loop = asyncio.get_running_loop()
    lag = metrics.histogram("ottla.broker", "EventLoop", "LagMs")
    while True:
        due = loop.time() + SAMPLE_INTERVAL_MS / 1000
        await asyncio.sleep(SAMPLE_INTERVAL_MS / 1000)
        lag.update(max(0.0, (loop.time() - due) * 1000))
