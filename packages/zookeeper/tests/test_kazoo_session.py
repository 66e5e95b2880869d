"""KazooSession with servers that hang, vanish, or never existed."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest
from kazoo.retry import ForceRetryError, RetryFailedError

from ottla.zookeeper._kazoo_client import Reconnecting
from ottla.zookeeper.apache_server import NoZooKeeper, RealZooKeeper, find_installation, free_port
from ottla.zookeeper.embedded import EmbeddedCoordinator, Limits
from ottla.zookeeper.errors import (
    ConnectionLoss,
    NoAuth,
    NoNode,
    OperationTimeout,
    SessionExpired,
    Unavailable,
    ValueTooLarge,
)
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.paths import CREATOR_ALL, CREATOR_ALL_WORLD_READ, secure_acl
from ottla.zookeeper.session import OPEN_ACL, Session, SessionState, SetData, WatchEvent
from ottla.zookeeper.testing import MisbehavingProxy, States


@pytest.fixture
def zookeeper_dir(tmp_path: Path) -> Path:
    try:
        find_installation()
    except NoZooKeeper as error:
        pytest.skip(str(error))
    return tmp_path / "zk"


async def test_an_adapter_is_a_session(embedded_server: str) -> None:
    async with KazooSession(embedded_server) as adapter:
        session: Session = adapter
        assert session.connected
        assert session.timeout_ms == 18_000


async def test_operations_are_timed_whether_they_succeed_or_not(embedded_server: str) -> None:
    times_ms: list[float] = []
    async with KazooSession(embedded_server, took_ms=times_ms.append) as session:
        times_ms.clear()
        await session.get("/")
        with pytest.raises(NoNode):
            await session.get("/missing")

    assert len(times_ms) == 2
    assert all(0 < one < 10_000 for one in times_ms)


async def test_an_unreachable_server_is_reported_in_time() -> None:
    started, server = time.monotonic(), f"127.0.0.1:{free_port()}"
    said = rf"no ZooKeeper server answers at {server} \(not connected within 0\.5 s\): .* zookeeper\.connect"
    with pytest.raises(Unavailable, match=said):
        await KazooSession(server, connection_timeout_ms=500).__aenter__()
    assert time.monotonic() - started < 60


async def test_a_closed_session_rejects_operations(embedded_server: str) -> None:
    async with KazooSession(embedded_server) as session:
        states = States(session)
    assert states.seen == [SessionState.CLOSED]
    with pytest.raises(SessionExpired):
        await session.get("/")


async def test_a_value_above_the_limit_is_not_sent(embedded_server: str) -> None:
    async with KazooSession(embedded_server) as session:
        with pytest.raises(ValueTooLarge):
            await session.multi([SetData("/", bytes(500_000)), SetData("/", bytes(500_000))])
        assert session.connected


async def test_a_silent_connection_is_suspended_then_lost_by_the_own_lease() -> None:
    """kazoo alone would report LOST only after it reconnects."""
    limits = Limits(min_session_timeout_ms=2_000)
    async with (
        EmbeddedCoordinator(limits=limits, tick_ms=50) as coordinator,
        MisbehavingProxy(coordinator.connect_string) as proxy,
        KazooSession(proxy.connect_string, session_timeout_ms=2_000) as session,
    ):
        states, bound = States(session), session.bound()
        waiting = asyncio.ensure_future(session.exists("/a"))
        await waiting
        proxy.blackhole = True
        pending = asyncio.ensure_future(session.create("/late"))

        await states.until(SessionState.LOST)

        assert states.seen == [SessionState.SUSPENDED, SessionState.LOST]
        with pytest.raises((ConnectionLoss, OperationTimeout)):
            await pending
        with pytest.raises(SessionExpired):
            await bound.get("/")
        proxy.blackhole = False
        proxy.cut()
        await states.until(SessionState.CONNECTED)


async def test_an_operation_that_waits_for_a_slot_is_not_sent_in_a_later_session(
    embedded_server: str,
) -> None:
    async with (
        MisbehavingProxy(embedded_server) as proxy,
        KazooSession(proxy.connect_string, session_timeout_ms=4_000, max_in_flight=1) as session,
    ):
        states = States(session)
        proxy.swallow_replies = 1
        first = asyncio.ensure_future(session.exists("/a"))
        second = asyncio.ensure_future(session.create("/decided-before", ephemeral=True))
        await asyncio.sleep(0)
        proxy.corrupt_xid = True
        proxy.swallow_replies = 0

        results = await asyncio.gather(first, second, return_exceptions=True)
        await states.until(SessionState.CONNECTED)

        assert isinstance(results[1], SessionExpired | ConnectionLoss)
        assert await session.exists("/decided-before") is None


async def test_a_listener_or_watch_that_raises_does_not_keep_others_from_being_called(
    embedded_server: str,
) -> None:
    async with MisbehavingProxy(embedded_server) as proxy, KazooSession(proxy.connect_string) as session:

        def broken(_: object) -> None:
            raise ValueError("broken")

        events: list[WatchEvent] = []
        session.listen(broken)
        states = States(session)
        await session.exists("/", broken)
        await session.exists("/", events.append)

        proxy.cut()
        await states.until(SessionState.CONNECTED)

        assert len(events) == 1


@pytest.mark.java
async def test_a_stopped_server_suspends_and_then_loses_the_session(zookeeper_dir: Path) -> None:
    async with (
        RealZooKeeper(zookeeper_dir, tick_ms=500) as server,
        KazooSession(server.connect_string, session_timeout_ms=1_500) as session,
    ):
        states = States(session)
        await session.create("/a")
        server.pause()
        try:
            await states.until(SessionState.LOST)
            assert states.seen == [SessionState.SUSPENDED, SessionState.LOST]
        finally:
            server.resume()
        await states.until(SessionState.CONNECTED)

        assert await session.exists("/a") is not None


@pytest.mark.java
async def test_closing_while_the_server_stands_still_is_bounded(zookeeper_dir: Path) -> None:
    async with RealZooKeeper(zookeeper_dir, tick_ms=500) as server:
        session = KazooSession(server.connect_string, session_timeout_ms=10_000)
        await session.__aenter__()
        server.pause()
        try:
            async with asyncio.timeout(60):
                await session.close()
        finally:
            server.resume()


@pytest.mark.java
async def test_a_killed_server_comes_back_with_the_same_session(zookeeper_dir: Path) -> None:
    async with (
        RealZooKeeper(zookeeper_dir) as server,
        KazooSession(server.connect_string, session_timeout_ms=20_000) as session,
    ):
        await session.create("/e", ephemeral=True)
        session_id, states = session.session_id, States(session)
        await server.kill()
        await states.until(SessionState.SUSPENDED)
        with pytest.raises(ConnectionLoss):
            await session.get("/e")

        await server.start()
        await states.until(SessionState.CONNECTED)

        assert session.session_id == session_id
        assert states.seen == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert await session.exists("/e") is not None


async def test_a_server_that_accepts_and_says_nothing_does_not_cost_the_session() -> None:
    async with (
        EmbeddedCoordinator(limits=Limits(1_000)) as coordinator,
        MisbehavingProxy(coordinator.connect_string) as proxy,
        KazooSession(proxy.connect_string, session_timeout_ms=3_000) as session,
    ):
        states, session_id = States(session), session.session_id
        proxy.mute = True
        proxy.cut()
        await states.until(SessionState.SUSPENDED)
        connections = proxy.connections
        async with asyncio.timeout(60):
            await proxy.more_connections_than(connections)
        proxy.mute = False
        await states.until(SessionState.CONNECTED)

        assert session.session_id == session_id
        assert SessionState.LOST not in states.seen


@pytest.mark.java
async def test_secured_znodes_are_readable_and_writable_only_by_their_creator(real_server: str) -> None:
    chroot = f"{real_server}/secured"
    credentials = [("digest", "broker:secret")]
    async with (
        KazooSession(chroot, credentials=credentials, acl_policy=secure_acl) as broker,
        KazooSession(chroot) as stranger,
    ):
        await broker.create("/brokers/topics/t", b"x", make_parents=True)
        await broker.create("/config/users/u", b"secret", make_parents=True)

        assert (await stranger.get("/brokers/topics/t"))[0] == b"x"
        with pytest.raises(NoAuth):
            await stranger.set("/brokers/topics/t", b"y")
        with pytest.raises(NoAuth):
            await stranger.get("/config/users/u")
        assert (await broker.get("/config/users/u"))[0] == b"secret"


def test_which_znodes_are_secret() -> None:
    assert secure_acl("/consumers/g/ids") == OPEN_ACL
    assert secure_acl("/config/users/u") == CREATOR_ALL
    assert secure_acl("/config/users-list") == CREATOR_ALL_WORLD_READ


class Outage:
    """A server that is away until a time; waiting takes no time but that of its clock."""

    def __init__(self, until_s: float) -> None:
        self.s = 0.0
        self.attempts = 0
        self.pauses: list[float] = []
        self._until_s = until_s

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.s += seconds
        return len(self.pauses) > 100_000

    def connect(self) -> float:
        """Try to connect: a refusal takes a millisecond."""
        self.attempts += 1
        self.s += 0.001
        if self.s < self._until_s:
            raise ForceRetryError
        return self.s


@pytest.mark.parametrize("seed", range(20))
def test_an_outage_of_an_hour_is_asked_at_most_twice_a_second(seed: int) -> None:
    outage, jitter = Outage(3_600.0), random.Random(seed)
    retry = Reconnecting(18.0, outage.wait, monotonic_s=lambda: outage.s, share=jitter.random).copy()

    returned_s = retry(outage.connect)

    assert outage.attempts < 2 * 3_600
    assert min(outage.pauses) >= 0.05
    assert returned_s - 3_600 <= 1.1
    assert len(set(outage.pauses[-100:])) > 50  # brokers do not come back all at once


@pytest.mark.parametrize("away_s", [0.05, 0.5, 3.0, 17.0])
def test_a_server_that_is_back_within_the_session_is_found_within_a_twentieth_of_it(away_s: float) -> None:
    outage = Outage(away_s)
    retry = Reconnecting(18.0, outage.wait, monotonic_s=lambda: outage.s, share=lambda: 1.0)

    assert retry(outage.connect) - away_s <= 18 / 20
    assert outage.pauses[0] == pytest.approx(0.1)


def test_a_connection_that_was_made_begins_with_short_pauses_again_and_a_stopped_client_ends() -> None:
    outage = Outage(600.0)
    retry = Reconnecting(18.0, outage.wait, monotonic_s=lambda: outage.s, share=lambda: 1.0)
    retry(outage.connect)
    outage._until_s = 5_000.0
    first = len(outage.pauses)
    retry(outage.connect)

    assert outage.pauses[first] == pytest.approx(0.1)
    with pytest.raises(RetryFailedError):
        Reconnecting(18.0, lambda _: True)(Outage(1.0).connect)
