"""`advertised.listeners` of a running broker: its registration, all brokers' metadata, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.admin import Admin
from ottla.admin.configs import BROKER
from ottla.broker.cluster.topics import NewTopic
from ottla.broker.config import broker_config_from
from ottla.broker.server.broker import Broker
from ottla.client.config import Address
from ottla.client.connection import Connection
from ottla.producer import Producer
from ottla.protocol.errors import InvalidConfig, InvalidRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.znodes import BrokerRegistration

BOUND_S = 60.0
KEY = "advertised.listeners"


@pytest.fixture
async def coordinator() -> AsyncIterator[EmbeddedCoordinator]:
    async with EmbeddedCoordinator() as coordinator:
        yield coordinator


def broker_on(coordinator: EmbeddedCoordinator, directory: Path, broker_id: int, **more: str) -> Broker:
    settings = {
        "broker.id": str(broker_id),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory / str(broker_id)),
        "zookeeper.connect": coordinator.connect_string,
    }
    return Broker(broker_config_from({**settings, **more}))


async def advertise(broker: Broker, text: str | None, entity: str | None = None) -> None:
    name = str(broker.broker_id) if entity is None else entity
    async with Admin(f"127.0.0.1:{broker.port}") as admin:
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


async def test_all_brokers_together_have_no_addresses(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as one:
        with pytest.raises(InvalidRequest, match=r"at default cluster level: advertised\.listeners"):
            await advertise(one, "PLAINTEXT://localhost:9092", entity="")
