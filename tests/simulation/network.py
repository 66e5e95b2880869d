"""The network of the simulation: connections between processes that are slow, break, and are cut one way.

Requests and responses travel as frames, written and read by the product's code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.broker.api.routes import ROUTES
from ottla.client.api_versions import choose_version
from ottla.client.config import Address, ClientConfig
from ottla.client.errors import ConnectFailed, ConnectionClosed, RequestTimeout
from ottla.protocol.api import ApiKey, RequestHeader, decode_response_header, encode_request
from ottla.protocol.schema import Message
from simulation.virtual_time import ProcessLoop, World

if TYPE_CHECKING:
    from simulation.server import SimulatedServer

R = TypeVar("R", bound=Message)
SLOW_S: Final = 0.2
"""The delay of messages between brokers that are far from each other for a while."""
VERSIONS: Mapping[int, tuple[int, int]] = {
    int(one.api_key): (one.min_version, one.max_version) for one in ROUTES
}


@cache
def client_config(client_id: str = "", request_timeout_ms: int = 30_000) -> ClientConfig:
    """Make each configuration once: its checks take as long as a request."""
    return ClientConfig(client_id=client_id, request_timeout_ms=request_timeout_ms)


class Network:
    """Listeners by address, and the ways that are cut."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.servers: dict[tuple[str, int], SimulatedServer] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.slow: set[tuple[str, str]] = set()
        """Ways that take `SLOW_S` longer."""
        self.broken_connections = 0.0
        """The part of responses whose connection breaks before them."""
        self.connections: dict[SimulatedConnection, None] = {}
        self.late: dict[int, float] = {}
        """By API the delay of its next request, in seconds."""
        self.when_late: dict[int, Callable[[str], None]] = {}
        """By API what is done once, when a request of it is delayed; it is given the sender's name."""
        self.when_arrived: dict[int, Callable[[str], None]] = {}
        """By API what is done once, when a request of it has arrived; it is given the sender's name."""

    def delay_s(self) -> float:
        """The delay of one message: short, and sometimes long."""
        chance = self.world.random
        drawn = chance.random()
        if drawn < 0.9:
            return chance.uniform(0.0003, 0.004)
        return chance.uniform(0.004, 0.05) if drawn < 0.99 else chance.uniform(0.05, 0.6)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing passes that way."""
        return (source, target) in self.cuts

    def process_ended(self, loop: ProcessLoop) -> None:
        """Break the connections to a process that was killed."""
        for connection in list(self.connections):
            if connection.target is loop:
                connection.peer_died()


class SimulatedConnection:
    """Stands in for `ottla.client.connection.Connection`, at one request at a time."""

    def __init__(self, address: Address, config: ClientConfig | None = None) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        self.address = address
        self.loop = loop
        self.network: Network = loop.network
        self.config = config or client_config()
        self.target: ProcessLoop | None = None
        self.session: Any = None
        self._server: SimulatedServer | None = None
        self._is_open = False
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._number = 0
        self._arrivals = [0.0, 0.0]

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._is_open

    async def connect(self) -> None:
        """Take a round trip. Raises ConnectFailed where nobody listens or the way is cut."""
        await asyncio.sleep(self.network.delay_s())
        server = self.network.servers.get((self.address.host, self.address.port))
        if server is None or not server.is_accepting or server.loop.is_dead:
            raise ConnectFailed(*self.address, "refused")
        if self.network.is_cut(self.loop.name, server.loop.name) or self.network.is_cut(
            server.loop.name, self.loop.name
        ):
            await asyncio.sleep(1.0)
            raise ConnectFailed(*self.address, "timed out")
        self._server, self.target, self._is_open = server, server.loop, True
        self.session = server.session_of(self)
        self.network.connections[self] = None

    async def send(
        self,
        request: Message,
        response_type: type[R],
        *,
        timeout_s: float | None = None,
        min_version: int | None = None,
        max_version: int | None = None,
    ) -> R:
        """Send a request and return the response. Raises ConnectionClosed and RequestTimeout."""
        if not self._is_open:
            raise ConnectionClosed(*self.address)
        key = type(request).API_KEY
        version = choose_version(type(request), VERSIONS, min_version=min_version, max_version=max_version)
        self._number += 1
        number = self._number
        frame = encode_request(RequestHeader(key, version, number, self.config.client_id), request)
        answer = self._pending[number] = self.loop.create_future()
        self._carry_request(frame, number, key)
        limit_s = self.config.request_timeout_ms / 1000 if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                response = await answer
        except TimeoutError:
            await self.close()
            raise RequestTimeout(*self.address, ApiKey(key).name, limit_s) from None
        finally:
            self._pending.pop(number, None)
        _, position = decode_response_header(response, key, version)
        return response_type.decode(response[position:], version)

    def _carry_request(self, frame: bytes, number: int, key: int) -> None:
        server, network = self._server, self.network
        assert server is not None
        if network.is_cut(self.loop.name, server.loop.name):
            return

        def arrive() -> None:
            if not network.is_cut(self.loop.name, server.loop.name):
                server.receive(frame, self, lambda response: self._carry_response(response, number))
                if key in network.when_arrived:
                    network.when_arrived.pop(key)(self.loop.name)

        if key in network.late:
            server.loop.post(network.late.pop(key), arrive)
            if key in network.when_late:
                network.when_late.pop(key)(self.loop.name)
        else:
            self._carry(0, self.loop, server.loop, arrive)

    def _carry_response(self, response: bytes | None, number: int) -> None:
        server, network = self._server, self.network
        assert server is not None

        def arrive() -> None:
            answer = self._pending.get(number)
            if network.is_cut(server.loop.name, self.loop.name) or answer is None or answer.done():
                return
            if response is None or network.world.random.random() < network.broken_connections:
                self._closed()
            else:
                answer.set_result(response)

        self._carry(1, server.loop, self.loop, arrive)

    def _carry(
        self, direction: int, source: ProcessLoop, target: ProcessLoop, arrive: Callable[[], None]
    ) -> None:
        network, now_s = self.network, self.network.world.now_s
        more_s = SLOW_S if network.slow and (source.name, target.name) in network.slow else 0.0
        at_s = max(self._arrivals[direction], now_s + network.delay_s() + more_s)
        self._arrivals[direction] = at_s
        target.post(at_s - now_s, arrive)

    def peer_died(self) -> None:
        """The other process ended: its system closes the connection, if the way is open."""
        assert self.target is not None
        if not self.network.is_cut(self.target.name, self.loop.name) and not self.loop.is_dead:
            self.loop.post(self.network.delay_s(), self._closed)

    def _closed(self) -> None:
        self._is_open = False
        self.network.connections.pop(self, None)
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(ConnectionClosed(*self.address))

    async def close(self) -> None:
        """Close the connection; the requests that are on their way arrive all the same."""
        self._closed()
        if self.session is not None:
            self.session.is_gone = True
