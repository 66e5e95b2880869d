"""ZooKeeper in memory, for tests and simulations: no sockets, no threads, a deterministic order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from ottla.zookeeper._operations import Read, SessionOperations
from ottla.zookeeper._session_state import SessionStateMachine
from ottla.zookeeper.embedded.data_tree import Applied, Transaction, Tree
from ottla.zookeeper.errors import ZooKeeperError
from ottla.zookeeper.session import (
    Acl,
    Create,
    Operation,
    Session,
    SessionState,
    SetData,
    Stat,
    StateChange,
    Watch,
)
from ottla.zookeeper.watches import TreeEvent, WatchTable

T = TypeVar("T")


class MemoryEnsemble:
    """An ensemble over the state machine of the embedded coordinator, with faults on demand.

    Requests and responses take one iteration of the loop each way, or `delay_ms()` of loop time, in order per
    session. `now_ms` stamps ctime and mtime. Sessions expire only by `expire`. A disconnected session
    presumes itself lost after its timeout of loop time.
    """

    def __init__(
        self, *, now_ms: Callable[[], int] = lambda: 0, delay_ms: Callable[[], float] | None = None
    ) -> None:
        self.tree = Tree()
        self.history: list[Transaction] = []
        self._now_ms = now_ms
        self._delay_ms = delay_ms
        self._watches: WatchTable[MemorySession] = WatchTable()
        self._last_session_id = 0x100000000
        self._sessions: list[MemorySession] = []
        self._up = True

    def session(self, timeout_ms: int = 18_000) -> MemorySession:
        """Return a session that connects on the next iteration of the loop; close it or use `async with`."""
        session = MemorySession(self, timeout_ms)
        self._sessions.append(session)
        self.reconnect(session)
        return session

    # -- faults

    def disconnect(self, session: MemorySession) -> None:
        """Break the connection: messages in flight are lost, the session and its ephemerals stay."""
        self._watches.forget(session)
        session.connection_broke()

    def reconnect(self, session: MemorySession) -> None:
        """Connect the session again, as a new one if it expired meanwhile."""
        session.later(lambda: self._connect(session), new_connection=True)

    def expire(self, session: MemorySession, *, reconnect: bool = True) -> None:
        """Expire the session at the server. A disconnected client learns of it when it reconnects."""
        was_connected = session.connected
        self._close(session.server_session_id)
        if was_connected:
            self.disconnect(session)
            session.lease_ended()
            if reconnect:
                self.reconnect(session)

    def lose_next_reply(self, session: MemorySession, *, reconnect: bool = True) -> None:
        """Execute the session's next request, then break the connection instead of responding."""
        session.fault = _Fault(carried_out=True, reconnect=reconnect)

    def lose_next_request(self, session: MemorySession, *, reconnect: bool = True) -> None:
        """Break the connection before the session's next request is executed."""
        session.fault = _Fault(carried_out=False, reconnect=reconnect)

    def stop(self) -> None:
        """Take the quorum away: every session is disconnected and cannot reconnect."""
        self._up = False
        for session in self._sessions:
            self.disconnect(session)

    def start(self) -> None:
        """Give the quorum back: every session reconnects."""
        self._up = True
        for session in self._sessions:
            if not session.connected:
                self.reconnect(session)

    # -- the server's side, called by MemorySession

    def delay_s(self) -> float:
        """The delay of the next message."""
        return self._delay_ms() / 1000 if self._delay_ms is not None else 0.0

    def read(self, session: MemorySession, what: Read, path: str, watch: bool) -> object:
        """Read, and arm the watch as ZooKeeper does: on a missing znode only for exists."""
        node = self.tree.nodes.get(path) if what is Read.EXISTS else self.tree.node(path)
        if watch:
            self._watches.arm(what.watch_kind, path, session)
        if what is Read.EXISTS:
            return None if node is None else node.stat()
        assert node is not None
        return sorted(node.children) if what is Read.CHILDREN else (node.data, node.stat())

    def write(self, session: MemorySession, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """Plan and apply."""
        transaction = self.tree.plan(operations, session.server_session_id, self._now_ms())
        results = self._apply(transaction).results
        return [
            path if isinstance(operation, Create) else stat if isinstance(operation, SetData) else None
            for operation, (path, stat) in zip(operations, results, strict=True)
        ]

    def acl(self, path: str) -> tuple[tuple[Acl, ...], Stat]:
        """Return the ACL and the stat of a znode."""
        node = self.tree.node(path)
        return node.acl, node.stat()

    def set_acl(self, path: str, acl: tuple[Acl, ...], version: int) -> None:
        """Replace an ACL; they are not checked."""
        self._apply(self.tree.plan_acl(path, acl, version, self._now_ms()))

    def leave(self, session: MemorySession) -> None:
        """Close a session."""
        self._watches.forget(session)
        self._close(session.server_session_id)
        if session in self._sessions:
            self._sessions.remove(session)

    def _connect(self, session: MemorySession) -> None:
        if not self._up or session not in self._sessions:
            return
        if session.server_session_id not in self.tree.sessions:
            self._last_session_id += 1
            opening = self.tree.plan_session(self._last_session_id, b"", session.timeout_ms, self._now_ms())
            self._apply(opening)
            session.server_session_id = self._last_session_id
        session.connection_made()

    def _close(self, session_id: int) -> None:
        if session_id in self.tree.sessions:
            self._apply(self.tree.plan_close(session_id, self._now_ms()))

    def _apply(self, transaction: Transaction) -> Applied:
        applied = self.tree.apply(transaction)
        self.history.append(transaction)
        for session, event in self._watches.fire(applied.events):
            session.event_sent(event)
        return applied


class _Fault:
    def __init__(self, *, carried_out: bool, reconnect: bool) -> None:
        self.carried_out = carried_out
        self.reconnect = reconnect


class MemorySession(SessionOperations):
    """A `Session` of a `MemoryEnsemble`."""

    def __init__(self, ensemble: MemoryEnsemble, timeout_ms: int) -> None:
        super().__init__(self, SessionStateMachine(), timeout_ms)
        self._ensemble = ensemble
        self._connection = 0
        self._under_way: deque[Callable[[], None]] = deque()
        self._lease: asyncio.TimerHandle | None = None
        self.server_session_id = 0
        self.fault: _Fault | None = None

    async def __aenter__(self) -> MemorySession:
        await self.wait_connected()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the session; its ephemerals vanish at once."""
        self._stop_lease()
        self._drop_connection()
        self._ensemble.leave(self)
        self._session_state.became_closed()

    # -- the transport

    async def read(self, what: Read, path: str, watch: Watch | None, session_number: int | None) -> object:
        """Read from the tree; a watch is armed together with the read."""

        def ask() -> object:
            answer = self._ensemble.read(self, what, path, watch is not None)
            if watch is not None:
                self._session_state.watches.arm(what.watch_kind, path, watch)
            return answer

        return await self._request(ask, session_number)

    async def write(
        self, operations: Sequence[Operation], session_number: int | None
    ) -> list[str | Stat | None]:
        """Apply all operations or none."""
        return await self._request(lambda: self._ensemble.write(self, operations), session_number)

    async def get_acl(self, path: str) -> tuple[tuple[Acl, ...], Stat]:
        """Return the ACL and the stat of a znode."""
        return await self._request(lambda: self._ensemble.acl(path), None)

    async def set_acl(self, path: str, acl: Sequence[Acl], version: int = -1) -> None:
        """Replace the ACL, if `version` is the stat's `aversion`; -1 matches any."""
        await self._request(lambda: self._ensemble.set_acl(path, tuple(acl), version), None)

    async def flush(self, path: str, session_number: int | None) -> None:
        """Take a round trip; a single server is always in sync."""
        await self._request(lambda: None, session_number)

    async def _request(self, ask: Callable[[], T], session_number: int | None) -> T:
        self._session_state.check(session_number)
        answer: asyncio.Future[T] = self._session_state.track(asyncio.get_running_loop().create_future())
        self.later(lambda: self._arrived(ask, answer))
        return await answer

    def _arrived(self, ask: Callable[[], T], answer: asyncio.Future[T]) -> None:
        fault, self.fault = self.fault, None
        if fault is not None and not fault.carried_out:
            return self._break(fault)
        reply = _outcome(ask, answer)
        if fault is not None:
            return self._break(fault)
        return self.later(reply)

    def _break(self, fault: _Fault) -> None:
        self._ensemble.disconnect(self)
        if fault.reconnect:
            self._ensemble.reconnect(self)

    # -- the connection

    def later(self, message: Callable[[], None], *, new_connection: bool = False) -> None:
        """Deliver a message after a delay, in order with the others of this connection."""
        if new_connection:
            self._drop_connection()
        connection = self._connection
        self._under_way.append(message)

        def arrive() -> None:
            if connection == self._connection and self._under_way:
                self._under_way.popleft()()

        loop = asyncio.get_running_loop()
        delay_s = self._ensemble.delay_s()
        if delay_s > 0:
            loop.call_later(delay_s, arrive)
        else:
            loop.call_soon(arrive)

    def event_sent(self, event: TreeEvent) -> None:
        """Handle a watch event of the server."""
        number = self.session_number
        self.later(lambda: self._session_state.watch_fired(event.type, event.path, number))

    def connection_made(self) -> None:
        """Handle the server's acceptance, with the same or a new session."""
        self._stop_lease()
        self._session_state.became_connected(self.server_session_id)

    def connection_broke(self) -> None:
        """Handle a lost connection; a lease runs until the session must be presumed lost."""
        self._drop_connection()
        if not self.connected:
            return
        self._session_state.became_suspended()
        loop = asyncio.get_running_loop()
        self._lease = loop.call_later(self._timeout_ms / 1000, self.lease_ended)

    def lease_ended(self) -> None:
        """Presume the session lost, after a whole session timeout without a connection."""
        self._stop_lease()
        self._session_state.became_lost("expired, or disconnected for a session timeout")

    def _drop_connection(self) -> None:
        self._connection += 1
        self._under_way.clear()

    def _stop_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None


def _outcome(ask: Callable[[], T], answer: asyncio.Future[T]) -> Callable[[], None]:
    """Call `ask` now; return a function that delivers its result or error later."""
    try:
        value = ask()
    except ZooKeeperError as raised:
        error = raised
        return lambda: None if answer.done() else answer.set_exception(error)
    return lambda: None if answer.done() else answer.set_result(value)


class States:
    """The states that a session entered since this object was made, in order."""

    def __init__(self, session: Session) -> None:
        self.seen: list[SessionState] = []
        self._came = asyncio.Event()
        self.stop = session.listen(self._add)

    async def until(self, state: SessionState, timeout_s: float = 30.0) -> None:
        """Return once `state` was seen; raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while state not in self.seen:
                self._came.clear()
                await self._came.wait()

    def _add(self, change: StateChange) -> None:
        self.seen.append(change.state)
        self._came.set()
