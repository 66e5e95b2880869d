"""The lease that a broker's ZooKeeper session gives it on its own clock: after a sleep the broker asks.

A process that was stopped for longer than its session lasts (SIGSTOP, a paused virtual machine) learns of the
end only when kazoo has connected again; meanwhile another broker may have taken its id, and what this one
would acknowledge is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ottla.broker.cluster.zookeeper_session import RETRY_BACKOFF_S
from ottla.zookeeper import paths
from ottla.zookeeper.errors import ZooKeeperError

if TYPE_CHECKING:
    from ottla.zookeeper.session import Session


class Serving(Protocol):
    """A server of requests that the lease holds back."""

    @property
    def until_ms(self) -> float:
        """The end of the lease, on the monotonic clock."""
        ...

    def hold(self) -> None:
        """Begin no request and write no answer."""
        ...

    def extend(self, until_ms: float) -> None:
        """Serve until then; what was held goes on."""
        ...


class SessionLease:
    """Extends the lease of a broker while its event loop runs, and after a sleep only if it is registered.

    The lease is half of the session timeout: kazoo writes to the server in each third of it, so that the
    session of a process that slept less than that is alive. `Serving` compares with the same clock.
    """

    def __init__(
        self, session: Session, broker_id: int, serving: Serving, monotonic_ms: Callable[[], float]
    ) -> None:
        self._session = session
        self._path = paths.broker(broker_id)
        self._serving = serving
        self._monotonic_ms = monotonic_ms
        self._lease_ms = session.timeout_ms / 2
        self._period_s = session.timeout_ms / 20_000

    async def run(self) -> None:
        """Extend the lease until cancelled."""
        self._serving.extend(self._monotonic_ms() + self._lease_ms)
        while True:
            await asyncio.sleep(self._period_s)
            begun_ms = self._monotonic_ms()
            if begun_ms > self._serving.until_ms:
                self._serving.hold()
                begun_ms = await self._registered_again()
            self._serving.extend(begun_ms + self._lease_ms)

    async def _registered_again(self) -> float:
        """Wait until the present session owns the registration; return when this was asked."""
        while True:
            asked_ms = self._monotonic_ms()
            if await self._is_registered() and self._monotonic_ms() <= asked_ms + self._lease_ms:
                return asked_ms
            await asyncio.sleep(RETRY_BACKOFF_S)

    async def _is_registered(self) -> bool:
        try:
            await self._session.sync(self._path)  # the server may lag behind the end of the session
            stat = await self._session.exists(self._path)
        except ZooKeeperError:
            return False
        return stat is not None and stat.ephemeral_owner == self._session.session_id
