"""The lease of a broker's session, in virtual time over an ensemble in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ottla.broker.cluster.zookeeper_session import SessionLease
from ottla.broker.controller.testing import run_in_virtual_time
from ottla.zookeeper import paths
from ottla.zookeeper.errors import ConnectionLoss
from ottla.zookeeper.testing import MemoryEnsemble, MemorySession

BROKER = 7


class World:
    """A broker that serves under a lease, on a clock that can jump as it does over a sleep."""

    def __init__(self, ensemble: MemoryEnsemble, session: MemorySession) -> None:
        self.ensemble, self.session = ensemble, session
        self.slept_ms = 0.0
        self.until_ms = 0.0
        self.holds = 0
        self.is_held = False

    def now_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000 + self.slept_ms

    def hold(self) -> None:
        self.holds += 1
        self.is_held = True

    def extend(self, until_ms: float) -> None:
        assert until_ms > self.now_ms(), "what was held would not go on"
        self.until_ms, self.is_held = until_ms, False

    async def register(self, session: MemorySession) -> None:
        await session.create(paths.broker(BROKER), ephemeral=True, make_parents=True)

    async def sleep_for(self, share: float) -> None:
        """Stop the process for a share of the session timeout, and let it run for two more."""
        self.slept_ms += share * self.session.timeout_ms
        await self.run_for(2.0)

    async def run_for(self, share: float) -> None:
        await asyncio.sleep(share * self.session.timeout_ms / 1000)


@asynccontextmanager
async def serving() -> AsyncIterator[World]:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as session, asyncio.TaskGroup() as tasks:
        world = World(ensemble, session)
        await world.register(session)
        task = tasks.create_task(SessionLease(session, BROKER, world, world.now_ms).run())
        await asyncio.sleep(0)  # it begins
        yield world
        task.cancel()


def in_virtual_time(story: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def bounded() -> None:
        async with asyncio.timeout(24 * 3600), serving() as world:
            await story(world)

    def test() -> None:
        run_in_virtual_time(bounded())

    test.__name__ = story.__name__
    return test


@in_virtual_time
async def test_a_broker_that_is_awake_serves_always(world: World) -> None:
    for _ in range(1_000):
        await world.run_for(0.04)
        assert world.until_ms > world.now_ms()
    assert world.holds == 0


@in_virtual_time
async def test_after_a_sleep_shorter_than_the_lease_it_goes_on(world: World) -> None:
    await world.sleep_for(0.4)

    assert world.holds == 0


@pytest.mark.parametrize("share", [0.6, 1.0, 1000.0])
def test_after_a_longer_sleep_it_asks_and_goes_on(share: float) -> None:
    @in_virtual_time
    async def story(world: World) -> None:
        await world.sleep_for(share)

        assert (world.holds, world.is_held) == (1, False)

    story()


@in_virtual_time
async def test_it_holds_while_another_has_the_id(world: World) -> None:
    await world.session.delete(paths.broker(BROKER))
    async with world.ensemble.session() as other:
        await world.register(other)

        await world.sleep_for(1.0)
        await world.run_for(100.0)

        assert world.is_held
    assert world.is_held


@in_virtual_time
async def test_it_goes_on_once_it_is_registered_again(world: World) -> None:
    await world.session.delete(paths.broker(BROKER))
    await world.sleep_for(1.0)
    assert world.is_held

    await world.register(world.session)
    await world.run_for(1.0)

    assert not world.is_held


@in_virtual_time
async def test_it_holds_while_zookeeper_is_silent(world: World) -> None:
    async def silent(path: str = "/") -> None:
        raise ConnectionLoss(path, "not connected")

    answering, world.session.sync = world.session.sync, silent  # type: ignore[method-assign]
    await world.sleep_for(1.0)
    assert world.is_held

    world.session.sync = answering  # type: ignore[method-assign]
    await world.run_for(1.0)

    assert not world.is_held


@in_virtual_time
async def test_an_answer_from_before_another_sleep_does_not_count(world: World) -> None:
    answering = world.session.sync

    async def sleeping(path: str = "/") -> None:
        await answering(path)
        world.session.sync = answering  # type: ignore[method-assign]
        world.slept_ms += world.session.timeout_ms
        await world.session.delete(paths.broker(BROKER))
        await world.register(world.session)

    world.session.sync = sleeping  # type: ignore[method-assign]
    await world.sleep_for(1.0)

    assert not world.is_held  # asked once more: `extend` was not called with a time that is over
