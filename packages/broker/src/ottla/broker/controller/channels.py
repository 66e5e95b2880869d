"""The controller's channels to brokers: a queue each, one request at a time, repeated until answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.controller.control_request_batch import ControlRequest
from ottla.broker.controller.controller_context import LiveBroker
from ottla.broker.controller.events import ControlResponse
from ottla.broker.controller.metrics import hide_queue_size, show_queue_size
from ottla.broker.peers.client import IncompatibleBroker
from ottla.protocol.errors import ErrorCode, error_for
from ottla.protocol.messages.control_requests import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from ottla.protocol.primitives import UnencodableValue, UnknownVersion, UnsupportedField

if TYPE_CHECKING:
    from ottla.broker.metrics import Metrics
    from ottla.broker.peers.client import Peer

_log = logging.getLogger("controller")

RETRY_BACKOFF_S = 0.1
DENIED_BACKOFF_S = 1.0
_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED.name
_STALE = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.STALE_CONTROLLER_EPOCH)
UNENCODABLE = (UnencodableValue, UnknownVersion, UnsupportedField)

Replied = Callable[[LiveBroker, ControlRequest, ControlResponse], None]
Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]


class Sender(Protocol):
    """Sends requests to one broker."""

    async def send(self, request: ControlRequest) -> ControlResponse:
        """Send a request and return the response.

        Raises OSError when the broker does not respond, and `IncompatibleBroker`.
        """
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class RemoteSender:
    """Sends requests to another broker."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def send(self, request: ControlRequest) -> ControlResponse:
        """Send a request and return the response. Raises the errors of `Peer.send`."""
        match request:
            case LeaderAndIsrRequest():
                return await self._peer.send(request, LeaderAndIsrResponse)
            case UpdateMetadataRequest():
                return await self._peer.send(request, UpdateMetadataResponse)
            case StopReplicaRequest():
                return await self._peer.send(request, StopReplicaResponse)

    async def close(self) -> None:
        """Close the connection."""
        await self._peer.close()


class Channel:
    """The queue of requests to one broker, for one of its registrations; its endpoints may change."""

    def __init__(self, broker: LiveBroker, sender: Sender, replied: Replied) -> None:
        self.broker = broker
        self.task: asyncio.Task[None] | None = None
        self._sender = sender
        self._retired: list[Sender] = []
        """Senders to earlier endpoints."""
        self._replied = replied
        self._queue: asyncio.Queue[ControlRequest] = asyncio.Queue()
        self._failed = ""
        """The failure since the last response; it is logged once, not for each request."""

    @property
    def waiting(self) -> int:
        """Requests that have not been sent."""
        return self._queue.qsize()

    def put(self, request: ControlRequest) -> None:
        """Queue a request behind the earlier ones."""
        self._queue.put_nowait(request)

    def move_to(self, broker: LiveBroker, sender: Sender) -> None:
        """Send the requests of the queue to other endpoints; the one under way is repeated if it fails."""
        self.broker = broker
        self._retired.append(self._sender)
        self._sender = sender

    async def _close_retired(self) -> None:
        while self._retired:
            await self._retired.pop().close()

    async def run(self) -> None:
        """Send requests until cancelled; the owner cancels when the registration is gone."""
        try:
            while True:
                request = await self._queue.get()
                response = await self._deliver(request)
                if response is not None:
                    self._note_refusal(request, response)
                    self._replied(self.broker, request, response)
        finally:
            await self._sender.close()
            await self._close_retired()

    async def _deliver(self, request: ControlRequest) -> ControlResponse | None:
        """Return the response of the broker; None for a request that is dropped."""
        while True:
            await self._close_retired()
            try:
                response = await self._sender.send(request)
            except UNENCODABLE as error:
                # No repetition helps, nor would another controller, which would decide the same: the later
                # requests go on, and the line names the field.
                self._drop(request, error)
                return None
            except Exception as error:
                # A dropped request would leave a partition without a leader, so it is repeated after
                # every failure for as long as the broker is registered.
                self._note(error)
                await asyncio.sleep(RETRY_BACKOFF_S)
            else:
                if response.error_code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                    self._failed = ""
                    return response
                self._note_denial(request, response)
                await asyncio.sleep(DENIED_BACKOFF_S)

    def _note_denial(self, request: ControlRequest, response: ControlResponse) -> None:
        """Log, once, that a broker does not know this one for a broker.

        It would refuse later requests as well, until it can read the registrations or its settings change.
        Without this one it would keep the roles that it had before.
        """
        if self._failed != _DENIED:
            self._failed = _DENIED
            self._note_refusal(request, response)

    def _drop(self, request: ControlRequest, error: Exception) -> None:
        _log.error(
            "request dropped: it cannot be encoded",
            extra={"broker": self.broker.id, "request": type(request).__name__, "reason": str(error)},
        )

    def _note_refusal(self, request: ControlRequest, response: ControlResponse) -> None:
        """Log a request that its broker refused whole.

        A stale epoch says that this broker or another controller is newer, which ends the matter by itself.
        """
        code = response.error_code
        if code != ErrorCode.NONE:
            _log.log(
                logging.INFO if code in _STALE else logging.WARNING,
                "request refused by broker",
                extra={
                    "broker": self.broker.id,
                    "request": type(request).__name__,
                    "error": type(error_for(code)).__name__,
                },
            )

    def _note(self, error: Exception) -> None:
        is_incompatible = isinstance(error, IncompatibleBroker)
        # Without a response the broker has gone: its registration ends soon.
        expected = isinstance(error, OSError) and not is_incompatible
        kind = OSError.__name__ if expected else repr(error)
        if self._failed != kind:
            self._failed = kind
            _log.log(
                logging.INFO if expected else logging.WARNING,
                "request to broker failed",
                exc_info=not (expected or is_incompatible),
                extra={"broker": self.broker.id, "reason": str(error)},
            )


class Channels:
    """The channels of one controllership."""

    def __init__(
        self, connect: Callable[[LiveBroker], Sender], replied: Replied, spawn: Spawn, metrics: Metrics
    ) -> None:
        self._metrics = metrics
        self._connect = connect
        self._replied = replied
        self._spawn = spawn
        self._channels: dict[int, Channel] = {}

    def follow(self, live: Mapping[int, LiveBroker]) -> None:
        """Open channels to new brokers, close those of brokers that left or bounced, move the others."""
        for broker_id, channel in list(self._channels.items()):
            broker = live.get(broker_id)
            if broker is None or broker.epoch != channel.broker.epoch:
                self._drop(broker_id)
            elif broker != channel.broker:
                channel.move_to(broker, self._connect(broker))
        for broker_id, broker in live.items():
            if broker_id not in self._channels:
                channel = self._channels[broker_id] = Channel(broker, self._connect(broker), self._replied)
                channel.task = self._spawn(channel.run(), f"controller-to-broker-{broker_id}")
                show_queue_size(self._metrics, channel, broker_id)

    def send(self, broker: LiveBroker, request: ControlRequest) -> None:
        """Queue a request; one for a broker that has left is dropped."""
        channel = self._channels.get(broker.id)
        if channel is not None and channel.broker.epoch == broker.epoch:
            channel.put(request)

    def waiting(self) -> int:
        """Requests in all queues."""
        return sum(channel.waiting for channel in self._channels.values())

    def close(self) -> None:
        """Close all channels; their queued requests are dropped."""
        for broker_id in list(self._channels):
            self._drop(broker_id)

    def _drop(self, broker_id: int) -> None:
        channel = self._channels.pop(broker_id)
        hide_queue_size(self._metrics, broker_id)
        if channel.task is not None:
            channel.task.cancel()
