from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from ottla.client.cluster import Cluster, NoSuchTopic
from ottla.client.config import Address, ClientConfig, parse_bootstrap_servers
from ottla.client.connection_pool import Pool, first_answer
from ottla.client.errors import AuthenticationFailed, ClientError, DeadlineExceeded, NoBrokerAvailable
from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.protocol.errors import BrokerNotAvailable, ErrorCode, LeaderNotAvailable, UnknownTopicOrPartition
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from ottla.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.protocol.topics import TopicPartition

IMPATIENT = ClientConfig(default_api_timeout_ms=300, retry_backoff_ms=5, retry_backoff_max_ms=20)


async def test_metadata_of_a_topic_is_requested_once_and_then_remembered() -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata("orders", partitions=3))
        async with Cluster(broker.bootstrap_servers) as cluster:
            topic = await cluster.topic("orders")
            asked = len(broker.requests)
            await cluster.topic("orders")

            assert sorted(topic.partitions) == [0, 1, 2]
            assert len(broker.requests) == asked


async def test_all_topics_come_sorted_and_are_remembered_but_those_with_an_error() -> None:
    async with ScriptedBroker() as broker:
        answer = broker.metadata("orders", "audit")
        answer.topics.append(
            MetadataResponseTopic(name="secret", error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        )
        broker.on(MetadataRequest, lambda _: answer)
        async with Cluster(broker.bootstrap_servers) as cluster:
            found = await cluster.all_topics()

            assert [topic.name for topic in found] == ["audit", "orders"]
            assert cluster.known_topic("orders") is found[1]
            assert cluster.known_topic("secret") is None
            assert cluster.known_leader(TopicPartition("orders", 0)) == NODE_ID


async def test_the_leader_of_a_partition_is_found_and_forgotten_when_it_moved() -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata("orders"))
        async with Cluster(broker.bootstrap_servers) as cluster:
            assert await cluster.leader(TopicPartition("orders", 0)) == (NODE_ID, 0)

            cluster.forget("orders")
            broker.on(MetadataRequest, lambda _: broker.metadata("orders", leader=-1))
            with pytest.raises(LeaderNotAvailable):
                await cluster.leader(TopicPartition("orders", 0))
            with pytest.raises(UnknownTopicOrPartition):
                await cluster.leader(TopicPartition("orders", 7))


async def test_a_topic_being_created_is_waited_for() -> None:
    async with ScriptedBroker() as broker:
        answers = [_without("new", ErrorCode.LEADER_NOT_AVAILABLE, broker)] * 3
        broker.on(MetadataRequest, lambda _: answers.pop() if answers else broker.metadata("new"))
        async with Cluster(broker.bootstrap_servers, IMPATIENT) as cluster:
            assert (await cluster.topic("new", may_create=True)).name == "new"


async def test_a_topic_that_does_not_exist_is_named() -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: _without("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, broker))
        async with Cluster(broker.bootstrap_servers, IMPATIENT) as cluster:
            with pytest.raises(NoSuchTopic, match="'x'"):
                await cluster.topic("x")


async def test_a_broken_connection_is_made_again() -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata("orders"))
        async with Cluster(broker.bootstrap_servers, IMPATIENT) as cluster:
            cluster.forget("orders")
            broker.drop_connections()

            assert (await cluster.topic("orders")).name == "orders"
            assert broker.connections == 2


async def test_without_any_broker_the_deadline_error_lists_the_addresses() -> None:
    async with ScriptedBroker() as broker:
        gone = broker.bootstrap_servers

    with pytest.raises(DeadlineExceeded, match=gone) as caught:
        await Cluster(gone, ClientConfig(bootstrap_timeout_ms=300)).__aenter__()
    assert isinstance(caught.value.__cause__, NoBrokerAvailable)


def _pair(first: ScriptedBroker, second: ScriptedBroker, controller: int) -> MetadataResponse:
    brokers = [
        MetadataResponseBroker(node_id=index, host=each.host, port=each.port)
        for index, each in enumerate((first, second), 1)
    ]
    return MetadataResponse(brokers=brokers, controller_id=controller)


async def test_a_controller_that_is_gone_is_looked_up_again() -> None:
    async with ScriptedBroker() as gone, ScriptedBroker() as left:
        left.on(MetadataRequest, lambda _: _pair(gone, left, 1))
        gone.on(DeleteTopicsRequest, lambda _: None)  # closes the connection
        left.on(DeleteTopicsRequest, lambda _: DeleteTopicsResponse())
        async with Cluster(left.bootstrap_servers, IMPATIENT) as cluster:
            gone.on(MetadataRequest, lambda _: _pair(gone, left, 2))
            left.on(MetadataRequest, lambda _: _pair(gone, left, 2))
            request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=100)
            await cluster.retry("deleting", lambda: cluster.send_to_controller(request, DeleteTopicsResponse))

    assert len(left.seen(DeleteTopicsRequest)) == 1


async def test_a_coordinator_that_is_gone_is_looked_up_again() -> None:
    async with ScriptedBroker() as gone, ScriptedBroker() as left:
        coordinators = iter((gone, left))

        def coordinator(_: FindCoordinatorRequest) -> FindCoordinatorResponse:
            found = next(coordinators)
            return FindCoordinatorResponse(
                node_id=1 if found is gone else 2, host=found.host, port=found.port
            )

        for broker in (gone, left):
            broker.on(MetadataRequest, lambda _: _pair(gone, left, 2))
            broker.on(FindCoordinatorRequest, coordinator)
        gone.on(HeartbeatRequest, lambda _: None)  # closes the connection
        left.on(HeartbeatRequest, lambda _: HeartbeatResponse())
        async with Cluster(left.bootstrap_servers, IMPATIENT) as cluster:
            request = HeartbeatRequest(group_id="g")
            await cluster.retry(
                "asking", lambda: cluster.send_to_coordinator("g", request, HeartbeatResponse)
            )

    assert len(left.seen(HeartbeatRequest)) == 1


async def test_a_broker_that_left_is_a_typed_error() -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata())
        async with Cluster(broker.bootstrap_servers, IMPATIENT) as cluster:
            with pytest.raises(BrokerNotAvailable, match="broker 9"):
                await cluster.connection(9)


async def test_a_connected_broker_is_asked_before_one_that_may_be_down() -> None:
    async with ScriptedBroker() as down, ScriptedBroker() as up:
        up.on(MetadataRequest, lambda _: _pair(down, up, 2))
        async with Cluster(up.bootstrap_servers, IMPATIENT) as cluster:
            await cluster.refresh([])

        assert down.connections == 0


def test_bootstrap_servers_are_read_in_every_usual_form() -> None:
    assert parse_bootstrap_servers("a:1, b ,[::1]:3,[::1]") == [
        ("a", 1),
        ("b", 9092),
        ("::1", 3),
        ("::1", 9092),
    ]
    assert parse_bootstrap_servers(["a:1", "b:2"]) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("wrong", ["", ",", "a:b", "a:0", "a:70000", ":9092", "a:1:2"])
def test_a_malformed_address_is_rejected(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"host:port"):
        parse_bootstrap_servers(wrong)


def _without(name: str, error: ErrorCode, broker: ScriptedBroker) -> MetadataResponse:
    answer = broker.metadata()
    answer.topics = [MetadataResponseTopic(name=name, error_code=error)]
    return answer


async def failed_attempts(callers: int) -> int:
    """Request a connection to a broker that hangs up from `callers` tasks; return its connections."""
    async with ScriptedBroker() as broker, Pool(IMPATIENT) as pool:
        broker.on(ApiVersionsRequest, lambda _: None)
        broker.on(MetadataRequest, lambda _: None)
        (address,) = parse_bootstrap_servers(broker.bootstrap_servers)
        failed = await asyncio.gather(*(pool.get(address) for _ in range(callers)), return_exceptions=True)
        assert all(isinstance(each, ClientError) for each in failed)
        return broker.connections


async def test_the_newest_feature_levels_that_open_connections_know_count() -> None:
    async with ScriptedBroker() as older, ScriptedBroker() as newer, Pool(IMPATIENT) as pool:
        older.features, older.features_epoch = {"f": 1, "gone": 1}, 6
        newer.features, newer.features_epoch = {"f": 2}, 7
        assert pool.feature_level("f") is None
        for broker in (newer, older):
            await pool.get(*parse_bootstrap_servers(broker.bootstrap_servers))
        assert (pool.feature_level("f"), pool.feature_level("gone")) == (2, 0)
        await pool.discard(*parse_bootstrap_servers(newer.bootstrap_servers))
        assert (pool.feature_level("f"), pool.feature_level("gone")) == (1, 1)

        older.drop_connections()
        async with asyncio.timeout(30):
            while pool.is_connected(*parse_bootstrap_servers(older.bootstrap_servers)):  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert pool.feature_level("f") == 1, "as long as no other is open"


async def test_tasks_that_wait_for_an_attempt_to_connect_share_it() -> None:
    assert await failed_attempts(callers=5) == await failed_attempts(callers=1)


async def test_a_close_that_is_cancelled_leaves_no_connection_open() -> None:
    async with ScriptedBroker() as one, ScriptedBroker() as other:
        pool = Pool(IMPATIENT)
        opened = [await pool.get(Address(broker.host, broker.port)) for broker in (one, other)]

        closing = asyncio.create_task(pool.close())
        await asyncio.sleep(0)  # it waits for the end of the first
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

        assert [each.is_open for each in opened] == [False, False]


async def _accept_and_stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@asynccontextmanager
async def _silent_servers(count: int) -> AsyncIterator[list[str]]:
    """Servers that accept connections and never answer."""
    async with AsyncExitStack() as stack:
        addresses = []
        for _ in range(count):
            server = await asyncio.start_server(_accept_and_stay_silent, "127.0.0.1", 0)
            await stack.enter_async_context(server)
            addresses.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        yield addresses


async def test_silent_servers_before_a_good_one_cost_a_stagger_each() -> None:
    async with _silent_servers(2) as silent, ScriptedBroker() as good:
        good.on(MetadataRequest, lambda _: good.metadata("orders"))
        # An attempt at one server lasts longer than the whole call may.
        config = ClientConfig(socket_connection_setup_timeout_ms=600_000, bootstrap_timeout_ms=60_000)
        async with Cluster([*silent, good.bootstrap_servers], config) as cluster:
            assert list(cluster.nodes) == [NODE_ID]


async def test_a_silent_broker_is_not_asked_again_while_another_one_is_connected() -> None:
    asked = 0

    async def count_and_stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await _accept_and_stay_silent(reader, writer)

    async with ScriptedBroker() as good:
        server = await asyncio.start_server(count_and_stay_silent, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        metadata = good.metadata("orders")
        metadata.brokers.insert(0, MetadataResponseBroker(node_id=0, host=host, port=port))
        good.on(MetadataRequest, lambda _: metadata)
        async with server, Cluster([f"{host}:{port}", good.bootstrap_servers]) as cluster:
            for _ in range(3):
                await cluster.refresh([])

            assert list(cluster.nodes) == [0, NODE_ID]

    assert asked == 1  # at the start, for the stagger of servers of which none has answered


async def test_a_failed_start_names_each_server_and_its_cause() -> None:
    async with ScriptedBroker() as broker:
        refusing = broker.bootstrap_servers
    async with _silent_servers(1) as (silent,):
        config = ClientConfig(bootstrap_timeout_ms=1_500)
        with pytest.raises(DeadlineExceeded) as caught:
            await Cluster([silent, refusing], config).__aenter__()

    assert f"cannot connect to {refusing}: Connection refused" in str(caught.value)
    assert f"{silent}: no answer within" in str(caught.value)


async def test_a_login_that_is_rejected_is_raised_at_once() -> None:
    async def reject(_: Address) -> None:
        raise AuthenticationFailed("wrong password")

    address = Address("127.0.0.1", 1)
    with pytest.raises(AuthenticationFailed, match="wrong password"):
        await first_answer([address, Address("127.0.0.1", 2)], reject, stagger_s=60)


async def test_a_coordinator_that_moved_is_asked_at_its_new_address() -> None:
    async with ScriptedBroker() as old, ScriptedBroker() as new:
        # Its metadata are those of before it moved.
        old.on(MetadataRequest, lambda _: old.metadata())
        moved = FindCoordinatorResponse(node_id=NODE_ID, host=new.host, port=new.port)
        old.on(FindCoordinatorRequest, lambda _: moved)
        old.on(HeartbeatRequest, lambda _: HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR))
        new.on(HeartbeatRequest, lambda _: HeartbeatResponse())
        async with Cluster(old.bootstrap_servers, IMPATIENT) as cluster:
            request = HeartbeatRequest(group_id="g")
            answer = await cluster.send_to_coordinator("g", request, HeartbeatResponse)

    assert answer.error_code == ErrorCode.NONE


async def test_metadata_is_asked_of_the_broker_with_fewer_requests_in_flight() -> None:
    async with ScriptedBroker() as busy, ScriptedBroker() as idle:
        for broker in (busy, idle):
            broker.on(MetadataRequest, lambda _: _pair(busy, idle, 2))
            broker.on(HeartbeatRequest, lambda _: HeartbeatResponse())
        busy.ignore(HeartbeatRequest)
        async with Cluster(busy.bootstrap_servers) as cluster, asyncio.TaskGroup() as tasks:
            request = HeartbeatRequest(group_id="g")
            await cluster.send(2, request, HeartbeatResponse)
            waiting = tasks.create_task(cluster.send(1, request, HeartbeatResponse))
            while not busy.seen(HeartbeatRequest):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            before = len(busy.seen(MetadataRequest))
            await cluster.refresh([])
            waiting.cancel()

    assert len(busy.seen(MetadataRequest)) == before
    assert len(idle.seen(MetadataRequest)) == 1


async def test_a_broker_that_was_silent_elsewhere_is_not_asked_first() -> None:
    async with ScriptedBroker() as frozen, ScriptedBroker() as good:
        for broker in (frozen, good):
            broker.on(MetadataRequest, lambda _: _pair(frozen, good, 2))
        async with Cluster(frozen.bootstrap_servers) as cluster:
            before = len(frozen.seen(MetadataRequest))
            cluster.avoid(1)
            await cluster.refresh([])

    assert len(frozen.seen(MetadataRequest)) == before
    assert len(good.seen(MetadataRequest)) == 1
