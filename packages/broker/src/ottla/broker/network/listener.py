"""The listening sockets of one broker, and the parts that its connections share."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ottla.broker.metrics import show_running
from ottla.broker.network.acceptor import Acceptor
from ottla.broker.network.connection import Connection
from ottla.broker.network.dispatcher import Dispatcher
from ottla.broker.network.frame_progress import LOOK_EVERY_S
from ottla.broker.network.frames import ReceiveBuffer
from ottla.broker.network.native_connection import WriteRound
from ottla.broker.network.open_connections import OpenConnections
from ottla.broker.network.request_memory import RequestMemory
from ottla.broker.network.request_metrics import RequestMetrics, RequestTimes
from ottla.broker.network.request_queue import RequestQueue
from ottla.broker.network.response_queue import FullSockets
from ottla.broker.network.serving_lease import ServingLease
from ottla.broker.network.session import Session, SessionState
from ottla.broker.network.shared import Shared
from ottla.broker.quotas.connections import CreationRates, is_address
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.runtime.loop_budget import StepQueue

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.metrics import Metrics
    from ottla.broker.network.tls_transport import TlsShared
    from ottla.broker.runtime.environment import Clock
    from ottla.broker.runtime.loop_budget import LoopBudget
    from ottla.broker.security.sasl.login import Login
    from ottla.broker.security.tls.contexts import ListenerTls

log = logging.getLogger("request")

DRAIN_S: Final = 5.0
AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
"""An address as `getaddrinfo` returns it."""
CLOSING_MS: Final = 0.0625
"""The cost of the end of a connection: 10 µs for a step, and 50 µs for its consequences in later turns."""


def _address_info(host: str, port: int) -> AddressInfo:
    """Return what an address, or every interface, is bound by; it does not block."""
    return socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]


def _no_broker(_: Session) -> bool:
    return False


class Server:
    """All connections of one broker. Owns their tasks while it is entered."""

    def __init__(
        self,
        dispatcher: Dispatcher[Any],
        *,
        config: BrokerConfig,
        clock: Clock,
        budget: LoopBudget,
        metrics: Metrics,
        is_broker: Callable[[Session], bool | None] = _no_broker,
    ) -> None:
        self._config = config
        self._dispatcher = dispatcher
        self._is_broker = is_broker
        self._clock = clock
        self._budget = budget
        self._metrics = metrics
        self.request_metrics = RequestMetrics(metrics)
        self.connections: OpenConnections[Connection] = OpenConnections(
            config, clock.monotonic_ms, dispatcher.address_rates
        )
        self.creation_rates = CreationRates(config)
        self.queue = RequestQueue(config.queued_max_requests, budget.arrived_requests)
        self._listening: dict[tuple[str, tuple[str, int]], Acceptor] = {}
        """The addresses that are taken, by the listener's name and the address."""
        self._not_accepted = LimitedWarnings(log, clock.monotonic_ms)
        self._tls: TlsShared | None = None
        self._running: set[asyncio.Task[None]] = set()
        metrics.gauge(
            "kafka.server", "socket-server-metrics", "connection-count", lambda: len(self.connections)
        )
        metrics.gauge("kafka.network", "RequestChannel", "RequestQueueSize", lambda: self.queue.unstarted)

    # ---- lifetime

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._shared = self._share()
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._looking = self.spawn(self._look_after_connections())
        show_running(self._metrics, self._looking, "idle-connections")
        return self

    def _share(self) -> Shared[Connection]:
        loop, metrics, monotonic_ms = self._loop, self.request_metrics, self._clock.monotonic_ms
        times = RequestTimes(metrics, self._dispatcher.fast_paths(), loop.time, loop.call_later)
        write_round = WriteRound(
            loop.call_soon,
            self._clock.now_ms,
            metrics.bytes_in,
            metrics.bytes_out,
            monotonic_ms,
            times.fast_path_used,
        )
        self.lease = ServingLease(write_round, self.connections.all)
        receive_buffer, limit = ReceiveBuffer(), self._config.queued_max_request_bytes
        self.request_memory: RequestMemory[Connection] = RequestMemory(
            receive_buffer, limit, self.connections.all, monotonic_ms
        )
        return Shared(
            config=self._config,
            dispatcher=self._dispatcher,
            receive_buffer=receive_buffer,
            record_keys=self._dispatcher.routes.record_keys,
            times=times,
            queue=self.queue,
            closing=StepQueue(self._budget.closed_connections, CLOSING_MS),
            memory=self.request_memory,
            connections=self.connections,
            write_round=write_round,
            full_sockets=FullSockets(),
            warnings=LimitedWarnings(log, monotonic_ms),
            is_broker=self._is_broker,
            now_s=loop.time,
            spawn=self.spawn,
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        await self._tasks.__aexit__(None, None, None)
        self._shared.full_sockets.close()
        if self._tls is not None:
            self._tls.unfinished.close()

    async def listen(
        self,
        name: str,
        host: str,
        port: int,
        *,
        tls: ListenerTls | None = None,
        initial_state: SessionState = SessionState.AUTHENTICATED,
        shares_port: bool = False,
        begin_login: Callable[[], Login] | None = None,
        serve: bool = True,
    ) -> tuple[str, int]:
        """Accept connections on an address; port 0 takes a free one. Returns the address in use.

        Sessions begin in `initial_state`, or with the login that `begin_login` makes. Without `serve` the
        address is only taken, and `serve()` begins to accept. With `shares_port` an IPv6 address leaves its
        port on IPv4 free. Raises OSError when the address cannot be had.
        """
        state = initial_state if begin_login is None else SessionState.UNAUTHENTICATED
        acceptor = Acceptor(
            await self._bind(host, port, shares_port),
            self._connections_of(name, state, begin_login, tls),
            backlog=self._config.socket_listen_backlog_size,
            warnings=self._not_accepted,
            spawn=self.spawn,
            accepted=lambda: self.creation_rates.accepted(name, self._clock.monotonic_ms()),
        )
        self._listening[name, acceptor.address] = acceptor
        if serve:
            acceptor.serve()
        return acceptor.address

    def close_address(self, name: str, address: tuple[str, int]) -> None:
        """Give an address of a listener back; its open connections stay."""
        self._listening.pop((name, address)).close()

    def close_connections(self, name: str) -> None:
        """Close the connections of a removed listener, in turns, once their responses are written."""
        closing = self._shared.closing
        for connection in self.connections.all():
            if connection.session.listener_name == name:
                closing.put(connection.close)
        if self._tls is not None:
            for unfinished in self._tls.unfinished.of_listener(name):
                closing.put(partial(unfinished.give_up, "the listener was removed"))

    def close_idle(self, now_s: float) -> None:
        """Close, in turns, the connections that sent nothing for `connections.max.idle.ms`."""
        for connection in self.connections.idle(now_s):
            self._shared.closing.put(connection.close)

    def _connections_of(
        self,
        name: str,
        state: SessionState,
        begin_login: Callable[[], Login] | None,
        tls: ListenerTls | None,
    ) -> Callable[[], asyncio.BufferedProtocol]:
        def connection() -> Connection:
            return Connection(self._shared, name, state, begin_login)

        if tls is None:
            return connection
        from ottla.broker.network.tls_transport import TlsTransport

        shared, proves_identity = self._tls_shared(), state is SessionState.AUTHENTICATED
        return lambda: TlsTransport(shared, tls, connection, proves_identity=proves_identity)

    def _tls_shared(self) -> TlsShared:
        """Return what all TLS connections share, made with the first listener that has TLS."""
        if self._tls is None:
            from ottla.broker.network.tls_transport import HANDSHAKE_STEP_MS, RECEIVE_BYTES, TlsShared
            from ottla.broker.quotas.handshakes import UnfinishedHandshakes

            self._tls = TlsShared(
                buffer=memoryview(bytearray(RECEIVE_BYTES)),
                handshakes=StepQueue(self._budget.handshakes, HANDSHAKE_STEP_MS),
                unfinished=UnfinishedHandshakes(self._loop.time, self._loop.call_at),
                places=self.connections,
                warnings=self._not_accepted,
            )
        return self._tls

    async def serve(self) -> None:
        """Begin to accept on every address that was taken without serving."""
        for acceptor in self._listening.values():
            acceptor.serve()

    def check_is_free(self, host: str, port: int) -> None:
        """Take an address, unless it has a name that would have to be resolved, and give it back.

        Raises OSError.
        """
        if not host or is_address(host):
            self._bound(_address_info(host, port), shares_port=False).close()

    async def _resolve(self, host: str, port: int) -> AddressInfo:
        if not host or is_address(host):
            return _address_info(host, port)
        return (await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]

    async def _bind(self, host: str, port: int, shares_port: bool) -> socket.socket:
        try:
            return self._bound(await self._resolve(host, port), shares_port)
        except OSError as error:
            reason = f"cannot listen on {host or '*'}:{port}: {error.strerror or error}"
            raise OSError(error.errno, reason) from error

    def _bound(self, info: AddressInfo, shares_port: bool) -> socket.socket:
        family, kind, protocol, _, address = info
        plug = socket.socket(family, kind, protocol)
        try:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._config.socket_receive_buffer_bytes > 0:  # has an effect only before listen()
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._config.socket_receive_buffer_bytes)
            if shares_port and family == socket.AF_INET6:
                plug.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            plug.bind(address)
            plug.setblocking(False)
        except OSError:
            plug.close()
            raise
        return plug

    def set_limits(self, config: BrokerConfig) -> None:
        """Hold new connections to these limits of their number and rate; open ones stay."""
        self.connections.set_limits(config)
        self.creation_rates.configure(config)

    def stop_accepting(self) -> None:
        """Close the listening sockets; open connections stay."""
        for acceptor in self._listening.values():
            acceptor.close()
        self._listening.clear()

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Take no more requests, answer those begun within `drain_s`, then close and cancel the rest."""
        self.stop_accepting()
        self._looking.cancel()
        self.lease.end()
        for connection in self.connections.all():
            connection.stop_taking()
            if self.lease.is_held:
                connection.abort()  # another broker may have its id meanwhile
        await self.connections.until(
            lambda: not any(connection.busy for connection in self.connections.all()), drain_s
        )
        for connection in self.connections.all():
            connection.close()
        await asyncio.sleep(0)  # every task makes its first step, so that cancelling it reaches its handler
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.connections.until(lambda: not self.connections, 1.0)
        for connection in self.connections.all():
            connection.abort()
        self._dispatcher.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a task of this server."""
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _look_after_connections(self) -> None:
        idle_s = self.connections.idle_s
        every_s = min(LOOK_EVERY_S, idle_s) if idle_s > 0 else LOOK_EVERY_S
        while True:
            await asyncio.sleep(every_s)
            now_s = self._loop.time()
            self._shared.memory.look(now_s)
            self.connections.end_unseen_waits()
            if idle_s > 0:
                self.close_idle(now_s)
