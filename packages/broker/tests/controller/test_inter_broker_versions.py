"""Between brokers the versions of level 2.8 are spoken, whatever a neighbour advertises."""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Any

import pytest

from ottla.broker.api.routes import ROUTES
from ottla.broker.controller.channels import Channel, RemoteSender
from ottla.broker.controller.controller_context import LiveBroker
from ottla.broker.controller.testing import ControllerCluster, play
from ottla.broker.network.dispatcher import BadRequest, Dispatcher
from ottla.broker.peers.client import MOST, Address, IncompatibleBroker, Peer
from ottla.broker.requests.routes import Routes
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.control_requests import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from ottla.zookeeper import paths
from ottla.zookeeper.znodes import FeatureNode

RESPONSES: dict[int, Any] = {
    ApiKey.LEADER_AND_ISR: LeaderAndIsrResponse(),
    ApiKey.UPDATE_METADATA: UpdateMetadataResponse(),
    ApiKey.STOP_REPLICA: StopReplicaResponse(),
}
REQUESTS = (LeaderAndIsrRequest(), UpdateMetadataRequest(), StopReplicaRequest())


class Neighbour:
    """A broker that serves these APIs in the given versions, and remembers those it was asked in."""

    def __init__(self, least: int, most: int) -> None:
        self.asked: dict[int, int] = {}
        ranges = [ApiVersion(api_key=key, min_version=least, max_version=most) for key in RESPONSES]
        self._versions = ApiVersionsResponse(
            api_keys=[*ranges, ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=0)]
        )

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                frame = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
                key, version, correlation_id = struct.unpack_from(">hhi", frame)
                body = b"" if key == ApiKey.API_VERSIONS else b"\0"  # a flexible header has tagged fields
                if key == ApiKey.API_VERSIONS:
                    body += self._versions.encode(version)
                else:
                    self.asked[key] = version
                    body += RESPONSES[key].encode(version)
                writer.write(struct.pack(">ii", len(body) + 4, correlation_id) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def ask(neighbour: Neighbour, requests: tuple[Any, ...]) -> None:
    """Send requests to a neighbour as a controller does."""
    server = await asyncio.start_server(neighbour.serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        sender = RemoteSender(Peer(lambda: Address("127.0.0.1", port), "controller-1", 30_000))
        try:
            for request in requests:
                await sender.send(request)
        finally:
            await sender.close()


async def test_requests_of_the_controller_have_the_versions_of_the_level() -> None:
    neighbour = Neighbour(0, 9)

    await ask(neighbour, REQUESTS)

    assert neighbour.asked == {key: MOST[key] for key in RESPONSES}


async def test_a_broker_without_these_versions_is_told_what_to_change() -> None:
    with pytest.raises(IncompatibleBroker, match=r"inter\.broker\.protocol\.version=2\.8"):
        await ask(Neighbour(9, 9), REQUESTS[:1])


async def test_that_is_one_line_without_a_traceback_however_often_it_is_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Refusing:
        tries = 0

        async def send(self, request: Any) -> Any:
            self.tries += 1
            if self.tries == 3:
                done.set()
            raise IncompatibleBroker("what to change")

        async def close(self) -> None: ...

    done = asyncio.Event()
    channel = Channel(LiveBroker(2, 1), Refusing(), lambda *_: None)
    channel.put(REQUESTS[0])
    task = asyncio.ensure_future(channel.run())
    async with asyncio.timeout(30):
        await done.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    [line] = [one for one in caplog.records if one.name == "controller"]
    assert (line.levelno, line.exc_info or None, line.__dict__["reason"]) == (
        logging.WARNING,
        None,
        "what to change",
    )


@pytest.mark.parametrize("key", [ApiKey.LEADER_AND_ISR, ApiKey.FETCH, ApiKey.UPDATE_METADATA])
def test_a_request_above_all_served_versions_is_refused_with_what_to_change(key: ApiKey) -> None:
    class AnySession:
        from ottla.broker.network.session import SessionState

        state = SessionState.AUTHENTICATED

    dispatcher: Dispatcher[Any] = Dispatcher(Routes(ROUTES), None)
    newest = next(route.max_version for route in ROUTES if route.api_key is key)
    frame = struct.pack(">hhi", key, newest + 1, 7)
    try:
        with pytest.raises(BadRequest, match=r"set inter\.broker\.protocol\.version=2\.8"):
            dispatcher.read(memoryview(frame), AnySession(), 0.0)  # type: ignore[arg-type]
    finally:
        dispatcher.close()


def test_features_of_a_later_level_are_named_by_the_controller(caplog: pytest.LogCaptureFixture) -> None:
    async def story(cluster: ControllerCluster) -> None:
        session = cluster.brokers[1].session
        await session.set(paths.FEATURE, FeatureNode(version=2).encode())
        caplog.clear()

        await session.delete(paths.CONTROLLER)

        await cluster.until(
            lambda: any("2.8" in getattr(record, "advice", "") for record in caplog.records), "named"
        )
        await cluster.until(lambda: cluster.active is not None, "a controller all the same")

    play(story, 1)
