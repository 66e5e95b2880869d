from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ottla.client.context_manager_task import ContextTask


async def test_a_block_stays_open_from_start_to_stop() -> None:
    heard: list[str] = []

    @asynccontextmanager
    async def block() -> AsyncIterator[None]:
        heard.append("in")
        yield
        heard.append("out")

    running = ContextTask(block())
    await running.start()
    assert heard == ["in"]
    await running.stop()
    await running.stop()
    assert heard == ["in", "out"]


async def test_a_start_that_fails_says_why() -> None:
    @asynccontextmanager
    async def block() -> AsyncIterator[None]:
        if complaint:
            raise ValueError(complaint)
        yield

    complaint = "no"

    with pytest.raises(ValueError, match="no"):
        await ContextTask(block()).start()


async def test_a_start_that_is_cancelled_leaves_nothing_behind() -> None:
    waiting, left = asyncio.Event(), asyncio.Event()
    complaints: list[object] = []

    @asynccontextmanager
    async def block() -> AsyncIterator[None]:
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        yield

    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    starting = asyncio.create_task(ContextTask(block()).start())
    await waiting.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert left.is_set()
    del starting
    assert not complaints
