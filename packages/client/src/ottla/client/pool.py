"""Connections by address: made when they are first needed, made anew after a pause when they broke."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.client.errors import AuthenticationFailed, ClientClosed, ClientError
from ottla.client.retry import Backoff


@dataclass(slots=True)
class _Place:
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
        self._places: dict[Address, _Place] = {}
        self._closed = False

    async def get(self, address: Address) -> Connection:
        """Return an open connection. Raises ConnectFailed and its kin after one attempt; ClientClosed."""
        place = self._places.setdefault(address, _Place())
        if place.connection is not None and place.connection.is_open:
            return place.connection
        attempts = place.attempts
        async with place.lock:
            # While we waited for the lock another task may have connected, or tried to. Either counts for all
            # who waited: if each tried by itself, a broker that does not answer would cost the last one as
            # many timeouts as there are tasks.
            if place.connection is None or not place.connection.is_open:
                if place.attempts != attempts and place.failure is not None:
                    raise place.failure.with_traceback(None)
                place.connection = await self._connect(address, place)
            return place.connection

    def is_connected(self, address: Address) -> bool:
        """Say whether `get` has a connection at hand."""
        place = self._places.get(address)
        return place is not None and place.connection is not None and place.connection.is_open

    async def discard(self, address: Address) -> None:
        """Close the connection to an address, if there is one; the next `get` makes a new one."""
        place = self._places.get(address)
        if place is not None and place.connection is not None:
            connection, place.connection = place.connection, None
            await connection.close()

    def open(self) -> None:
        """Let connections be had again after `close`."""
        self._closed = False

    async def close(self) -> None:
        """Close all connections; none can be had afterwards, unless it is opened again."""
        self._closed = True
        places, self._places = self._places, {}
        for place in places.values():
            if place.connection is not None:
                await place.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _connect(self, address: Address, place: _Place) -> Connection:
        await asyncio.sleep(max(0.0, place.not_before_s - asyncio.get_running_loop().time()))
        self._refuse_when_closed()
        connection = Connection(address, self.config)
        try:
            await connection.connect()
        except AuthenticationFailed:
            raise
        except ClientError as error:
            place.attempts += 1
            place.failure = error
            delay_ms = self._backoff.delay_ms(place.failures, random.random())
            place.not_before_s = asyncio.get_running_loop().time() + delay_ms / 1_000
            place.failures += 1
            raise
        place.attempts += 1
        place.failure, place.failures = None, 0
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
