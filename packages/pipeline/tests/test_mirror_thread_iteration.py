"""Rows for which a Spark task has to wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator

import pytest

from ottla.pipeline.jobs.mirroring.spark_task import iterate_in_thread

LONG_S = 30


async def _all(things: Iterable[int | None]) -> list[int | None]:
    return [each async for each in iterate_in_thread(things)]


def test_the_loop_goes_on_while_something_is_waited_for() -> None:
    async def main() -> list[int | None]:
        has_gone_on = threading.Event()

        def slow() -> Iterator[int]:
            yield 1
            asyncio.run_coroutine_threadsafe(say(), loop)
            assert has_gone_on.wait(LONG_S), "the loop stands still"
            yield 2

        async def say() -> None:
            has_gone_on.set()

        loop = asyncio.get_running_loop()
        return await _all(slow())

    assert asyncio.run(main()) == [1, 2]


def test_all_things_come_in_their_order() -> None:
    things = [3, None, 1, 0]
    assert asyncio.run(_all(things)) == things
    assert asyncio.run(_all([])) == []


def test_an_error_of_a_row_is_raised() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise EOFError("the other side is gone")

    with pytest.raises(EOFError, match="is gone"):
        asyncio.run(_all(broken()))
