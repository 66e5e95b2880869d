"""The event loop with virtual time."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator

import pytest

from ottla.streams.testing import NeverSettles
from ottla.streams.testing.virtual_loop import START_S, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(patience_s=10, max_turns=1_000)
    yield loop
    loop.close()


def test_timers_run_at_their_time_and_not_beyond_the_limit(loop: VirtualLoop) -> None:
    seen: list[float] = []
    for at_s in (5, 1, 7_200, 100_000):
        loop.call_later(at_s, lambda: seen.append(loop.time() - START_S))

    loop.drive(START_S + 7_200)

    assert seen == [1, 5, 7_200]
    assert loop.time() == START_S + 7_200
    loop.drive(START_S + 200_000)
    assert seen[-1] == 100_000


def test_it_stops_as_soon_as_the_condition_is_true(loop: VirtualLoop) -> None:
    done: list[bool] = []
    loop.call_later(60, done.append, True)

    loop.drive(math.inf, until=lambda: bool(done))

    assert loop.time() == START_S + 60


def test_a_task_that_never_waits_is_told_instead_of_running_for_ever(loop: VirtualLoop) -> None:
    def again() -> None:
        loop.call_soon(again)

    again()

    with pytest.raises(NeverSettles, match="no time passed in 1,000 turns"):
        loop.drive(START_S + 1)


def test_time_stands_still_while_a_thread_works(loop: VirtualLoop) -> None:
    ended: list[float] = []

    async def work() -> None:
        await asyncio.to_thread(time.sleep, 0.05)
        ended.append(loop.time())

    async def tick() -> None:
        await asyncio.sleep(0.001)

    tasks = [loop.create_task(work()), loop.create_task(tick())]
    loop.drive(START_S + 3_600)

    assert all(task.done() for task in tasks)
    assert ended == [START_S]
    loop.finish(loop.shutdown_default_executor())
