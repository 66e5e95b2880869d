"""The session in memory, which the controller's tests and the simulator use."""

from __future__ import annotations

import asyncio

import pytest

from ottla.zookeeper.errors import (
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    ValueTooLarge,
)
from ottla.zookeeper.session import (
    Check,
    Create,
    EventType,
    Session,
    SessionState,
    SetData,
    Stat,
    WatchEvent,
)
from ottla.zookeeper.testing import MemoryEnsemble


async def test_a_memory_session_is_a_session() -> None:
    async with MemoryEnsemble().session() as memory:
        session: Session = memory

        assert await session.create("/a/b", b"x", make_parents=True) == "/a/b"
        data, stat = await session.get("/a/b")
        assert (data, stat.version, stat.data_length) == (b"x", 0, 1)
        assert (await session.set("/a/b", b"y", 0)).version == 1
        assert await session.children("/a") == ["b"]
        with pytest.raises(BadVersion):
            await session.delete("/a/b", 0)
        with pytest.raises(NotEmpty):
            await session.delete("/a")
        with pytest.raises(NodeExists):
            await session.create("/a")
        await session.delete("/a/b", 1)
        assert await session.exists("/a/b") is None
        with pytest.raises(NoNode):
            await session.get("/a/b")
        await session.sync()


async def test_a_multi_raises_the_error_of_the_failed_operation() -> None:
    async with MemoryEnsemble().session() as session:
        with pytest.raises(BadVersion) as caught:
            await session.multi([Create("/a"), Check("/", 7), Create("/b")])

        assert caught.value.operation_index == 1
        assert await session.children("/") == ["zookeeper"]


async def test_a_multi_gives_the_czxid_of_a_registration() -> None:
    async with MemoryEnsemble().session() as session:
        path, stat = await session.multi([Create("/id", b"", ephemeral=True), SetData("/id", b"data")])

        assert path == "/id"
        assert isinstance(stat, Stat)
        assert stat.czxid == stat.mzxid
        assert stat.ephemeral_owner == session.session_id


async def test_watches_fire_once() -> None:
    async with MemoryEnsemble().session() as session:
        events: list[WatchEvent] = []
        await session.exists("/a", events.append)
        await session.create("/a")
        await session.delete("/a")
        await session.sync()

        assert [(event.type, event.path) for event in events] == [(EventType.CREATED, "/a")]


async def test_a_lost_reply_leaves_the_write_done() -> None:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as session:
        ensemble.lose_next_reply(session)
        with pytest.raises(ConnectionLoss):
            await session.create("/a")
        await session.wait_connected()

        assert await session.exists("/a") is not None
        assert session.session_number == 0


async def test_a_lost_request_leaves_nothing() -> None:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as session:
        ensemble.lose_next_request(session)
        with pytest.raises(ConnectionLoss):
            await session.create("/a")
        await session.wait_connected()

        assert await session.exists("/a") is None


async def test_reconnecting_fires_every_armed_watch_with_none() -> None:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as session, ensemble.session() as other:
        events: list[WatchEvent] = []
        await session.children("/", events.append)
        ensemble.disconnect(session)
        await other.create("/a")
        assert events == []

        ensemble.reconnect(session)
        await session.wait_connected()
        await other.create("/b")
        await session.sync()

        assert [event.type for event in events] == [EventType.NONE]


async def test_an_expired_session_loses_its_ephemerals_and_its_decisions() -> None:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as session, ensemble.session() as other:
        states: list[SessionState] = []
        session.listen(lambda change: states.append(change.state))
        first_id, bound = session.session_id, session.bound()
        await session.create("/e", ephemeral=True)

        ensemble.expire(session)
        await session.wait_connected()

        assert states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
        assert session.session_id != first_id
        assert await other.exists("/e") is None
        with pytest.raises(SessionExpired):
            await bound.create("/decided-before")


async def test_a_session_expired_while_away_finds_out_when_it_returns() -> None:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as session:
        ensemble.disconnect(session)
        ensemble.expire(session)
        assert session.state is SessionState.SUSPENDED

        ensemble.reconnect(session)
        await session.wait_connected()

        assert session.session_number == 1


async def test_the_lease_ends_a_session_that_is_away_too_long() -> None:
    ensemble = MemoryEnsemble()
    async with ensemble.session(timeout_ms=20) as session:
        lost = asyncio.Event()
        session.listen(lambda change: lost.set() if change.state is SessionState.LOST else None)
        session_id = session.session_id

        ensemble.disconnect(session)
        async with asyncio.timeout(60):
            await lost.wait()
        ensemble.reconnect(session)
        await session.wait_connected()

        assert session.session_number == 1
        assert session.session_id == session_id


async def test_operations_in_flight_end_when_the_quorum_goes() -> None:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as session:
        pending = asyncio.ensure_future(session.create("/a"))
        await asyncio.sleep(0)
        ensemble.stop()

        with pytest.raises(ConnectionLoss):
            await pending
        with pytest.raises(ConnectionLoss):
            await session.get("/")
        ensemble.start()
        await session.wait_connected()


async def test_large_values_are_refused_before_they_are_sent() -> None:
    async with MemoryEnsemble().session() as session:
        with pytest.raises(ValueTooLarge):
            await session.create("/a", bytes(900_001))


async def test_the_same_run_gives_the_same_history() -> None:
    async def run() -> list[object]:
        ensemble = MemoryEnsemble()
        async with ensemble.session() as one, ensemble.session() as two:
            await asyncio.gather(
                *(each.create(f"/{n}") for n in range(5) for each in (one, two)), return_exceptions=True
            )
        return list(ensemble.history)

    assert await run() == await run()
