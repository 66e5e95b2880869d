"""Listening sockets and everything their connections share: buffer, limits, tasks, the idle clock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ottla.broker.metrics import show_running
from ottla.broker.network.connection import Connection
from ottla.broker.network.frames import ProduceRun, ReceiveBuffer
from ottla.broker.network.request_metrics import RequestMetrics, ShortTally
from ottla.broker.network.routes import Call, Dispatcher
from ottla.broker.network.session import SessionState
from ottla.broker.network.wire import Turn
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    import ssl

    from ottla.broker.config import BrokerConfig
    from ottla.broker.environment import Clock
    from ottla.broker.handlers.fetch_plain import Answers, PlainFetches
    from ottla.broker.handlers.produce_run import ProduceRuns
    from ottla.broker.metrics import Metrics

log = logging.getLogger("request")

DRAIN_S: Final = 5.0
_IDLE_CHECK_S: Final = 1.0
_REPORT_EVERY_S: Final = 10.0
_SHORT_METRICS_S: Final = 0.25


class Server:
    """All connections of one broker. Owns their tasks while it is entered."""

    def __init__(
        self,
        dispatcher: Dispatcher[Any],
        *,
        config: BrokerConfig,
        clock: Clock,
        metrics: Metrics,
        produce_runs: ProduceRuns,
        plain_fetches: PlainFetches,
    ) -> None:
        self.config = config
        self.dispatcher = dispatcher
        self.produce_runs = produce_runs
        self.plain_fetches = plain_fetches
        self.receive_buffer = ReceiveBuffer()
        self.request_metrics = RequestMetrics(metrics)
        self._metrics = metrics
        self.unstarted = 0
        self._now_ms = clock.now_ms
        self._idle_s = self.config.connections_max_idle_ms / 1000
        self._limits = AddressLimits(0, 0, {})
        self.set_limits(self.config)
        self.now_s: Callable[[], float] = lambda: 0.0
        """The loop's clock: requests are timed with it."""
        self._connections: OrderedDict[Connection, None] = OrderedDict()
        self._stalled: dict[Connection, None] = {}
        self._to_flush: dict[Connection, None] = {}
        self._listening: list[asyncio.Server] = []
        self._running: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()
        self.short_produces = ShortTally(self.request_metrics, ApiKey.PRODUCE)
        self._short_fetches = ShortTally(self.request_metrics, ApiKey.FETCH)
        self._short_counted = False
        self._numbers = 0
        self._last_report_s = float("-inf")
        metrics.gauge(
            "kafka.server", "socket-server-metrics", "connection-count", lambda: self.connection_count
        )
        metrics.gauge("kafka.network", "RequestChannel", "RequestQueueSize", lambda: self.unstarted)

    # ---- lifetime

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self.now_s = self._loop.time
        metrics = self.request_metrics
        self.turn = Turn(self._loop.call_soon, self._now_ms, metrics.bytes_in, metrics.bytes_out)
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._background = [self.spawn(self._close_idle())] if self._idle_s > 0 else []
        for task in self._background:
            show_running(self._metrics, task, "idle-connections")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        await self._tasks.__aexit__(None, None, None)

    async def listen(
        self,
        name: str,
        host: str,
        port: int,
        *,
        ssl_context: ssl.SSLContext | None = None,
        initial_state: SessionState = SessionState.AUTHENTICATED,
        serve: bool = True,
    ) -> tuple[str, int]:
        """Accept connections on an address; port 0 takes a free one. Returns the address in use.

        Sessions begin in `initial_state`. Without `serve` the address is only taken, and `serve()` begins to
        accept. Raises OSError when the address cannot be had.
        """
        server = await self._loop.create_server(
            lambda: Connection(self, name, initial_state),
            sock=self._bind(host, port),
            backlog=self.config.socket_listen_backlog_size,
            ssl=ssl_context,
            start_serving=serve,
        )
        self._listening.append(server)
        address = server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def serve(self) -> None:
        """Begin to accept on every address that was taken without serving."""
        for server in self._listening:
            await server.start_serving()

    def _bind(self, host: str, port: int) -> socket.socket:
        try:
            return self._bound(host, port)
        except OSError as error:
            reason = f"cannot listen on {host or '*'}:{port}: {error.strerror or error}"
            raise OSError(error.errno, reason) from error

    def _bound(self, host: str, port: int) -> socket.socket:
        info = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = info[0]
        plug = socket.socket(family, kind, protocol)
        try:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.config.socket_receive_buffer_bytes > 0:  # must be set before listening to count
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.config.socket_receive_buffer_bytes)
            plug.bind(address)
            plug.setblocking(False)
        except OSError:
            plug.close()
            raise
        return plug

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections go on."""
        for server in self._listening:
            server.close()
        self._listening.clear()

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Take no more requests, answer those begun within `drain_s`, then close and cancel what is left."""
        self.stop_accepting()
        for task in self._background:
            task.cancel()
        for connection in list(self._connections):
            connection.stop_taking()
        await self._drained(drain_s)
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)  # every task takes its first step, and with it what it is to await
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._gone(1.0)

    async def _drained(self, bound_s: float) -> None:
        await self._until(lambda: not any(one.busy for one in self._connections), bound_s)

    async def _gone(self, bound_s: float) -> None:
        await self._until(lambda: not self._connections, bound_s)
        for connection in list(self._connections):
            connection.abort()

    async def _until(self, condition: Callable[[], bool], bound_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(bound_s):
                while not condition():
                    self._settled.clear()
                    await self._settled.wait()

    def settled(self) -> None:
        """A connection has less to do than before, or is gone."""
        self._settled.set()

    def set_limits(self, config: BrokerConfig) -> None:
        """Hold new connections to these limits; those that are there stay."""
        self._limits.in_all = config.max_connections
        self._limits.per_address = config.max_connections_per_ip
        self._limits.overrides = parse_overrides(config.max_connections_per_ip_overrides)

    # ---- what connections use

    def next_connection_number(self) -> int:
        """Number the connections of this broker."""
        self._numbers += 1
        return self._numbers

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a task of this server."""
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    @property
    def connections(self) -> list[Connection]:
        """The connections that are open now."""
        return list(self._connections)

    @property
    def connection_count(self) -> int:
        """Connections open now."""
        return len(self._connections)

    def admit(self, connection: Connection) -> bool:
        """Count a new connection, or refuse it."""
        refusal = self._limits.take(connection.session.client_host)
        if refusal is not None:
            self._report(f"refusing a connection from {connection.session.client_host}: {refusal}")
            return False
        self._connections[connection] = None
        return True

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self._stalled.pop(connection, None)
        self._to_flush.pop(connection, None)
        if connection in self._connections:
            del self._connections[connection]
            self._limits.give_back(connection.session.client_host)
        self.settled()

    def _report(self, text: str) -> None:
        if self.now_s() - self._last_report_s >= _REPORT_EVERY_S:
            self._last_report_s = self.now_s()
            log.warning("%s", text)

    def has_room(self, connection: Connection) -> bool:
        """Say whether one more request may be read; if not, the connection is pumped when there is room."""
        if self.unstarted < self.config.queued_max_requests:
            return True
        self._stalled[connection] = None
        return False

    def started(self) -> None:
        """A queued request has been begun."""
        self.unstarted -= 1
        if self._stalled:
            stalled, self._stalled = self._stalled, {}
            for connection in stalled:  # those that still find no room stall again, in the same order
                self.flush_soon(connection)

    def flush_soon(self, connection: Connection) -> None:
        """Write and read on at the end of this turn, once, however many answers it brings."""
        if not self._to_flush:
            self._loop.call_soon(self._flush_all)
        self._to_flush[connection] = None

    def _flush_all(self) -> None:
        connections, self._to_flush = self._to_flush, {}
        for connection in connections:
            connection.flush()

    def measure(self, call: Call, now_ms: float) -> None:
        """Count one request that has been answered."""
        context = call.context
        key, total_ms = int(call.route.api_key), now_ms - context.received_ms
        metrics = self.request_metrics.of(key)
        self.request_metrics.requests(key, context.api_version).mark()
        queued_ms = context.begun_ms - context.received_ms
        metrics.request_bytes.update(call.size)
        metrics.total_time_ms.update(total_ms)
        metrics.queue_time_ms.update(queued_ms)
        metrics.remote_time_ms.update(context.remote_ms)
        metrics.local_time_ms.update(max(0.0, total_ms - queued_ms - context.remote_ms))

    def measure_run(self, run: ProduceRun, received_ms: float) -> None:
        """Count the produce requests of a run, which were answered together."""
        took_ms = self.now_s() * 1000 - received_ms
        self.short_produces.note(run.version, took_ms, run.size_in_bytes / run.count, run.count)
        self.short_way_used()

    def measure_waited_run(self, run: ProduceRun, received_ms: float, appended_ms: float) -> None:
        """Count the produce requests of a run that waited for replicas once it was appended."""
        metrics, count, now_ms = self.request_metrics.of(ApiKey.PRODUCE), run.count, self.now_s() * 1000
        metrics.total_time_ms.update(now_ms - received_ms, count)
        metrics.queue_time_ms.update(0.0, count)
        metrics.local_time_ms.update(appended_ms - received_ms, count)
        metrics.remote_time_ms.update(now_ms - appended_ms, count)
        metrics.request_bytes.update(run.size_in_bytes / count, count)
        self.request_metrics.requests(ApiKey.PRODUCE, run.version).mark(count)

    def measure_fetches(self, answers: Answers, received_ms: float) -> None:
        """Count fetches that were answered the short way, together."""
        took_ms, count = self.now_s() * 1000 - received_ms, answers.count
        self._short_fetches.note(answers.version, took_ms, answers.size_in_bytes / count, count)
        self.short_way_used()

    def short_way_used(self) -> None:
        """Have what was counted of the short ways brought to the metrics before long."""
        if not self._short_counted:
            self._short_counted = True
            self._loop.call_later(_SHORT_METRICS_S, self.count_short)

    def count_short(self) -> None:
        """Bring the metrics of requests that went the short way up to date."""
        self.short_produces.pour()
        self.produce_runs.pour()
        self._short_fetches.pour()
        self._short_counted = False

    # ---- idle connections

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(_IDLE_CHECK_S, self._idle_s))
            self.close_idle(self.now_s())

    def close_idle(self, now_s: float) -> None:
        """Close what has been silent for too long.

        The queue is in the order of the last look, not of the last use: whoever comes up and was used since
        goes to the back. Each connection is looked at about once per idle time, and using one costs nothing.
        """
        for connection in list(self._connections):
            if now_s - connection.looked_at_s < self._idle_s:
                return
            if connection.idle and now_s - connection.last_active_s >= self._idle_s:
                log.info(
                    "closing %s: idle for %.0f s", connection.connection_id, now_s - connection.last_active_s
                )
                connection.close()
                continue
            connection.looked_at_s = connection.last_active_s if connection.idle else now_s
            self._connections.move_to_end(connection)


class AddressLimits:
    """How many connections there may be, in all and from one address."""

    def __init__(self, in_all: int, per_address: int, overrides: Mapping[str, int]) -> None:
        self.in_all = in_all
        self.per_address = per_address
        self.overrides = overrides
        self._counts: dict[str, int] = {}
        self._total = 0

    def take(self, host: str) -> str | None:
        """Count a connection; returns why it may not be, or None."""
        count = self._counts.get(host, 0)
        most = self.overrides.get(host, self.per_address)
        if count >= most:
            return f"max.connections.per.ip of {most} is reached"
        if self._total >= self.in_all:
            return f"max.connections of {self.in_all} is reached"
        self._counts[host] = count + 1
        self._total += 1
        return None

    def give_back(self, host: str) -> None:
        """A counted connection is gone."""
        self._total -= 1
        self._counts[host] -= 1
        if not self._counts[host]:
            del self._counts[host]


def parse_overrides(text: str) -> dict[str, int]:
    """Read `host:limit,…`; names are resolved, for connections are known by their address."""
    limits: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, _, limit = item.rpartition(":")
        for address in _addresses(host.strip("[]")):
            limits[address] = int(limit)
    return limits


def _addresses(host: str) -> list[str]:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return [host]
