"""A channel repeats what a broker did not answer, and never stops at what cannot be sent at all."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ottla.broker.controller import channels
from ottla.broker.controller.channels import Channel, Channels, Sender
from ottla.broker.controller.control_request_batch import ControlRequest
from ottla.broker.controller.controller_context import Endpoint, LiveBroker
from ottla.broker.controller.events import ControlResponse
from ottla.broker.metrics import Metrics
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.control_requests import UpdateMetadataRequest, UpdateMetadataResponse


class Refusing:
    """A broker that refuses each request whole."""

    def __init__(self, error: ErrorCode) -> None:
        self._error = error

    async def send(self, request: ControlRequest) -> ControlResponse:
        return UpdateMetadataResponse(error_code=self._error)

    async def close(self) -> None: ...


class Denying:
    """A broker that does not know the controller for a broker at first."""

    def __init__(self, refusals: int) -> None:
        self.left = refusals

    async def send(self, request: ControlRequest) -> ControlResponse:
        if self.left:
            self.left -= 1
            return UpdateMetadataResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return UpdateMetadataResponse()

    async def close(self) -> None: ...


class Encoding:
    """Encodes requests as a connection does before it writes them, after some failures of the network."""

    def __init__(self, failures: int) -> None:
        self.left = failures

    async def send(self, request: ControlRequest) -> ControlResponse:
        if self.left:
            self.left -= 1
            raise ConnectionError("gone")
        request.encode(7)
        return UpdateMetadataResponse()

    async def close(self) -> None: ...


async def answered_to(
    *requests: UpdateMetadataRequest, failures: int = 0, broker: Sender | None = None
) -> list[ControlRequest]:
    """Send requests over one channel until the last is answered; return the answered ones."""
    answered: list[ControlRequest] = []
    done = asyncio.Event()

    def replied(broker: LiveBroker, request: ControlRequest, response: ControlResponse) -> None:
        answered.append(request)
        if request is requests[-1]:
            done.set()

    channel = Channel(LiveBroker(2, 1), broker or Encoding(failures), replied)
    for request in requests:
        channel.put(request)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(channel.run())
        try:
            async with asyncio.timeout(20):
                await done.wait()
        finally:
            running.cancel()
    return answered


async def test_a_request_that_cannot_be_encoded_is_dropped_and_named_and_later_ones_are_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = UpdateMetadataRequest(controller_id=1, controller_epoch=2**40)
    good = UpdateMetadataRequest(controller_id=1, controller_epoch=3)

    assert await answered_to(bad, good) == [good]

    [line] = [one for one in caplog.records if one.name == "controller"]
    assert (line.levelno, line.getMessage()) == (logging.ERROR, "request dropped: it cannot be encoded")
    assert line.__dict__["broker"] == 2
    assert "UpdateMetadataRequest" in line.__dict__["reason"]
    assert "controller_epoch" in line.__dict__["reason"]


async def test_a_request_that_the_network_lost_is_repeated_before_later_ones() -> None:
    first = UpdateMetadataRequest(controller_id=1, controller_epoch=2)
    second = UpdateMetadataRequest(controller_id=1, controller_epoch=3)

    assert await answered_to(first, second, failures=2) == [first, second]


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (ErrorCode.UNKNOWN_SERVER_ERROR, logging.WARNING),
        (ErrorCode.STALE_BROKER_EPOCH, logging.INFO),
    ],
)
async def test_a_request_that_its_broker_refuses_is_named_and_not_repeated(
    error: ErrorCode, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    request = UpdateMetadataRequest(controller_id=1, controller_epoch=3)

    with caplog.at_level(logging.INFO, "controller"):
        assert await answered_to(request, broker=Refusing(error)) == [request]

    [line] = [one for one in caplog.records if one.getMessage() == "request refused by broker"]
    assert (line.levelno, line.__dict__["broker"]) == (level, 2)
    assert line.__dict__["request"] == "UpdateMetadataRequest"


async def test_a_request_is_repeated_until_its_broker_knows_who_sends_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dropped one would leave the broker with the roles of an earlier leader epoch for good."""
    monkeypatch.setattr(channels, "DENIED_BACKOFF_S", 0.0)
    first = UpdateMetadataRequest(controller_id=1, controller_epoch=2)
    second = UpdateMetadataRequest(controller_id=1, controller_epoch=3)
    broker = Denying(3)

    assert await answered_to(first, second, broker=broker) == [first, second]

    assert broker.left == 0
    [line] = [one for one in caplog.records if one.getMessage() == "request refused by broker"]
    assert line.__dict__["error"] == "ClusterAuthorizationFailed"


class AtAddress:
    """A broker at one of its addresses: requests fail while nothing listens there."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.host = endpoint.host
        self.received: list[ControlRequest] = []
        self.is_closed = False

    async def send(self, request: ControlRequest) -> ControlResponse:
        if self.host == "before":
            raise ConnectionError("nothing listens")
        self.received.append(request)
        return UpdateMetadataResponse()

    async def close(self) -> None:
        self.is_closed = True


async def test_the_requests_of_a_broker_with_new_addresses_are_sent_there_and_none_is_lost() -> None:
    requests = [UpdateMetadataRequest(controller_id=1, controller_epoch=epoch) for epoch in (2, 3)]
    senders: list[AtAddress] = []
    done = asyncio.Event()

    def connect(broker: LiveBroker) -> AtAddress:
        senders.append(AtAddress(broker.endpoints[0]))
        return senders[-1]

    def replied(broker: LiveBroker, request: ControlRequest, response: ControlResponse) -> None:
        if request is requests[-1]:
            done.set()

    before, after = (LiveBroker(2, 1, (Endpoint("PLAINTEXT", host, 9092),)) for host in ("before", "after"))
    async with asyncio.TaskGroup() as tasks:
        open_channels = Channels(
            connect, replied, lambda work, name: tasks.create_task(work, name=name), Metrics()
        )
        open_channels.follow({2: before})
        for request in requests:
            open_channels.send(before, request)
        await asyncio.sleep(0)  # the first is under way

        open_channels.follow({2: after})

        async with asyncio.timeout(20):
            await done.wait()
        open_channels.close()
    assert senders[1].received == requests
    assert [sender.is_closed for sender in senders] == [True, True]
