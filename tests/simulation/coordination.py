"""ZooKeeper in the simulation: one linearizable server, and sessions that lose replies and expire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from ottla.zookeeper._operations import Read, SessionOperations
from ottla.zookeeper._session_state import SessionStateMachine
from ottla.zookeeper.errors import ZooKeeperError
from ottla.zookeeper.session import Operation, Stat, Watch
from ottla.zookeeper.testing import MemoryEnsemble
from ottla.zookeeper.watches import TreeEvent
from simulation.virtual_time import Handle, ProcessLoop, World

T = TypeVar("T")
TICK_S: Final = 0.2
"""How often the server looks for sessions to expire."""
RECONNECT_S: Final = 0.3


class Coordination(MemoryEnsemble):
    """The server. `lost_replies` is the part of writes whose reply is lost together with the connection."""

    def __init__(self, world: World) -> None:
        super().__init__(now_ms=world.now_ms)
        self.world = world
        self.loop = world.loop("zookeeper")
        self.lost_replies = 0.0
        self.clients: list[SimulatedSession] = []
        self.loop.post(TICK_S, self._tick)

    def connect(self, loop: ProcessLoop, timeout_ms: int) -> SimulatedSession:
        """Return a session of a process; it connects soon."""
        session = SimulatedSession(self, loop, timeout_ms)
        self.clients.append(session)
        session.reach_server()
        return session

    def _tick(self) -> None:
        now_s = self.world.now_s
        for session in list(self.clients):
            if session.is_reachable:
                session.heard_s = now_s
            elif now_s - session.heard_s > session.timeout_ms / 1000:
                loop = session.loop
                if loop.paused and now_s - loop.paused_since_s > session.timeout_ms / 1000:
                    self.world.expired.add(loop)
                self.expire_now(session)
        self.loop.post(TICK_S, self._tick)

    def expire_now(self, session: SimulatedSession) -> None:
        """Expire a session at the server; the client learns of it when it is reachable."""
        self._watches.forget(session)  # type: ignore[arg-type]
        self._close(session.server_session_id)
        if session.loop.is_dead:
            self.clients.remove(session)
        else:
            session.break_connection()

    def accept(self, session: SimulatedSession) -> None:
        """Give a client its session back, or a new one where it has expired."""
        if session.server_session_id not in self.tree.sessions:
            self._last_session_id += 1
            opening = self.tree.plan_session(self._last_session_id, b"", session.timeout_ms, self._now_ms())
            self._apply(opening)
            session.server_session_id = self._last_session_id
        session.heard_s = self.world.now_s
        self.world.expired.discard(session.loop)

    def forget_watches(self, session: SimulatedSession) -> None:
        """Drop the watches of a connection that has ended."""
        self._watches.forget(session)  # type: ignore[arg-type]

    def close_session(self, session: SimulatedSession) -> None:
        """Close a session for its client."""
        self.forget_watches(session)
        self._close(session.server_session_id)
        if session in self.clients:
            self.clients.remove(session)


class SimulatedSession(SessionOperations):
    """A `Session` of one process. A connection keeps its messages in order, each way."""

    def __init__(self, server: Coordination, loop: ProcessLoop, timeout_ms: int) -> None:
        super().__init__(self, SessionStateMachine(), timeout_ms)
        self.server = server
        self.loop = loop
        self.server_session_id = 0
        self.heard_s = server.world.now_s
        self.is_cut = False
        self._connection = 0
        self._arrivals = [0.0, 0.0]
        self._lease: Handle | None = None

    @property
    def is_reachable(self) -> bool:
        """Whether the client's pings reach the server now."""
        return not (self.is_cut or self.loop.paused or self.loop.is_dead)

    def close(self) -> None:
        """Close the session; its ephemerals vanish when the server hears of it."""
        self._stop_lease()
        self._to_server(lambda: self.server.close_session(self))
        self._session_state.became_closed()

    # -- faults

    def cut(self) -> None:
        """Drop all messages; the client notices after two thirds of the session timeout."""
        self.is_cut = True
        self._connection += 1
        number = self._connection

        def notice() -> None:
            if self._connection == number:
                self._broke()

        self.loop.post(self._timeout_ms / 1500, notice)

    def heal(self) -> None:
        """Stop dropping messages."""
        if self.is_cut:
            self.is_cut = False
            self.break_connection()

    def break_connection(self) -> None:
        """End the connection: messages in flight are lost, and the client connects again."""
        self._connection += 1
        self.server.forget_watches(self)
        self.loop.post(0.001, self._broke)
        if not self.is_cut:
            self.reach_server()

    # -- the transport

    async def read(self, what: Read, path: str, watch: Watch | None, session_number: int | None) -> object:
        """Read; the watch is armed by the server together with the read, by the client with the reply."""

        def ask() -> object:
            return self.server.read(self, what, path, watch is not None)  # type: ignore[arg-type]

        def arm() -> None:
            if watch is not None:
                self._session_state.watches.arm(what.watch_kind, path, watch)

        return await self._request(ask, session_number, arm)

    async def write(
        self, operations: Sequence[Operation], session_number: int | None
    ) -> list[str | Stat | None]:
        """Apply all operations or none."""

        def ask() -> list[str | Stat | None]:
            return self.server.write(self, operations)  # type: ignore[arg-type]

        return await self._request(ask, session_number, None)

    async def flush(self, path: str, session_number: int | None) -> None:
        """Take a round trip."""
        await self._request(lambda: None, session_number, None)

    async def _request(
        self, ask: Callable[[], T], session_number: int | None, arm: Callable[[], None] | None
    ) -> T:
        self._session_state.check(session_number)
        answer: asyncio.Future[T] = self._session_state.track(self.loop.create_future())
        self._to_server(lambda: self._arrived(ask, answer, arm))
        return await answer

    def _arrived(
        self, ask: Callable[[], T], answer: asyncio.Future[T], arm: Callable[[], None] | None
    ) -> None:
        if self.server_session_id not in self.server.tree.sessions:
            return  # the connection is about to break
        result: Any = None
        failure: ZooKeeperError | None = None
        try:
            result = ask()
        except ZooKeeperError as error:
            failure = error
        if arm is None and self.server.world.random.random() < self.server.lost_replies:
            self.break_connection()
        else:
            self._to_client(lambda: _settle(answer, result, failure, arm))

    def event_sent(self, event: TreeEvent) -> None:
        """Carry a watch event to the client."""
        number = self.session_number
        self._to_client(lambda: self._session_state.watch_fired(event.type, event.path, number))

    # -- the connection

    def _to_server(self, message: Callable[[], None]) -> None:
        self._carry(0, self.server.loop, message)

    def _to_client(self, message: Callable[[], None]) -> None:
        self._carry(1, self.loop, message)

    def _carry(self, direction: int, target: ProcessLoop, message: Callable[[], None]) -> None:
        world, connection = self.server.world, self._connection
        at_s = max(self._arrivals[direction], world.now_s + world.random.uniform(0.0002, 0.003))
        self._arrivals[direction] = at_s

        def arrive() -> None:
            if connection == self._connection and not self.is_cut:
                message()

        target.post(at_s - world.now_s, arrive)

    def reach_server(self) -> None:
        """Ask the server for the session, and again until it answers."""
        number = self._connection = self._connection + 1

        def ask() -> None:
            if number != self._connection or self.is_cut:
                return
            self._to_server(self._accepted)

        self.loop.post(RECONNECT_S * self.server.world.random.random(), ask)

    def _accepted(self) -> None:
        self.server.accept(self)
        session_id = self.server_session_id
        self._to_client(lambda: self._connected(session_id))

    def _connected(self, session_id: int) -> None:
        self._stop_lease()
        self._session_state.became_connected(session_id)

    def _broke(self) -> None:
        if not self.connected:
            return
        self._session_state.became_suspended()
        self._lease = self.loop.call_later(self._timeout_ms / 1000, self._lease_ended)

    def _lease_ended(self) -> None:
        self._stop_lease()
        self._session_state.became_lost("disconnected for a session timeout")

    def _stop_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None


def _settle(
    answer: asyncio.Future[Any],
    result: object,
    failure: ZooKeeperError | None,
    arm: Callable[[], None] | None,
) -> None:
    if answer.done():
        return
    if failure is not None:
        answer.set_exception(failure)
        return
    if arm is not None:
        arm()
    answer.set_result(result)
