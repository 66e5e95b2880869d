"""Connections by address: made when they are first needed, made anew after a pause when they broke."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.client.environment import chance
from ottla.client.errors import AuthenticationFailed, ClientClosed, ClientError
from ottla.client.retry import Backoff


@dataclass(slots=True)
class _PooledConnection:
    """What is known of one address."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: Connection | None = None
    attempts: int = 0
    failure: ClientError | None = None
    """What the last attempt failed with."""
    failures: int = 0
    """How many attempts failed one after the other."""
    not_before_s: float = 0.0


class Pool:
    """One connection per broker, shared by all that talk to it.

    After a failure to connect, the next attempt to that address waits for a time that grows (KIP-144).
    """

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self._backoff = Backoff(config.retry_backoff_ms / 2, config.retry_backoff_max_ms)
        self._pooled: dict[Address, _PooledConnection] = {}
        self._closed = False

    async def get(self, address: Address) -> Connection:
        """Return an open connection. Raises ConnectFailed and its kin after one attempt; ClientClosed."""
        pooled = self._pooled.setdefault(address, _PooledConnection())
        if pooled.connection is not None and pooled.connection.is_open:
            return pooled.connection
        attempts = pooled.attempts
        async with pooled.lock:
            # While we waited for the lock another task may have connected, or tried to. Either counts for all
            # who waited: if each tried by itself, a broker that does not answer would cost the last one as
            # many timeouts as there are tasks.
            if pooled.connection is None or not pooled.connection.is_open:
                if pooled.attempts != attempts and pooled.failure is not None:
                    raise pooled.failure.with_traceback(None)
                pooled.connection = await self._connect(address, pooled)
            return pooled.connection

    def is_connected(self, address: Address) -> bool:
        """Say whether `get` has a connection at hand."""
        pooled = self._pooled.get(address)
        return pooled is not None and pooled.connection is not None and pooled.connection.is_open

    async def discard(self, address: Address) -> None:
        """Close the connection to an address, if there is one; the next `get` makes a new one."""
        pooled = self._pooled.get(address)
        if pooled is not None and pooled.connection is not None:
            connection, pooled.connection = pooled.connection, None
            await connection.close()

    def open(self) -> None:
        """Let connections be had again after `close`."""
        self._closed = False

    async def close(self) -> None:
        """Close all connections; none can be had afterwards, unless it is opened again."""
        self._closed = True
        pooled_connections, self._pooled = self._pooled, {}
        for pooled in pooled_connections.values():
            if pooled.connection is not None:
                await pooled.connection.close()

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
        except AuthenticationFailed:
            raise
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
        except ClientClosed:  # closed while we connected: nobody else would close this one
            await connection.close()
            raise
        return connection

    def _refuse_when_closed(self) -> None:
        # Not as if a connection had failed: whoever tries that again would do so for as long as it has time.
        if self._closed:
            raise ClientClosed("the client was closed")
