"""The broker's use of its ZooKeeper session: retries while the connection is lost, and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from ottla.protocol.errors import InvalidRequest, KafkaError, RequestTimedOut
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
