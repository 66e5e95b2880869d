"""Two brokers with one id: the second at its start, or the first after it has slept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerFailed, BrokerProcess
from ottla.zookeeper import paths
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.kazoo_session import KazooSession

TIMEOUT_S = 60.0


@pytest.fixture
async def coordinator() -> AsyncIterator[EmbeddedCoordinator]:
    async with EmbeddedCoordinator() as coordinator:
        yield coordinator


def broker_on(coordinator: EmbeddedCoordinator, directory: Path) -> BrokerProcess:
    return BrokerProcess(directory, {"broker.id": "7", "zookeeper.connect": coordinator.connect_string})


async def expire_the_broker(coordinator: EmbeddedCoordinator) -> None:
    async with KazooSession(coordinator.connect_string) as session:
        stat = await session.exists(paths.broker(7))
    assert stat is not None
    coordinator.expire(stat.ephemeral_owner)


async def test_a_broker_that_slept_while_another_took_its_id_ends_with_one_line(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    slept, successor = broker_on(coordinator, tmp_path / "slept"), broker_on(coordinator, tmp_path / "next")
    await asyncio.to_thread(slept.start)
    slept.pause()
    await expire_the_broker(coordinator)
    await asyncio.to_thread(successor.start)
    reader, writer = await asyncio.open_connection(slept.host, slept.port)

    slept.resume()
    status = await asyncio.to_thread(slept.wait, TIMEOUT_S)

    assert status == 1
    said = slept.log_file.read_text()
    assert "Traceback" not in said
    assert slept.last_words(1).startswith("Error: a broker with id 7 is registered already")
    async with asyncio.timeout(TIMEOUT_S):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    async with KazooSession(coordinator.connect_string) as session:
        assert await session.exists(paths.broker(7)) is not None
    await asyncio.to_thread(successor.stop)


async def test_a_broker_that_slept_past_its_session_registers_again(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    broker = broker_on(coordinator, tmp_path / "slept")
    await asyncio.to_thread(broker.start)
    async with KazooSession(coordinator.connect_string) as session:
        before = await session.exists(paths.broker(7))
        assert before is not None
        broker.pause()
        registered = asyncio.Event()
        coordinator.expire(before.ephemeral_owner)
        assert await session.exists(paths.broker(7), lambda _: registered.set()) is None

        broker.resume()
        async with asyncio.timeout(TIMEOUT_S):
            await registered.wait()

        after = await session.exists(paths.broker(7))
        assert after is not None
        assert after.czxid > before.czxid
    await asyncio.to_thread(broker.stop)


async def test_a_second_broker_with_the_same_id_is_refused_with_one_line(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    first, second = broker_on(coordinator, tmp_path / "first"), broker_on(coordinator, tmp_path / "second")
    await asyncio.to_thread(first.start)

    with pytest.raises(BrokerFailed):
        await asyncio.to_thread(second.start)

    (line,) = second.log_file.read_text().splitlines()
    assert line.startswith("Error: a broker with id 7 is registered already")
    await asyncio.to_thread(first.stop)
