"""Metrics of background tasks."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ottla.broker.metrics import Gauge, Metrics
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.runtime.environment import Environment

KIND = ("ottla.broker", "BackgroundTask")


def value_of(metrics: Metrics, name: str, task: str) -> float | None:
    gauge = metrics.get(*KIND, name, task=task)
    assert gauge is None or isinstance(gauge, Gauge)
    return None if gauge is None else float(gauge.value)


async def test_a_lasting_task_runs_until_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    metrics, go_on = Metrics(), asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        raise ValueError("broken")

    async with asyncio.timeout(60), BackgroundTasks(metrics, Environment().clock) as tasks:
        task = tasks.lasting(work(), "worker")
        assert value_of(metrics, "Running", "worker") == 1

        with caplog.at_level(logging.CRITICAL):
            go_on.set()
            await task

        assert value_of(metrics, "Running", "worker") == 0


async def test_the_gauge_of_a_cancelled_task_is_removed() -> None:
    metrics = Metrics()
    async with asyncio.timeout(60), BackgroundTasks(metrics, Environment().clock) as tasks:
        first = tasks.lasting(asyncio.Event().wait(), "channel")  # type: ignore[arg-type]
        first.cancel()
        second = tasks.lasting(asyncio.Event().wait(), "channel")  # type: ignore[arg-type]
        await asyncio.wait([first])
        assert value_of(metrics, "Running", "channel") == 1

        second.cancel()
        await asyncio.wait([second])

    assert value_of(metrics, "Running", "channel") is None


async def test_a_repeated_task_shows_when_it_last_began() -> None:
    metrics, clock, begun = Metrics(), Environment().clock, asyncio.Event()
    clock.monotonic_ms = lambda: 1000.0  # type: ignore[method-assign]
    async with asyncio.timeout(60), BackgroundTasks(metrics, clock) as tasks:
        tasks.every("pass", 0, begun.set)
        await begun.wait()

        clock.monotonic_ms = lambda: 1250.0  # type: ignore[method-assign]

        assert value_of(metrics, "SinceLastRunMs", "pass") in (0.0, 250.0)
        assert value_of(metrics, "Running", "pass") == 1
