"""Running brokers with an authorizer: what they refuse, and how fast a changed rule holds on all of them.

Every client is anonymous here, so the rules tell clients by their hosts: brokers and the administrator are
127.0.0.1, the client is 127.0.0.2.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api.testing import batch_of
from ottla.broker.cluster.registration import StartupRefused
from ottla.broker.cluster.topics import NewTopic
from ottla.broker.config import broker_config_from
from ottla.broker.security.tls.testing import Authority
from ottla.broker.server.broker import Broker
from ottla.broker.testing import free_port
from ottla.protocol.api import (
    ApiKey,
    RequestHeader,
    decode_response_header,
    encode_request_header,
    response_class,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from ottla.protocol.messages.control_requests import UpdateMetadataRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.znodes import AclEntry, ResourceAcls

BOUND_S = 60.0
AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"
ANONYMOUS = "User:ANONYMOUS"
BROKERS, CLIENT = "127.0.0.1", "127.0.0.2"
TOPIC, GROUP, CLUSTER, LITERAL, ANY, ALL, READ, WRITE, ALLOW = 2, 3, 4, 3, 1, 2, 3, 4, 3
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class Caller:
    """A connection from one address that sends a request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @staticmethod
    async def to(broker: Broker, source: str) -> Caller:
        return Caller(*await asyncio.open_connection("127.0.0.1", broker.port, local_addr=(source, 0)))

    async def ask(self, request: Any, version: int) -> Any:
        key = ApiKey(request.API_KEY)
        frame = encode_request_header(RequestHeader(int(key), version, 7, "it")) + request.encode(version)
        async with asyncio.timeout(BOUND_S):
            self.writer.write(struct.pack(">i", len(frame)) + frame)
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            body = await self.reader.readexactly(size)
        _, offset = decode_response_header(body, key, version)
        return response_class(key).decode(body[offset:], version)


async def ask(broker: Broker, request: Any, version: int, source: str = BROKERS) -> Any:
    caller = await Caller.to(broker, source)
    try:
        return await caller.ask(request, version)
    finally:
        caller.writer.close()


def settings(directory: Path, number: int = 1, **more: str) -> dict[str, str]:
    dotted = {name.replace("_", "."): value for name, value in more.items()}
    return {
        "broker.id": str(number), "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory),
        "authorizer.class.name": AUTHORIZER, **dotted,
    }  # fmt: skip


def rule(name: str, *, kind: int = GROUP, host: str = CLIENT, operation: int = READ) -> AclCreation:
    return AclCreation(
        resource_type=kind, resource_name=name, resource_pattern_type=LITERAL, principal=ANONYMOUS,
        host=host, operation=operation, permission_type=ALLOW,
    )  # fmt: skip


async def create(broker: Broker, *rules: AclCreation, source: str = BROKERS) -> list[int]:
    answer = await ask(broker, CreateAclsRequest(creations=list(rules)), 3, source)
    return [result.error_code for result in answer.results]


async def delete(broker: Broker, name: str, *, kind: int = GROUP) -> int:
    filter_ = DeleteAclsFilter(
        resource_type_filter=kind, resource_name_filter=name, pattern_type_filter=LITERAL,
        principal_filter=None, host_filter=None, operation=ANY, permission_type=ANY,
    )  # fmt: skip
    answer = await ask(broker, DeleteAclsRequest(filters=[filter_]), 3)
    return len(answer.filter_results[0].matching_acls)


async def store(servers: str, data: bytes | None = None) -> None:
    """Write the rules of the cluster before any broker starts: 127.0.0.1 may do everything."""
    entry = AclEntry(ANONYMOUS, "ALLOW", "ALL", BROKERS)
    node = ResourceAcls("CLUSTER", "kafka-cluster", "LITERAL", (entry,))
    async with KazooSession(servers) as session:
        await session.create(node.path, node.encode() if data is None else data, make_parents=True)


@asynccontextmanager
async def brokers_of(directory: Path, count: int) -> AsyncIterator[list[Broker]]:
    async with EmbeddedCoordinator() as coordinator, AsyncExitStack() as stack:
        servers = coordinator.connect_string
        await store(servers)
        brokers = []
        for number in range(1, count + 1):
            own = settings(directory / str(number), number, zookeeper_connect=servers)
            brokers.append(await stack.enter_async_context(Broker(broker_config_from(own))))
        yield brokers


async def until(condition: Any) -> None:
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# -- no lock-out


@pytest.mark.parametrize("damaged", [None, b'{"version":7,"acls":[]}'])
async def test_a_start_that_would_lock_out_the_brokers_is_refused_before_a_listener_opens(
    tmp_path: Path, damaged: bytes | None
) -> None:
    port = free_port()
    async with EmbeddedCoordinator() as coordinator:
        servers = coordinator.connect_string
        if damaged is not None:
            await store(servers, damaged)
        own = settings(tmp_path, zookeeper_connect=servers, listeners=f"PLAINTEXT://127.0.0.1:{port}")
        broker = Broker(broker_config_from(own))

        with pytest.raises(StartupRefused) as refusal:
            await broker.__aenter__()

        assert str(refusal.value) == (
            "authorizer.class.name: brokers connect to each other as User:ANONYMOUS, which may not perform "
            "CLUSTER_ACTION; add it to super.users, or allow it CLUSTER_ACTION on the cluster by an ACL"
        )
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection("127.0.0.1", port)

        async with Broker(broker_config_from(own | {"super.users": ANONYMOUS})):
            pass


LINE = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="s" '
    'user_broker="s";'
)
BY_LOGIN = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": LINE,
}


def by_certificate(directory: Path) -> dict[str, str]:
    authority = Authority()
    return {
        "listeners": "SSL://127.0.0.1:0",
        "security.inter.broker.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": authority.sign("Broker").write(directory / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.write(directory / "authority.pem"),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/L",
    }


@pytest.mark.parametrize("proof", ["login", "certificate"])
async def test_brokers_that_prove_who_they_are_need_the_permission_for_that_principal(
    tmp_path: Path, proof: str
) -> None:
    secured = BY_LOGIN if proof == "login" else by_certificate(tmp_path)
    async with EmbeddedCoordinator() as coordinator:
        own = settings(tmp_path / "1", zookeeper_connect=coordinator.connect_string) | secured
        with pytest.raises(StartupRefused, match="connect to each other as User:broker, which may not"):
            await Broker(broker_config_from(own | {"super.users": ANONYMOUS})).__aenter__()

        own["super.users"] = "User:broker"
        other = own | {"broker.id": "2", "log.dirs": str(tmp_path / "2")}
        async with Broker(broker_config_from(own)) as first, Broker(broker_config_from(other)) as second:
            await first.services.topics.create(NewTopic("t", assignments={0: [2, 1]}))
            for broker in (first, second):
                metadata = broker.services.metadata
                await until(lambda: metadata.leader_of(TopicPartition("t", 0)) == 2)  # noqa: B023
                assert metadata.alive_broker_ids == [1, 2]


# -- requests of brokers


STALE = UpdateMetadataRequest(controller_id=1, controller_epoch=-5, broker_epoch=-1)


async def test_only_a_client_with_cluster_action_sends_what_brokers_send(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "authorizer")
    async with brokers_of(tmp_path, 1) as (broker,):
        allowed, denied = await ask(broker, STALE, 7), await ask(broker, STALE, 7, source=CLIENT)
        assert await create(broker, rule("kafka-cluster", kind=CLUSTER, operation=ALL)) == [0]
        later = await ask(broker, STALE, 7, source=CLIENT)

    assert denied.error_code == REFUSED
    assert allowed.error_code == later.error_code != REFUSED
    (line,) = [vars(record) for record in caplog.records if record.name == "authorizer"]
    assert line["message"] == "operation denied"
    assert {name: line[name] for name in ("principal", "host", "operation", "resource", "api")} == {
        "principal": ANONYMOUS,
        "host": CLIENT,
        "operation": "CLUSTER_ACTION",
        "resource": "CLUSTER:kafka-cluster",
        "api": "UPDATE_METADATA",
    }


async def test_brokers_that_a_rule_allows_form_a_cluster_and_replicate(tmp_path: Path) -> None:
    async with brokers_of(tmp_path, 3) as brokers:
        await brokers[0].services.topics.create(NewTopic("t", assignments={0: [3, 2, 1]}))

        for broker in brokers:
            metadata = broker.services.metadata
            await until(lambda: metadata.leader_of(TopicPartition("t", 0)) == 3)  # noqa: B023
            assert metadata.alive_broker_ids == [1, 2, 3]


# -- clients


async def test_a_lone_broker_needs_no_rule_and_its_administrator_is_a_super_user(tmp_path: Path) -> None:
    async with Broker(broker_config_from(settings(tmp_path))) as broker:
        assert await create(broker, rule("g")) == [REFUSED]
        described = await ask(broker, DescribeAclsRequest(), 3)
        assert described.error_code == REFUSED

    async with Broker(broker_config_from(settings(tmp_path, super_users=ANONYMOUS))) as broker:
        assert await create(broker, rule("g")) == [0]


async def test_a_changed_rule_holds_on_every_open_connection_of_every_broker(tmp_path: Path) -> None:
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    async with brokers_of(tmp_path, 3) as brokers:
        callers = [await Caller.to(broker, CLIENT) for broker in brokers for _ in range(167)]

        async def codes() -> set[bool]:
            answers = await asyncio.gather(*(caller.ask(beat, 4) for caller in callers))
            return {answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED for answer in answers}

        async def took_ms(are_denied: bool) -> float:
            began = time.monotonic()
            async with asyncio.timeout(BOUND_S):
                while await codes() != {are_denied}:
                    pass
            return (time.monotonic() - began) * 1000

        assert await codes() == {True}
        figures = []
        for _ in range(3):
            assert await create(brokers[0], rule("g")) == [0]
            granted_ms = await took_ms(are_denied=False)
            assert await delete(brokers[1], "g") == 1
            figures.append((round(granted_ms), round(await took_ms(are_denied=True))))
        print(f"{len(callers)} connections of 3 brokers: granted, revoked in ms {figures}")
        epochs = {
            connection.session.index_epoch
            for broker in brokers
            for connection in broker._server.connections.all()
            if connection.session.client_host == CLIENT
        }
        for caller in callers:
            caller.writer.close()
    assert min(epochs) >= 6, "each change makes each session forget its partitions"


async def test_a_revoked_right_ends_the_service_of_the_fast_paths_at_once(tmp_path: Path) -> None:
    records = PartitionProduceData(index=0, records=batch_of(b"a"))
    produce = ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[records])]
    )
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    fetch = FetchRequest(
        max_wait_ms=0, min_bytes=1, session_epoch=-1, topics=[FetchTopic(topic="t", partitions=[partition])]
    )
    async with brokers_of(tmp_path, 1) as (broker,):
        await broker.services.topics.create(NewTopic("t", 1, 1))
        await broker.services.topics.wait_until_led("t", 1, BOUND_S * 1000)
        caller = await Caller.to(broker, CLIENT)

        async def errors() -> tuple[int, int]:
            produced, fetched = await caller.ask(produce, 9), await caller.ask(fetch, 11)
            return (
                produced.responses[0].partition_responses[0].error_code,
                fetched.responses[0].partitions[0].error_code,
            )

        denied = (ErrorCode.TOPIC_AUTHORIZATION_FAILED,) * 2
        assert await errors() == denied
        writes, reads = (rule("t", kind=TOPIC, operation=operation) for operation in (WRITE, READ))
        assert await create(broker, writes, reads) == [0, 0]
        (session,) = [
            connection.session
            for connection in broker._server.connections.all()
            if connection.session.client_host == CLIENT
        ]
        for _ in range(3):
            assert await errors() == (0, 0)
        for api_key in (ApiKey.PRODUCE, ApiKey.FETCH):
            assert len(session.targets_of(api_key)) == 1, "the fast path serves it"

        assert await delete(broker, "t", kind=TOPIC) == 2

        assert await errors() == denied
        assert session.targets_of(ApiKey.PRODUCE) == {}
        log = broker.services.logs.get(TopicPartition("t", 0))
        assert log is not None
        assert log.log_end_offset == 3
        caller.writer.close()


async def test_a_fetch_session_and_a_fetch_that_waits_are_refused_after_a_right_is_revoked(
    tmp_path: Path,
) -> None:
    def fetch(session_id: int, epoch: int, offset: int | None, *, waits: bool = False) -> FetchRequest:
        partitions = [] if offset is None else [FetchPartition(fetch_offset=offset, partition_max_bytes=1000)]
        topics = [FetchTopic(topic="t", partitions=partitions)] if partitions else []
        return FetchRequest(
            max_wait_ms=int(BOUND_S * 1000) if waits else 0, min_bytes=1, session_id=session_id,
            session_epoch=epoch, topics=topics,
        )  # fmt: skip

    records = PartitionProduceData(index=0, records=batch_of(b"a"))
    produce = ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[records])]
    )
    rules = [rule("t", kind=TOPIC), rule("t", kind=TOPIC, host=BROKERS, operation=WRITE)]
    async with brokers_of(tmp_path, 1) as (broker,):
        await broker.services.topics.create(NewTopic("t", 1, 1))
        await broker.services.topics.wait_until_led("t", 1, BOUND_S * 1000)
        assert await create(broker, *rules) == [0, 0]
        writer, reader, idle = [await Caller.to(broker, host) for host in (BROKERS, CLIENT, CLIENT)]
        assert (await writer.ask(produce, 9)).responses[0].partition_responses[0].error_code == 0
        begun = await reader.ask(fetch(0, 0, 1), 11)
        assert (await reader.ask(fetch(begun.session_id, 1, None), 11)).error_code == 0
        await idle.ask(fetch(0, -1, 0), 11)
        waiting = asyncio.create_task(idle.ask(fetch(0, -1, 1, waits=True), 11))  # on the fast path
        await until(lambda: len(broker.services.delayed_fetches) == 1)

        assert await delete(broker, "t", kind=TOPIC) == 2
        assert await create(broker, rules[1]) == [0]
        assert (await writer.ask(produce, 9)).responses[0].partition_responses[0].error_code == 0

        for answer in (await reader.ask(fetch(begun.session_id, 2, None), 11), await waiting):
            found = answer.responses[0].partitions[0]
            assert (found.error_code, bytes(found.records or b"")) == (
                ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"",
            )  # fmt: skip
        for caller in (writer, reader, idle):
            caller.writer.close()
