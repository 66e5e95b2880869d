"""Requests to another broker: versions, lost connections, new addresses, and what a caller is told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from ottla.broker.cluster.metadata import MetadataCache
from ottla.broker.config import BrokerConfig
from ottla.broker.peers import Address, IncompatibleBroker, Peer, Peers
from ottla.broker.peers.client import MOST
from ottla.client.testing import ScriptedBroker
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import BrokerNotAvailable, ErrorCode
from ottla.protocol.messages.control_requests import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
)
from ottla.protocol.messages.controller_requests import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.messages.log_offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)

BOUND_MS = 30_000
ASKED = ListOffsetsRequest(replica_id=1)


def answering() -> ScriptedBroker:
    broker = ScriptedBroker()
    broker.on(ListOffsetsRequest, lambda _: ListOffsetsResponse())
    return broker


def peer_of(broker: ScriptedBroker, timeout_ms: int = BOUND_MS) -> Peer:
    return Peer(lambda: Address(broker.host, broker.port), "broker-1-test", timeout_ms)


async def test_a_request_has_the_newest_version_of_the_clusters_level() -> None:
    async with answering() as broker:
        peer = peer_of(broker)
        await peer.send(ASKED, ListOffsetsResponse)
        await peer.close()

    assert [version for kind, version in broker.requests if isinstance(kind, ListOffsetsRequest)] == [
        MOST[ApiKey.LIST_OFFSETS]
    ]


async def test_requests_of_one_moment_share_a_connection() -> None:
    async with answering() as broker:
        peer = peer_of(broker)
        await asyncio.gather(*(peer.send(ASKED, ListOffsetsResponse) for _ in range(5)))
        await peer.close()

    assert broker.connections == 1


async def test_a_lost_connection_fails_its_request_and_the_next_one_opens_another() -> None:
    async with answering() as broker:
        peer = peer_of(broker)
        await peer.send(ASKED, ListOffsetsResponse)
        broker.on(ListOffsetsRequest, lambda _: None)
        with pytest.raises(ConnectionError):
            await peer.send(ASKED, ListOffsetsResponse)
        broker.on(ListOffsetsRequest, lambda _: ListOffsetsResponse())

        await peer.send(ASKED, ListOffsetsResponse)
        await peer.close()

    assert broker.connections == 2


async def test_a_request_without_an_answer_fails_after_its_time() -> None:
    async with answering() as broker:
        broker.ignore(ListOffsetsRequest)
        peer = peer_of(broker, timeout_ms=50)
        with pytest.raises(ConnectionError):
            await peer.send(ASKED, ListOffsetsResponse)


async def test_a_request_that_its_caller_gives_up_leaves_no_answer_for_the_next() -> None:
    times = iter([[ListOffsetsTopicResponse(name="first")], [ListOffsetsTopicResponse(name="second")]])
    async with answering() as broker, asyncio.TaskGroup() as calls:
        peer = peer_of(broker)
        await peer.send(ASKED, ListOffsetsResponse)
        broker.on(ListOffsetsRequest, lambda _: ListOffsetsResponse(topics=next(times)))
        broker.hold()
        given_up = calls.create_task(peer.send(ASKED, ListOffsetsResponse))
        await received(broker, 2)
        given_up.cancel()
        await asyncio.wait([given_up])
        next_call = calls.create_task(peer.send(ASKED, ListOffsetsResponse))
        await received(broker, 3)
        broker.release()

        answer = await next_call
        await peer.close()

    assert [topic.name for topic in answer.topics] == ["second"]
    assert broker.connections == 1


async def test_a_call_that_is_cancelled_fails_no_other_call_on_the_connection() -> None:
    async with answering() as broker, asyncio.TaskGroup() as calls:
        peer = peer_of(broker)
        await peer.send(ASKED, ListOffsetsResponse)
        broker.hold()
        sent = [calls.create_task(peer.send(ASKED, ListOffsetsResponse)) for _ in range(3)]
        await received(broker, 4)
        sent[1].cancel()
        await asyncio.wait([sent[1]])
        broker.release()

        answers = [await sent[0], await sent[2]]
        await peer.close()

    assert answers == [ListOffsetsResponse(), ListOffsetsResponse()]
    assert broker.connections == 1


async def test_a_call_that_is_cancelled_while_it_connects_leaves_the_connecting_to_the_next() -> None:
    async with answering() as broker, asyncio.TaskGroup() as calls:
        broker.hold()
        peer = peer_of(broker)
        first, second = (calls.create_task(peer.send(ASKED, ListOffsetsResponse)) for _ in range(2))
        await until(lambda: broker.connections == 1)
        first.cancel()
        await asyncio.wait([first])
        broker.release()

        assert await second == ListOffsetsResponse()
        await peer.close()


async def test_a_request_that_the_broker_does_not_serve_fails_no_other_call() -> None:
    async with ScriptedBroker({ApiKey.ALTER_PARTITION: (2, 3)}) as broker, asyncio.TaskGroup() as calls:
        broker.on(AlterPartitionRequest, lambda _: AlterPartitionResponse())
        broker.on(ListOffsetsRequest, lambda _: ListOffsetsResponse())
        peer = peer_of(broker)
        await peer.send(ASKED, ListOffsetsResponse)
        broker.hold()
        served = calls.create_task(peer.send(ASKED, ListOffsetsResponse))
        await received(broker, 2)
        with pytest.raises(IncompatibleBroker):
            await peer.send(AlterPartitionRequest(), AlterPartitionResponse)
        broker.release()

        assert await served == ListOffsetsResponse()
        await peer.close()


async def test_a_request_that_was_given_up_and_stays_without_an_answer_ends_the_connection() -> None:
    async with answering() as broker, asyncio.TaskGroup() as calls:
        peer = peer_of(broker, timeout_ms=1_000)
        await peer.send(ASKED, ListOffsetsResponse)
        broker.hold()
        given_up = calls.create_task(peer.send(ASKED, ListOffsetsResponse))
        await received(broker, 2)
        given_up.cancel()
        await until(lambda: broker.open_connections == 0)
        broker.release()

        assert await peer.send(ASKED, ListOffsetsResponse) == ListOffsetsResponse()
        await peer.close()

    assert broker.connections == 2


async def received(broker: ScriptedBroker, count: int) -> None:
    await until(lambda: len(broker.seen(ListOffsetsRequest)) == count)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_broker_that_moved_is_asked_at_its_new_address() -> None:
    async with answering() as before, answering() as after:
        where = [before]
        peer = Peer(lambda: Address(where[0].host, where[0].port), "broker-1-test", BOUND_MS)
        await peer.send(ASKED, ListOffsetsResponse)
        where[0] = after

        await peer.send(ASKED, ListOffsetsResponse)
        await peer.close()

    assert (len(before.seen(ListOffsetsRequest)), len(after.seen(ListOffsetsRequest))) == (1, 1)


async def test_closing_fails_a_request_that_waits() -> None:
    async with answering() as broker:
        broker.ignore(ListOffsetsRequest)
        peer = peer_of(broker)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(failure(peer))
            await received(broker, 1)
            await peer.close()

    assert isinstance(waiting.result(), ConnectionError)


async def failure(peer: Peer) -> Exception | None:
    try:
        await peer.send(ASKED, ListOffsetsResponse)
    except ConnectionError as error:
        return error
    return None


async def test_a_broker_without_the_versions_of_the_level_is_incompatible() -> None:
    async with ScriptedBroker({ApiKey.ALTER_PARTITION: (2, 3)}) as broker:
        broker.on(AlterPartitionRequest, lambda _: AlterPartitionResponse())
        peer = peer_of(broker)
        with pytest.raises(IncompatibleBroker, match=r"inter\.broker\.protocol\.version=2\.8"):
            await peer.send(AlterPartitionRequest(), AlterPartitionResponse)
        await peer.close()


async def test_a_request_that_needs_a_later_version_finds_an_older_broker_incompatible() -> None:
    async with ScriptedBroker({ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3)}) as broker:
        broker.on(AddPartitionsToTxnRequest, lambda _: AddPartitionsToTxnResponse())
        peer = peer_of(broker)
        with pytest.raises(IncompatibleBroker):
            await peer.send(AddPartitionsToTxnRequest(), AddPartitionsToTxnResponse, min_version=4)
        await peer.close()


def live(broker_id: int, broker: ScriptedBroker) -> UpdateMetadataBroker:
    endpoint = UpdateMetadataEndpoint(
        port=broker.port, host=broker.host, listener="PLAINTEXT", security_protocol=0
    )
    return UpdateMetadataBroker(id=broker_id, endpoints=[endpoint])


async def test_brokers_are_found_by_the_metadata_at_each_request() -> None:
    metadata = MetadataCache(1)
    peers = Peers(metadata, BrokerConfig())
    second, controller = peers.broker(2, "test", BOUND_MS), peers.controller(BOUND_MS)
    with pytest.raises(BrokerNotAvailable, match="Broker 2 is not registered"):
        await second.send(ASKED, ListOffsetsResponse)
    with pytest.raises(BrokerNotAvailable, match="No controller is known"):
        await controller.send(ASKED, ListOffsetsResponse)

    async with answering() as two, answering() as three:
        brokers = [live(2, two), live(3, three)]
        metadata.update(UpdateMetadataRequest(controller_id=3, live_brokers=brokers))
        await second.send(ASKED, ListOffsetsResponse)
        await controller.send(ASKED, ListOffsetsResponse)
        await second.close()
        await controller.close()

        assert (len(two.seen(ListOffsetsRequest)), len(three.seen(ListOffsetsRequest))) == (1, 1)


async def test_connections_come_from_the_address_that_is_advertised_now() -> None:
    def advertising(host: str) -> BrokerConfig:
        return BrokerConfig(advertised_listeners=f"PLAINTEXT://{host}:9092")

    async with answering() as broker:
        peers = Peers(MetadataCache(1), advertising("127.0.0.1"))
        for host in ("127.0.0.1", "127.0.0.9"):
            peers.configure(advertising(host))
            peer = peers.registered(Address(broker.host, broker.port), BOUND_MS)
            await peer.send(ASKED, ListOffsetsResponse)
            assert {address for address, _ in broker.clients} == {host}
            await peer.close()
            await until(lambda: not broker.open_connections)


async def test_the_next_request_comes_from_an_address_that_was_advertised_since_the_last() -> None:
    async with answering() as broker:
        source = "127.0.0.1"
        peer = Peer(lambda: Address(broker.host, broker.port), "broker-1", BOUND_MS, lambda: source)
        await peer.send(ASKED, ListOffsetsResponse)
        source = "127.0.0.9"
        await peer.send(ASKED, ListOffsetsResponse)
        await peer.send(ASKED, ListOffsetsResponse)
        clients = [address for address, _ in broker.clients]
        await peer.close()

    assert broker.connections == 2
    assert clients[-1] == "127.0.0.9"


async def test_a_refused_broker_asks_again_over_another_connection() -> None:
    refusals = iter([int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), 0])
    async with ScriptedBroker() as broker:
        broker.on(AlterPartitionRequest, lambda _: AlterPartitionResponse(error_code=next(refusals)))
        peer = peer_of(broker)
        refused = await peer.send(AlterPartitionRequest(), AlterPartitionResponse)
        served = await peer.send(AlterPartitionRequest(), AlterPartitionResponse)
        await peer.close()

    assert (refused.error_code, served.error_code) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 0)
    assert broker.connections == 2


async def test_a_connection_has_the_receive_buffer_that_is_asked_for() -> None:
    async with answering() as broker:
        peer = Peer(
            lambda: Address(broker.host, broker.port),
            "broker-1-fetcher",
            BOUND_MS,
            receive_buffer_bytes=30_000,
        )
        await peer.send(ASKED, ListOffsetsResponse)
        assert peer._connection is not None
        assert peer._connection._wire is not None
        assert peer._connection._wire._transport is not None
        opened = peer._connection._wire._transport.get_extra_info("socket")
        size = opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        await peer.close()

    assert size in (30_000, 60_000)  # Linux reports twice the size
