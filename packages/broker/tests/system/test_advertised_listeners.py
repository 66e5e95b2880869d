"""`advertised.listeners` of a running broker: its registration, all brokers' metadata, and refusals."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import pytest

from ottla.admin import Admin
from ottla.admin.configs import BROKER
from ottla.broker.api import alter_configs, incremental_alter_configs
from ottla.broker.api.describe_configs import BROKER as BROKER_TYPE
from ottla.broker.api.incremental_alter_configs import DELETE, SET
from ottla.broker.api.testing import FakeSession
from ottla.broker.cluster.registration import StartupRefused
from ottla.broker.cluster.topics import NewTopic
from ottla.broker.config import broker_config_from
from ottla.broker.requests.context import RequestContext
from ottla.broker.server.broker import Broker
from ottla.broker.testing import free_port
from ottla.client.config import Address
from ottla.client.connection import Connection
from ottla.producer import Producer
from ottla.protocol.api import ApiKey, RequestHeader, encode_request_header
from ottla.protocol.errors import ErrorCode, InvalidConfig
from ottla.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from ottla.protocol.messages.controller_requests import AlterPartitionRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.znodes import BrokerRegistration

BOUND_S = 60.0
KEY = "advertised.listeners"


@pytest.fixture
async def coordinator() -> AsyncIterator[EmbeddedCoordinator]:
    async with EmbeddedCoordinator() as coordinator:
        yield coordinator


async def test_a_broker_is_not_advertised_where_another_one_is(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with asyncio.timeout(BOUND_S), broker_on(coordinator, tmp_path, 1) as first:
        there = f"PLAINTEXT://127.0.0.1:{first.port}"
        with pytest.raises(StartupRefused) as refused:
            async with broker_on(coordinator, tmp_path, 2, **{KEY: there}):
                pass
        assert str(refused.value).startswith(
            f"Configured end points 127.0.0.1:{first.port} in advertised listeners are already registered by "
            "broker 1: "
        )

        async with broker_on(coordinator, tmp_path, 2) as second, Admin(second.address) as admin:
            with pytest.raises(InvalidConfig, match=f"has 127.0.0.1:{first.port}, already registered by b"):
                await admin.configs.alter(BROKER, "2", {KEY: there})


def broker_on(coordinator: EmbeddedCoordinator, directory: Path, broker_id: int, **more: str) -> Broker:
    settings = {
        "broker.id": str(broker_id),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory / str(broker_id)),
        "zookeeper.connect": coordinator.connect_string,
    }
    return Broker(broker_config_from({**settings, **more}))


async def advertise(
    broker: Broker, text: str | None, entity: str | None = None, through: str = "127.0.0.1"
) -> None:
    name = str(broker.broker_id) if entity is None else entity
    async with Admin(f"{through}:{broker.port}") as admin:
        await admin.configs.alter(BROKER, name, {KEY: text})


async def seen_as(host: str, broker: Broker, by: Broker) -> None:
    """Wait until a broker knows another one by this host."""
    metadata = by.services.metadata

    def is_known() -> bool:
        known = metadata.broker(broker.broker_id)
        endpoint = known.endpoint("PLAINTEXT") if known else None
        return endpoint is not None and endpoint.host == host

    async with asyncio.timeout(BOUND_S):
        await metadata.until(is_known)


async def registration_of(broker: Broker) -> tuple[BrokerRegistration, int]:
    data, stat = await broker.services.zookeeper.get(f"/brokers/ids/{broker.broker_id}")
    return BrokerRegistration.decode(broker.broker_id, data), stat.czxid


async def test_other_addresses_are_registered_in_place_and_every_broker_and_client_learns_them(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as one, broker_on(coordinator, tmp_path, 2) as two:
        await one.services.topics.create(NewTopic("orders", assignments={0: [2]}))
        _, epoch = await registration_of(two)

        await advertise(two, f"PLAINTEXT://localhost:{two.port}")
        await seen_as("localhost", two, by=one)
        await seen_as("localhost", two, by=two)

        node, epoch_now = await registration_of(two)
        assert [(endpoint.host, endpoint.port) for endpoint in node.endpoints] == [("localhost", two.port)]
        assert epoch_now == epoch
        async with Connection(Address("127.0.0.1", one.port)) as client:
            answer = await client.send(MetadataRequest(topics=None), MetadataResponse)
        assert {broker.node_id: broker.host for broker in answer.brokers} == {1: "127.0.0.1", 2: "localhost"}
        async with Producer(f"127.0.0.1:{one.port}") as producer:
            assert (await producer.send_and_wait("orders", b"x")).offset == 0


async def ask_as_a_stranger(broker: Broker) -> None:
    """Make a broker read the addresses of the others, which it otherwise keeps for a minute."""
    frame = encode_request_header(RequestHeader(int(ApiKey.ALTER_PARTITION), 0, 1, "stranger"))
    frame += AlterPartitionRequest(broker_id=9, broker_epoch=-1).encode(0)
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port, local_addr=("127.0.0.9", 0))
    writer.write(struct.pack(">i", len(frame)) + frame)
    await reader.readexactly(4)
    writer.close()


@pytest.mark.parametrize("moved", [1, 2], ids=["controller", "follower"])
async def test_a_broker_that_moves_to_another_address_stays_in_its_cluster(
    coordinator: EmbeddedCoordinator, tmp_path: Path, moved: int
) -> None:
    """Its connections are those of the address that it had: the others serve only the one that it has."""

    def broker_at(number: int) -> Broker:
        port = free_port()
        addresses = {
            "listeners": f"PLAINTEXT://0.0.0.0:{port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.{number + 1}:{port}",
            "replica.lag.time.max.ms": "600000",  # a follower that is lost stays lost
        }
        return broker_on(coordinator, tmp_path, number, **addresses)

    async with broker_at(1) as one, broker_at(2) as two, asyncio.timeout(BOUND_S):
        await one.services.topics.create(NewTopic("early", assignments={0: [1, 2], 1: [2, 1]}))
        async with Producer(f"127.0.0.1:{one.port}") as producer:
            for partition in (0, 1):
                await producer.send_and_wait("early", b"x", partition=partition)

            mover, other = (one, two) if moved == 1 else (two, one)
            await advertise(mover, f"PLAINTEXT://127.0.0.5:{mover.port}")
            await seen_as("127.0.0.5", mover, by=other)
            await ask_as_a_stranger(other)

            await one.services.topics.create(NewTopic("late", assignments={0: [1, 2], 1: [2, 1]}))
            for topic, partition in product(("early", "late"), (0, 1)):
                await producer.send_and_wait(topic, b"y", partition=partition)


async def test_deleting_the_setting_advertises_the_listeners_again(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as one:
        await advertise(one, f"PLAINTEXT://localhost:{one.port}")
        await seen_as("localhost", one, by=one)

        await advertise(one, None)

        await seen_as("127.0.0.1", one, by=one)


async def test_a_broker_that_starts_again_registers_the_addresses_that_were_set(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as one:
        await advertise(one, f"PLAINTEXT://localhost:{one.port}")
        await seen_as("localhost", one, by=one)

    async with broker_on(coordinator, tmp_path, 1) as again:
        node, _ = await registration_of(again)
        assert [endpoint.host for endpoint in node.endpoints] == ["localhost"]


async def test_a_broker_says_that_the_addresses_may_change_and_where_the_present_ones_come_from(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as one, Admin(f"127.0.0.1:{one.port}") as admin:
        (before,) = [entry for entry in await admin.configs.describe(BROKER, "1") if entry.name == KEY]
        await admin.configs.alter(BROKER, "1", {KEY: "PLAINTEXT://localhost:9092"})
        (after,) = [entry for entry in await admin.configs.describe(BROKER, "1") if entry.name == KEY]

    assert (before.value, before.read_only) == (None, False)
    assert (after.value, after.source) == ("PLAINTEXT://localhost:9092", "broker")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("PLAINTEXT://a:1,OTHER://b:2", "OTHER"),
        ("INTERNAL://a:1,PLAINTEXT://b:1", "must name listeners of `listeners`, not INTERNAL"),
        ("CLIENTS://a:9093", "must name PLAINTEXT, the listener of brokers"),
        ("PLAINTEXT://0.0.0.0:9092", "0.0.0.0"),
        ("PLAINTEXT:9092", "must look like PLAINTEXT://host:port"),
    ],
)
async def test_addresses_that_nobody_could_use_are_refused(
    coordinator: EmbeddedCoordinator, tmp_path: Path, text: str, reason: str
) -> None:
    two_listeners = {
        "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,INTERNAL:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    async with broker_on(coordinator, tmp_path, 1, **two_listeners) as one:
        with pytest.raises(InvalidConfig, match=reason):
            await advertise(one, text)

        node, _ = await registration_of(one)
        assert [endpoint.host for endpoint in node.endpoints] == ["127.0.0.1", "127.0.0.1"]


@pytest.mark.parametrize("validate_only", [False, True])
async def test_a_stranger_cannot_make_itself_a_broker_by_advertising_its_address(
    coordinator: EmbeddedCoordinator, tmp_path: Path, validate_only: bool
) -> None:
    """Each way to change the setting, also to delete it."""
    stranger = FakeSession(client_host="240.0.0.9")
    context = RequestContext(RequestHeader(int(ApiKey.INCREMENTAL_ALTER_CONFIGS), 1, 1, "x"), stranger, 0.0)
    async with broker_on(coordinator, tmp_path, 1) as one:
        await advertise(one, f"PLAINTEXT://localhost:{one.port}")
        await seen_as("localhost", one, by=one)
        text = f"PLAINTEXT://240.0.0.9:{one.port}"
        answers: list[AlterConfigsResourceResponse] = []
        for operation in (SET, DELETE):
            change = IncrementalAlterableConfig(name=KEY, config_operation=operation, value=text)
            request = IncrementalAlterConfigsRequest(
                resources=[
                    IncrementalAlterConfigsResource(
                        resource_type=BROKER_TYPE, resource_name="1", configs=[change]
                    )
                ],
                validate_only=validate_only,
            )
            answers += (await incremental_alter_configs.handle(one.services, request, context)).responses
        for whole in ([AlterableConfig(name=KEY, value=text)], []):
            replacement = AlterConfigsRequest(
                resources=[AlterConfigsResource(resource_type=BROKER_TYPE, resource_name="1", configs=whole)],
                validate_only=validate_only,
            )
            answers += (await alter_configs.handle(one.services, replacement, context)).responses

        node, _ = await registration_of(one)

    assert [answer.error_code for answer in answers] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 4
    assert "inter.broker.listener.name" in (answers[0].error_message or "")
    assert [endpoint.host for endpoint in node.endpoints] == ["localhost"]


async def test_a_host_that_is_not_of_this_machine_is_refused_by_name(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as one:
        with pytest.raises(InvalidConfig, match=r"240\.0\.0\.7 is no address of this machine"):
            await advertise(one, f"PLAINTEXT://240.0.0.7:{one.port}")


async def test_all_brokers_together_have_no_addresses(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as one:
        with pytest.raises(InvalidConfig, match=r"broker id must be specified: advertised\.listeners"):
            await advertise(one, "PLAINTEXT://localhost:9092", entity="")
