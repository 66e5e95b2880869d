"""The state that all connections of one broker share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ottla.broker.network.open_connections import Closable
from ottla.broker.network.request_memory import Receiving
from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.network.dispatcher import Dispatcher
    from ottla.broker.network.frames import ReceiveBuffer
    from ottla.broker.network.native_connection import WriteRound
    from ottla.broker.network.open_connections import OpenConnections
    from ottla.broker.network.request_memory import RequestMemory
    from ottla.broker.network.request_metrics import RequestTimes
    from ottla.broker.network.request_queue import RequestQueue
    from ottla.broker.network.response_queue import FullSockets
    from ottla.broker.network.session import Session
    from ottla.broker.runtime.log_lines import LimitedWarnings
    from ottla.broker.runtime.loop_budget import StepQueue


class Served(Closable, Receiving, Protocol):
    """A connection, as the parts that all share see it."""


C = TypeVar("C", bound=Served)


@frozen(kw_only=True)
class Shared(Generic[C]):
    """Parts that all connections of one broker share."""

    config: BrokerConfig
    dispatcher: Dispatcher[Any]
    receive_buffer: ReceiveBuffer
    record_keys: frozenset[int]
    """The APIs whose requests are as large as any frame."""
    times: RequestTimes
    queue: RequestQueue
    closing: StepQueue
    memory: RequestMemory[C]
    connections: OpenConnections[C]
    write_round: WriteRound
    full_sockets: FullSockets
    warnings: LimitedWarnings
    is_broker: Callable[[Session], bool | None]
    """Whether the other end is a broker of the cluster; None while that is not known."""
    now_s: Callable[[], float]
    """The loop's clock: requests are timed with it."""
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    """Runs work in a task of the server."""
