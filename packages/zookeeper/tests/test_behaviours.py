"""Behaviour of ZooKeeper, tested with the embedded coordinator and with a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ottla.zookeeper.errors import (
    BadVersion,
    ConnectionLoss,
    IllegalName,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    OperationTimeout,
    SessionExpired,
)
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.session import (
    Check,
    Create,
    Delete,
    EventType,
    Operation,
    SessionState,
    SetData,
    Stat,
    WatchEvent,
)
from ottla.zookeeper.testing import MisbehavingProxy, States

BOUND_S = 60


class Heard:
    """Collects watch events and waits for them."""

    def __init__(self) -> None:
        self.events: list[tuple[EventType, str]] = []
        self._came = asyncio.Event()

    def __call__(self, event: WatchEvent) -> None:
        self.events.append((event.type, event.path))
        self._came.set()

    async def one(self) -> tuple[EventType, str]:
        async with asyncio.timeout(BOUND_S):
            await self._came.wait()
        assert len(self.events) == 1
        return self.events[0]


@pytest.fixture
async def session(connect: str) -> AsyncIterator[KazooSession]:
    async with KazooSession(connect, connection_timeout_ms=BOUND_S * 1000) as session:
        yield session


@pytest.fixture
async def other(connect: str) -> AsyncIterator[KazooSession]:
    async with KazooSession(connect, connection_timeout_ms=BOUND_S * 1000) as session:
        yield session


@pytest.fixture
async def proxy(hosts: str) -> AsyncIterator[MisbehavingProxy]:
    async with MisbehavingProxy(hosts) as proxy:
        yield proxy


@pytest.fixture
async def proxied(proxy: MisbehavingProxy, connect: str) -> AsyncIterator[KazooSession]:
    chroot = connect.partition("/")[2]
    async with KazooSession(
        f"{proxy.connect_string}/{chroot}", session_timeout_ms=4_000, connection_timeout_ms=BOUND_S * 1000
    ) as session:
        yield session


# -- znodes


async def test_a_created_znode_has_its_data_and_a_fresh_stat(session: KazooSession) -> None:
    assert await session.create("/a", b"x") == "/a"

    data, stat = await session.get("/a")

    assert data == b"x"
    assert (stat.version, stat.cversion, stat.aversion, stat.ephemeral_owner) == (0, 0, 0, 0)
    assert (stat.data_length, stat.num_children) == (1, 0)
    assert stat.czxid == stat.mzxid == stat.pzxid > 0
    assert stat.ctime_ms == stat.mtime_ms > 1_600_000_000_000


async def test_creating_twice_is_refused(session: KazooSession) -> None:
    await session.create("/a")
    with pytest.raises(NodeExists):
        await session.create("/a")


async def test_creating_without_a_parent_is_refused(session: KazooSession) -> None:
    with pytest.raises(NoNode):
        await session.create("/a/b")


async def test_parents_are_made_on_request(session: KazooSession) -> None:
    assert await session.create("/a/b/c", b"x", make_parents=True) == "/a/b/c"
    assert (await session.get("/a"))[0] == b""


async def test_a_missing_znode_is_none_to_exists_and_an_error_to_the_others(session: KazooSession) -> None:
    assert await session.exists("/no") is None
    for verb in (session.get("/no"), session.children("/no"), session.set("/no", b""), session.delete("/no")):
        with pytest.raises(NoNode):
            await verb


async def test_setting_raises_the_version_and_keeps_the_creation(session: KazooSession) -> None:
    await session.create("/a", b"1")
    before = await session.exists("/a")
    assert before is not None

    after = await session.set("/a", b"22", 0)

    assert (after.version, after.data_length, after.czxid) == (1, 2, before.czxid)
    assert after.mzxid > before.mzxid
    assert after == await session.exists("/a")


async def test_a_wrong_version_stops_set_and_delete(session: KazooSession) -> None:
    await session.create("/a")
    await session.set("/a", b"", 0)
    with pytest.raises(BadVersion):
        await session.set("/a", b"", 0)
    with pytest.raises(BadVersion):
        await session.delete("/a", 0)
    await session.delete("/a", 1)


async def test_a_znode_with_children_stays(session: KazooSession) -> None:
    await session.create("/a/b", make_parents=True)
    with pytest.raises(NotEmpty):
        await session.delete("/a")


async def test_children_are_names_in_order(session: KazooSession) -> None:
    for name in ("c", "a", "b"):
        await session.create(f"/p/{name}", make_parents=True)
    assert await session.children("/p") == ["a", "b", "c"]


async def test_a_parent_counts_what_happens_to_its_children(session: KazooSession) -> None:
    await session.create("/p")
    await session.create("/p/a")
    await session.create("/p/b")
    await session.delete("/p/a")
    _, stat = await session.get("/p")
    assert (stat.cversion, stat.num_children, stat.version) == (3, 1, 0)
    assert stat.pzxid > stat.mzxid


async def test_empty_data_stays_empty(session: KazooSession) -> None:
    await session.create("/a")
    await session.set("/a", b"x")
    await session.set("/a", b"")
    assert (await session.get("/a"))[0] == b""


async def test_large_values_come_back_whole(session: KazooSession) -> None:
    value = bytes(range(256)) * 3500
    await session.create("/a", value)
    assert (await session.get("/a"))[0] == value


async def test_names_may_contain_any_letters(session: KazooSession) -> None:
    await session.create("/grüße-日本")
    assert await session.children("/") == ["grüße-日本"]


async def test_illegal_paths_are_rejected(session: KazooSession) -> None:
    for path in ("a", "/a/", "//a", "/a/../b", "/a\0b", ""):
        with pytest.raises(IllegalName):
            await session.get(path)


# -- sequential and ephemeral


async def test_sequential_names_ascend_even_after_deletes(session: KazooSession) -> None:
    first = await session.create("/s-", sequential=True)
    await session.delete(first)
    second = await session.create("/s-", sequential=True)
    other = await session.create("/other-", sequential=True)

    assert [first, second, other] == ["/s-0000000000", "/s-0000000001", "/other-0000000002"]


async def test_a_sequential_name_may_be_only_its_number(session: KazooSession) -> None:
    await session.create("/q")
    assert await session.create("/q/", sequential=True) == "/q/0000000000"
    assert await session.multi([Create("/q/", sequential=True)]) == ["/q/0000000001"]


async def test_an_ephemeral_shows_its_owner(session: KazooSession) -> None:
    await session.create("/e", ephemeral=True)
    stat = await session.exists("/e")
    assert stat is not None
    assert stat.ephemeral_owner == session.session_id != 0


async def test_an_ephemeral_has_no_children(session: KazooSession) -> None:
    await session.create("/e", ephemeral=True)
    with pytest.raises(NoChildrenForEphemerals):
        await session.create("/e/a")


async def test_ephemerals_go_when_their_session_is_closed(session: KazooSession, connect: str) -> None:
    heard = Heard()
    async with KazooSession(connect) as owner:
        await owner.create("/e", ephemeral=True)
        await session.exists("/e", heard)
    assert await heard.one() == (EventType.DELETED, "/e")
    assert await session.exists("/e") is None


async def test_ephemerals_survive_a_lost_connection(
    session: KazooSession, proxied: KazooSession, proxy: MisbehavingProxy
) -> None:
    await proxied.create("/e", ephemeral=True)
    session_id, states = proxied.session_id, States(proxied)

    proxy.cut()
    await states.until(SessionState.CONNECTED)

    assert states.seen == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert proxied.session_id == session_id
    assert proxied.session_number == 0
    assert await session.exists("/e") is not None


# -- watches


async def test_a_data_watch_fires_once(session: KazooSession, other: KazooSession) -> None:
    await session.create("/a")
    heard = Heard()
    await session.get("/a", heard)

    await other.set("/a", b"1")
    await other.set("/a", b"2")

    assert await heard.one() == (EventType.CHANGED, "/a")
    await session.sync()
    assert len(heard.events) == 1


async def test_a_data_watch_fires_for_the_deletion(session: KazooSession, other: KazooSession) -> None:
    await session.create("/a")
    heard = Heard()
    await session.exists("/a", heard)
    await other.delete("/a")
    assert await heard.one() == (EventType.DELETED, "/a")


async def test_exists_arms_a_watch_for_the_creation(session: KazooSession, other: KazooSession) -> None:
    heard = Heard()
    assert await session.exists("/a", heard) is None
    await other.create("/a")
    assert await heard.one() == (EventType.CREATED, "/a")


async def test_reading_a_missing_znode_arms_nothing(session: KazooSession, other: KazooSession) -> None:
    heard = Heard()
    with pytest.raises(NoNode):
        await session.get("/a", heard)
    with pytest.raises(NoNode):
        await session.children("/a", heard)
    await other.create("/a")
    await session.sync()
    assert heard.events == []
    assert session.armed_watches == 0


async def test_a_child_watch_fires_for_children_and_not_for_data(
    session: KazooSession, other: KazooSession
) -> None:
    await session.create("/p")
    heard = Heard()
    await session.children("/p", heard)
    await other.set("/p", b"x")
    await session.sync()
    assert heard.events == []
    await other.create("/p/a")
    assert await heard.one() == (EventType.CHILD, "/p")


async def test_a_data_watch_does_not_fire_for_children(session: KazooSession, other: KazooSession) -> None:
    await session.create("/p")
    heard = Heard()
    await session.get("/p", heard)
    await other.create("/p/a")
    await session.sync()
    assert heard.events == []


async def test_a_child_watch_fires_for_the_deletion_of_its_znode(
    session: KazooSession, other: KazooSession
) -> None:
    await session.create("/p")
    heard = Heard()
    await session.children("/p", heard)
    await other.delete("/p")
    assert await heard.one() == (EventType.DELETED, "/p")


async def test_one_callable_for_one_path_gets_one_event(session: KazooSession, other: KazooSession) -> None:
    await session.create("/a")
    heard = Heard()
    for _ in range(20):
        await session.get("/a", heard)
    await other.set("/a", b"x")
    assert await heard.one() == (EventType.CHANGED, "/a")
    await session.sync()
    assert len(heard.events) == 1


async def test_reconnecting_fires_what_was_armed_with_none(
    session: KazooSession, proxied: KazooSession, proxy: MisbehavingProxy
) -> None:
    await proxied.create("/a")
    heard, states = Heard(), States(proxied)
    await proxied.get("/a", heard)

    proxy.cut()
    await states.until(SessionState.SUSPENDED)
    assert heard.events == []
    await session.set("/a", b"missed")

    assert await heard.one() == (EventType.NONE, "/a")
    assert proxied.connected


# -- multi


async def test_a_multi_applies_all_and_returns_each_result(session: KazooSession) -> None:
    await session.create("/gone")
    operations: list[Operation] = [Create("/a", b"1"), SetData("/a", b"2"), Check("/a", 1), Delete("/gone")]

    path, stat, *rest = await session.multi(operations)

    assert (path, rest) == ("/a", [None, None])
    assert isinstance(stat, Stat)
    assert stat.version == 1
    assert stat.czxid == stat.mzxid
    assert await session.exists("/a") == stat


async def test_a_multi_applies_nothing_when_one_operation_fails(session: KazooSession) -> None:
    await session.create("/a")
    with pytest.raises(NodeExists) as caught:
        await session.multi([SetData("/a", b"x"), Create("/b"), Create("/a"), Create("/c")])

    assert caught.value.operation_index == 2
    assert await session.children("/") == ["a"]
    assert (await session.get("/a"))[1].version == 0


async def test_a_failed_check_stops_a_multi(session: KazooSession) -> None:
    await session.create("/epoch")
    with pytest.raises(BadVersion) as caught:
        await session.multi([Check("/epoch", 5), Create("/b")])
    assert caught.value.operation_index == 0
    with pytest.raises(NoNode):
        await session.multi([Check("/no", -1)])
    assert await session.multi([Check("/epoch", 0)]) == [None]


async def test_a_multi_sees_its_own_earlier_operations(session: KazooSession) -> None:
    results = await session.multi(
        [Create("/p"), Create("/p/s-", sequential=True), Create("/p/s-", sequential=True)]
    )
    assert results == ["/p", "/p/s-0000000000", "/p/s-0000000001"]
    with pytest.raises(NotEmpty):
        await session.multi([Delete("/p/s-0000000000"), Delete("/p")])
    assert (
        await session.multi([Delete("/p/s-0000000000"), Delete("/p/s-0000000001"), Delete("/p")])
        == [None] * 3
    )


async def test_a_multi_fires_watches(session: KazooSession, other: KazooSession) -> None:
    heard, children = Heard(), Heard()
    await session.exists("/a", heard)
    await session.children("/", children)
    await other.multi([Create("/a"), SetData("/a", b"x"), Create("/b")])
    assert await heard.one() == (EventType.CREATED, "/a")
    assert await children.one() == (EventType.CHILD, "/")
    assert (await session.get("/a"))[0] == b"x"


async def test_an_empty_multi_is_nothing(session: KazooSession) -> None:
    assert await session.multi([]) == []


# -- sessions


async def test_sessions_have_different_ids(session: KazooSession, other: KazooSession) -> None:
    assert session.session_id != other.session_id


async def test_paths_are_seen_from_the_chroot(session: KazooSession, hosts: str, connect: str) -> None:
    await session.create("/a")
    chroot = connect.removeprefix(hosts)
    async with KazooSession(hosts) as outside:
        assert await outside.exists(f"{chroot}/a") is not None


async def test_a_thousand_operations_at_once_are_answered_in_order(session: KazooSession) -> None:
    await session.create("/p")
    creations = [session.create(f"/p/{number:04}") for number in range(1000)]
    paths = await asyncio.gather(*creations)
    assert paths == [f"/p/{number:04}" for number in range(1000)]
    assert len(await session.children("/p")) == 1000


async def test_after_a_lost_reply_the_ephemeral_is_there_and_mine(
    proxied: KazooSession, proxy: MisbehavingProxy
) -> None:
    proxy.cut_at_reply = True
    with pytest.raises(ConnectionLoss):
        await proxied.create("/e", ephemeral=True)
    await proxied.wait_connected(BOUND_S * 1000)

    with pytest.raises(NodeExists):
        await proxied.create("/e", ephemeral=True)
    stat = await proxied.exists("/e")
    assert stat is not None
    assert stat.ephemeral_owner == proxied.session_id


async def test_an_answer_that_never_comes_is_a_timeout(connect: str, proxy: MisbehavingProxy) -> None:
    chroot = connect.partition("/")[2]
    hosts = f"{proxy.connect_string}/{chroot}"
    async with KazooSession(hosts, session_timeout_ms=20_000, operation_timeout_ms=300) as session:
        proxy.swallow_replies = 1
        with pytest.raises(OperationTimeout):
            await session.create("/a")


async def test_an_answer_with_a_wrong_xid_starts_a_new_session(
    proxied: KazooSession, proxy: MisbehavingProxy
) -> None:
    states = States(proxied)
    before, bound = proxied.session_id, proxied.bound()

    proxy.corrupt_xid = True
    with pytest.raises((ConnectionLoss, SessionExpired)):
        await proxied.create("/a")
    await states.until(SessionState.CONNECTED)

    assert SessionState.LOST in states.seen
    assert proxied.session_id != before
    assert await proxied.exists("/a") is not None
    with pytest.raises(SessionExpired):
        await bound.exists("/a")


async def test_a_session_without_a_connection_expires_and_says_so(
    session: KazooSession, proxy: MisbehavingProxy, connect: str
) -> None:
    chroot = connect.partition("/")[2]
    hosts = f"{proxy.connect_string}/{chroot}"
    async with KazooSession(hosts, session_timeout_ms=1_000, connection_timeout_ms=BOUND_S * 1000) as owner:
        states = States(owner)
        gone, bound, before = Heard(), owner.bound(), owner.session_id
        await owner.create("/e", ephemeral=True)
        await session.exists("/e", gone)

        proxy.refuse = True
        proxy.cut()
        assert await gone.one() == (EventType.DELETED, "/e")
        await states.until(SessionState.LOST)
        with pytest.raises(ConnectionLoss):
            await owner.exists("/e")
        proxy.refuse = False
        await states.until(SessionState.CONNECTED)

        assert states.seen[:2] == [SessionState.SUSPENDED, SessionState.LOST]
        assert owner.session_id != before
        assert owner.session_number >= 1
        with pytest.raises(SessionExpired):
            await bound.create("/decided-before")
