"""Connections by broker address: connect on first use, reconnect after a backoff, ask several at once.

Several servers are asked the same one after the other with a short stagger, and the first answer wins: one
that is silent then costs the stagger, not a timeout. RFC 8305 connects to the addresses of one host in the
same way, and with the same stagger.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.client.environment import chance
from ottla.client.errors import (
    AuthenticationFailed,
    ClientClosed,
    ClientError,
    NoBrokerAvailable,
    UnsupportedByBroker,
)
from ottla.client.retry import Backoff

T = TypeVar("T")

BOOTSTRAP_STAGGER_S: Final = 0.25
"""The stagger between servers of which none has answered yet."""
STAGGER_S: Final = 1.0
"""The stagger in a cluster that is known: a busy broker shall not be taken for a silent one at once."""

_FINAL = (AuthenticationFailed, ClientClosed, UnsupportedByBroker)


@dataclass(slots=True)
class _PooledConnection:
    """The connection to one address, and how attempts to make it went."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: Connection | None = None
    attempts: int = 0
    failure: ClientError | None = None
    """The error of the last attempt."""
    failures: int = 0
    """Attempts that failed in a row."""
    not_before_s: float = 0.0


class Pool:
    """One connection per broker, shared by all tasks.

    After a failure to connect, the next attempt to that address waits for a growing backoff (KIP-144).
    """

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._backoff = Backoff(config.retry_backoff_ms / 2, config.retry_backoff_max_ms)
        self._pooled: dict[Address, _PooledConnection] = {}
        self._closed = False

    async def get(self, address: Address) -> Connection:
        """Return an open connection. Raises the ClientError of one attempt, or ClientClosed."""
        pooled = self._pooled.setdefault(address, _PooledConnection())
        if pooled.connection is not None and pooled.connection.is_open:
            return pooled.connection
        attempts = pooled.attempts
        async with pooled.lock:
            # Another task may have connected, or failed to, while this one waited for the lock. Its attempt
            # counts for all tasks that waited: if each made its own, a broker that does not respond would
            # cost the last of them as many timeouts as there are tasks.
            if pooled.connection is None or not pooled.connection.is_open:
                if pooled.attempts != attempts and pooled.failure is not None:
                    raise pooled.failure.with_traceback(None)
                pooled.connection = await self._connect(address, pooled)
            return pooled.connection

    def opened(self, address: Address) -> Connection | None:
        """Return the connection that `get` would return at once, or None."""
        pooled = self._pooled.get(address)
        connection = None if pooled is None else pooled.connection
        return connection if connection is not None and connection.is_open else None

    def feature_level(self, name: str) -> int | None:
        """Return the level of a feature in the newest levels that open connections began with.

        Where none is open, the last ones count. 0 without the feature, None without a connection.
        """
        held = [pooled.connection for pooled in self._pooled.values() if pooled.connection is not None]
        opened = [connection for connection in held if connection.is_open]
        newest = max(opened or held, key=attrgetter("features_epoch"), default=None)
        return None if newest is None else newest.features.get(name, 0)

    def is_connected(self, address: Address) -> bool:
        """Return whether `get` would return an open connection at once."""
        return self.opened(address) is not None

    def has_failed(self, address: Address) -> bool:
        """Return whether the last attempt to connect failed, or the connection ended on a silent broker."""
        pooled = self._pooled.get(address)
        if pooled is None:
            return False
        ended = pooled.connection is not None and pooled.connection.timed_out
        return ended or pooled.failure is not None

    def in_flight(self, address: Address) -> int:
        """Return how many requests to an address wait for their responses."""
        pooled = self._pooled.get(address)
        return 0 if pooled is None or pooled.connection is None else pooled.connection.in_flight

    async def discard(self, address: Address) -> None:
        """Close the connection to an address, if there is one; the next `get` connects again."""
        pooled = self._pooled.get(address)
        if pooled is not None and pooled.connection is not None:
            connection, pooled.connection = pooled.connection, None
            await connection.close()

    def open(self) -> None:
        """Allow `get` again after `close`."""
        self._closed = False

    async def close(self) -> None:
        """Close all connections; `get` raises ClientClosed until `open`."""
        self._closed = True
        pooled, self._pooled = self._pooled.values(), {}
        connections = [held.connection for held in pooled if held.connection is not None]
        # All of them before the first wait: no one else closes the rest when it is cancelled.
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _connect(self, address: Address, pooled: _PooledConnection) -> Connection:
        await asyncio.sleep(max(0.0, pooled.not_before_s - asyncio.get_running_loop().time()))
        self._refuse_when_closed()
        connection = Connection(address, self.config)
        try:
            await connection.connect()
        except ClientError as error:
            pooled.attempts += 1
            pooled.failure = error
            delay_ms = self._backoff.delay_ms(pooled.failures, chance())
            pooled.not_before_s = asyncio.get_running_loop().time() + delay_ms / 1_000
            pooled.failures += 1
            raise
        pooled.attempts += 1
        pooled.failure, pooled.failures = None, 0
        try:
            self._refuse_when_closed()
        except ClientClosed:  # the pool was closed meanwhile and does not know this connection
            await connection.close()
            raise
        return connection

    def _refuse_when_closed(self) -> None:
        # Not a ConnectFailed: that is retriable, and callers would retry it until their deadline.
        if self._closed:
            raise ClientClosed("the client was closed")


async def first_answer(
    servers: Sequence[Address],
    ask: Callable[[Address], Awaitable[T]],
    *,
    stagger_s: float,
    timeout_s: float | None = None,
) -> T:
    """Return the first answer of `ask(server)`; the next server is asked after a stagger or a failure.

    Raises NoBrokerAvailable, which names each server and its cause, when all failed or `timeout_s` is over;
    AuthenticationFailed, ClientClosed and UnsupportedByBroker at once.
    """
    race: _Race[T] = _Race(ask, deque(servers))
    try:
        async with asyncio.timeout(timeout_s):
            answer = await race.run(stagger_s)
    except TimeoutError:
        answer = None
    if answer is None:
        raise NoBrokerAvailable(race.reasons(timeout_s))
    if isinstance(answer, Exception):
        raise answer
    return answer


@dataclass(slots=True)
class _Race(Generic[T]):
    ask: Callable[[Address], Awaitable[T]]
    waiting: deque[Address]
    running: dict[asyncio.Task[T | Exception], Address] = field(default_factory=dict)
    failed: dict[Address, ClientError] = field(default_factory=dict)
    silent: list[Address] = field(default_factory=list)

    async def run(self, stagger_s: float) -> T | Exception | None:
        """Return the first answer, or an error that no other server would mend; None if all failed."""
        async with asyncio.TaskGroup() as tasks:
            try:
                return await self._first(tasks, stagger_s)
            finally:
                self.silent = list(self.running.values())
                for task in self.running:
                    task.cancel()

    def reasons(self, timeout_s: float | None) -> list[str]:
        """Return why no server answered, a line for each that was asked."""
        late = f"no answer within {timeout_s:g} s" if timeout_s is not None else "no answer"
        return [*map(str, self.failed.values()), *(f"{address}: {late}" for address in self.silent)]

    async def _first(self, tasks: asyncio.TaskGroup, stagger_s: float) -> T | Exception | None:
        while self.waiting or self.running:
            if self.waiting:
                address = self.waiting.popleft()
                self.running[tasks.create_task(self._attempt(address))] = address
            bound_s = stagger_s if self.waiting else None
            done, _ = await asyncio.wait(self.running, timeout=bound_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                address = self.running.pop(task)
                answer = task.result()
                if not isinstance(answer, ClientError) or isinstance(answer, _FINAL):
                    return answer
                self.failed[address] = answer
        return None

    async def _attempt(self, address: Address) -> T | Exception:
        """Return the answer or the error: raised in here, it would end the whole group of tasks."""
        try:
            return await self.ask(address)
        except Exception as error:
            return error
