"""The server of a simulated broker: the product's dispatcher, handlers and serving lease without sockets."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Self

from ottla.broker.config import BrokerConfig
from ottla.broker.network.dispatcher import Call, Dispatcher
from ottla.broker.network.session import Session
from ottla.broker.requests.context import CloseConnection
from simulation.virtual_time import ProcessLoop

if TYPE_CHECKING:
    from simulation.network import Network, SimulatedConnection


class Connections:
    """Stands in for the connections of a server, as far as a broker asks for them."""

    def all(self) -> list[Any]:
        return []


class Lease:
    """Until when the broker serves, as `network.serving_lease`."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self.until_ms = inf
        self._extended = asyncio.Event()
        self._extended.set()

    def hold(self) -> None:
        self._extended.clear()

    def extend(self, until_ms: float = inf) -> None:
        self.until_ms = until_ms
        self._extended.set()

    @property
    def is_over(self) -> bool:
        """Whether requests and answers wait."""
        return self._now_ms() > self.until_ms or not self._extended.is_set()

    async def held(self) -> None:
        """Wait until the broker may serve."""
        while self.is_over:
            self._extended.clear()
            await self._extended.wait()


class SimulatedServer:
    """Answers frames for as long as it is entered."""

    def __init__(self, dispatcher: Dispatcher[Any], network: Network, host: str, loop: ProcessLoop) -> None:
        self._dispatcher = dispatcher
        self._network = network
        self._host = host
        self.loop = loop
        self.is_accepting = False
        self.lease = Lease(lambda: loop.time() * 1000)
        self.connections = Connections()
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop_accepting()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._dispatcher.close()

    async def listen(
        self,
        name: str,
        host: str,
        port: int,
        *,
        tls: None = None,
        shares_port: bool = False,
        begin_login: None = None,
        serve: bool = True,
    ) -> tuple[str, int]:
        """Take an address; the simulated network has neither TLS nor logins."""
        self._port = port
        self._network.servers[self._host, port] = self
        return self._host, port

    async def serve(self) -> None:
        """Accept connections."""
        self.is_accepting = True

    def set_limits(self, config: BrokerConfig) -> None:
        """Take none: the simulated network limits no connections."""

    def stop_accepting(self) -> None:
        """Refuse connections, and what comes over the open ones."""
        self.is_accepting = False

    def session_of(self, connection: SimulatedConnection) -> Session:
        """Make the server's side of a connection."""
        host = self._network_host(connection)
        return Session(listener_name="PLAINTEXT", client_host=host, connection_id=host)

    def _network_host(self, connection: SimulatedConnection) -> str:
        return connection.loop.name

    def receive(
        self, frame: bytes, connection: SimulatedConnection, respond: Callable[[bytes | None], None]
    ) -> None:
        """Answer a request in a task of its own."""
        if not self.is_accepting:
            respond(None)
            return
        task = self.loop.create_task(self._answer(frame, connection.session, respond))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, frame: bytes, session: Session, respond: Callable[[bytes | None], None]) -> None:
        if self.lease.is_over:
            await self.lease.held()
        try:
            call = self._dispatcher.read(memoryview(bytearray(frame)), session, self.loop.time() * 1000)
            if isinstance(call, list):
                return
            parts = await self._parts(call)
        except CloseConnection:
            respond(None)
            return
        data = b"".join(one if isinstance(one, bytes) else one.read() for one in parts or ())
        if self.lease.is_over:
            await self.lease.held()
        if self.loop in self.loop.world.expired:
            self.loop.world.failures.append(f"{self.loop.name} answers though it slept through its session")
        if parts is not None:
            respond(data[4:])

    async def _parts(self, call: Call) -> list[Any] | None:
        try:
            begun = self._dispatcher.begin(call)
        except CloseConnection:
            raise
        except Exception as error:
            return self._dispatcher.answer_error(call, error)
        if inspect.isawaitable(begun):
            return await self._dispatcher.answer(call, begun)
        return self._dispatcher.encode(call, begun)
