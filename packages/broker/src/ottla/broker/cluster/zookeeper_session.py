"""The broker's use of its ZooKeeper session: retries, calls at the same time, metrics, and its lease.

A process that was stopped for longer than its session lasts (SIGSTOP, a paused virtual machine) learns of the
end only when kazoo has connected again; meanwhile another broker may have taken its id, and what this one
would acknowledge is lost. So it asks after a sleep, by a lease on its own clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from ottla.protocol.errors import InvalidRequest, KafkaError, RequestTimedOut
from ottla.zookeeper import paths
from ottla.zookeeper.errors import (
    ConnectionLoss,
    NotStored,
    OperationTimeout,
    SessionExpired,
    ValueTooLarge,
    ZooKeeperError,
)
from ottla.zookeeper.session import SessionState, StateChange

if TYPE_CHECKING:
    from ottla.broker.metrics import Metrics
    from ottla.zookeeper.session import Session


_T = TypeVar("_T")

RETRY_BACKOFF_S: Final = 0.1
READS_AT_ONCE: Final = 50
"""To begin an operation takes the event loop 0.1 ms; what is under way meanwhile keeps ZooKeeper busy."""


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


async def retrying(attempt: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat a call while ZooKeeper is unreachable, until the session ends or the caller cancels.

    Only for idempotent calls: a write whose answer was lost may have been applied.
    """
    while True:
        try:
            return await attempt()
        except ZooKeeperError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(RETRY_BACKOFF_S)


@contextmanager
def zookeeper_errors(too_large: type[KafkaError] = InvalidRequest) -> Iterator[None]:
    """Translate what ZooKeeper refuses into Kafka's errors: RequestTimedOut, or `too_large` for a value."""
    try:
        yield
    except (ConnectionLoss, OperationTimeout, SessionExpired, TimeoutError) as error:
        raise RequestTimedOut("ZooKeeper did not answer in time.") from error
    except NotStored as error:
        raise RequestTimedOut("ZooKeeper cannot store changes now: its disk is full.") from error
    except ValueTooLarge as error:
        raise too_large(f"{error.path} would be too large for ZooKeeper: {error.detail}.") from error


def measure_session(session: Session, metrics: Metrics) -> None:
    """Register gauges of the session's state, and meters of its connects, disconnects and expirations."""
    kind = ("kafka.server", "SessionExpireListener")
    meters = {
        SessionState.CONNECTED: metrics.meter(*kind, "ZooKeeperSyncConnectsPerSec"),
        SessionState.SUSPENDED: metrics.meter(*kind, "ZooKeeperDisconnectsPerSec"),
        SessionState.LOST: metrics.meter(*kind, "ZooKeeperExpiresPerSec"),
    }

    def changed(change: StateChange) -> None:
        if change.state in meters:
            meters[change.state].mark()

    session.listen(changed)
    for state in SessionState:
        metrics.gauge(*kind, "SessionState", partial(_is_in, session, state), state=state.value)


def _is_in(session: Session, state: SessionState) -> bool:
    return session.state is state


async def all_of(calls: Iterable[Awaitable[_T]], at_once: int = READS_AT_ONCE) -> list[_T]:
    """The results of calls, in their order; each is made when it begins, and none after one has failed."""
    rest, found, failed = enumerate(calls), dict[int, _T](), asyncio.Event()

    async def one_after_the_other() -> None:
        try:
            while not failed.is_set() and (following := next(rest, None)):
                found[following[0]] = await following[1]
        except BaseException:
            failed.set()
            raise

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    return [found[number] for number in range(len(found))]
