"""A broker of the simulation: the product's `Broker`, whose disk, ZooKeeper and server are simulated."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from asyncio import events
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import ottla.broker.log.hosting.registry as registry
import ottla.broker.peers.client as peers
from ottla.broker.api.routes import ROUTES
from ottla.broker.api.services import Services
from ottla.broker.cluster.registration import StartupRefused, make_roots
from ottla.broker.config import BrokerConfig
from ottla.broker.log.files.fake_files import MemoryFiles
from ottla.broker.network.dispatcher import Dispatcher
from ottla.broker.replication.hosted_partition import HostedPartition
from ottla.broker.requests.authorization import RequestAuthorization
from ottla.broker.requests.routes import Routes
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.runtime.environment import Environment
from ottla.broker.server.broker import Broker
from ottla.broker.server.periodic_tasks import schedule
from ottla.client.config import Address
from simulation.coordination import Coordination, SimulatedSession
from simulation.network import Network, SimulatedConnection, client_config
from simulation.server import SimulatedServer
from simulation.virtual_time import ProcessLoop

if TYPE_CHECKING:
    from ottla.broker.log.hosting.registry import LogRegistry

PORT = 9092
UNWANTED = frozenset({"event-loop-lag", "metrics-tick", "producer-expiration", "log-retention"})
"""Periodic tasks that would only take time here."""


class LoopClock:
    """Both clocks read the time of the process's loop."""

    def __init__(self, loop: ProcessLoop) -> None:
        self._world = loop.world

    def now_ms(self) -> int:
        return self._world.now_ms()

    def monotonic_ms(self) -> float:
        return self._world.now_s * 1000


class SimulatedBroker(Broker):
    """The product's broker in one process of the simulation."""

    session: SimulatedSession

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        files: MemoryFiles,
        coordination: Coordination,
        network: Network,
        loop: ProcessLoop,
    ) -> None:
        super().__init__(config, environment, files)
        self.loop = loop
        self._zookeeper = coordination
        self._network = network

    async def _coordination(self, logs: LogRegistry) -> SimulatedSession:
        session = self._zookeeper.connect(self.loop, self.config.zookeeper_session_timeout_ms)
        self.session = session
        self._stack.callback(session.close)
        await session.wait_connected()
        await make_roots(session)
        return session

    def _make_server(self, services: Services) -> Any:
        access = RequestAuthorization(services.inter_broker)
        dispatcher = Dispatcher(Routes(ROUTES), services, access=access, budget=self.environment.budget)
        return SimulatedServer(dispatcher, self._network, self.loop.name, self.loop)

    def _schedule(self, scheduler: BackgroundTasks, services: Services) -> None:
        schedule(_Wanted(scheduler), self.config, services, self.metrics)  # type: ignore[arg-type]


class _Wanted:
    """Starts the periodic tasks that matter here."""

    def __init__(self, tasks: BackgroundTasks) -> None:
        self._tasks = tasks

    def lasting(self, work: Any, name: str) -> None:
        work.close()

    def every(self, name: str, interval_ms: float, work: Any) -> None:
        if name not in UNWANTED:
            self._tasks.every(name, interval_ms, work)


class Process:
    """The life of one broker process, from its start to its end."""

    def __init__(self, broker: SimulatedBroker, life: int) -> None:
        self.broker = broker
        self.life = life
        """Counts the processes of all brokers."""
        self.loop = broker.loop
        self.is_serving = False
        self.ended = False
        self.failure: BaseException | None = None
        self._main: asyncio.Task[None] | None = None
        self.loop.post(0.0, self._begin)

    def _begin(self) -> None:
        self._main = self.loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            async with self.broker:
                self.is_serving = True
                await self.broker.serve_forever()
        except (StartupRefused, asyncio.CancelledError):
            pass
        except Exception as error:
            self.failure = error
        finally:
            self.is_serving = False
            self.ended = True

    def stop(self) -> None:
        """Stop as at SIGTERM: leaderships are handed over, logs closed."""
        if self._main is not None:
            self._main.cancel()


class _Inline:
    """Stands in for ThreadPoolExecutor where the product waits for its threads: the work is done here."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(work, items)

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments))
        return future


class _Defects(logging.Handler):
    """Takes what the product logs with a traceback: an exception that it did not expect."""

    def emit(self, record: logging.LogRecord) -> None:
        loop = events._get_running_loop()
        if isinstance(loop, ProcessLoop) and record.exc_info and record.exc_info[1] is not None:
            loop.world.failures.append(f"{loop.name}: {record.getMessage()}: {record.exc_info[1]!r}")


def _open(
    address: peers.Address,
    client_id: str,
    timeout_ms: int,
    source_host: str | None,
    receive_buffer_bytes: int,
    security: Mapping[str, Any],
) -> SimulatedConnection:
    return SimulatedConnection(Address(*address), client_config(client_id, timeout_ms))


_log_truncated = HostedPartition.log_truncated


def _truncated(self: HostedPartition) -> None:
    """Check the invariants before the records that are missing now are copied once more."""
    _log_truncated(self)
    loop = events._get_running_loop()
    assert isinstance(loop, ProcessLoop)
    loop.world.look_now = True


@contextmanager
def simulated_machine(*, leaves_garbage: bool = False) -> Iterator[None]:
    """Replace what a broker takes from the machine: connections, threads, the page cache.

    Tasks of killed brokers are collected at the end only, and what they say then is dropped. A process that
    is about to end may leave them: looking for them takes a sixth of the time of a schedule.
    """
    replaced: list[tuple[Any, str, Any]] = [
        (peers, "open_connection", _open),
        (registry, "ThreadPoolExecutor", _Inline),
        (HostedPartition, "is_cold", lambda *_: False),
        (HostedPartition, "log_truncated", _truncated),
    ]
    before = [getattr(owner, name) for owner, name, _ in replaced]
    for owner, name, stand_in in replaced:
        setattr(owner, name, stand_in)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    collects = gc.isenabled()
    gc.disable()
    defects = _Defects(logging.ERROR)
    logging.getLogger().addHandler(defects)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(defects)
        if not leaves_garbage:
            for _ in range(3):  # a coroutine that waits in its `finally` needs several
                gc.collect()
            sys.unraisablehook = hook
            if collects:
                gc.enable()
        for (owner, name, _), original in zip(replaced, before, strict=True):
            setattr(owner, name, original)
