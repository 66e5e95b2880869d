"""The watchdog distinguishes a blocked loop from a busy one."""

from __future__ import annotations

import asyncio
import threading
import time

from ottla.zookeeper.watchdog import LoopWatchdog


async def test_a_blocked_loop_is_reported_and_then_ended() -> None:
    told: list[str] = []
    dead = threading.Event()

    def die(_: float) -> None:
        told.append("dead")
        dead.set()

    async with LoopWatchdog(400, on_slow=lambda _: told.append("slow"), on_dead=die):
        dead.wait(10)  # blocks the loop, which is what is tested

    assert told == ["slow", "dead"]


async def test_a_busy_loop_is_left_alone() -> None:
    told: list[float] = []

    async with LoopWatchdog(300, on_slow=told.append, on_dead=told.append):
        until = time.monotonic() + 0.8
        while time.monotonic() < until:
            time.sleep(0.02)  # noqa: ASYNC251
            await asyncio.sleep(0)

    assert told == []
