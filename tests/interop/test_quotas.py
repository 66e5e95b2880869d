"""Quotas by Kafka's `kafka-configs`, and on one ZooKeeper with Apache Kafka 3.9: each reads the other's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pytest

from ottla.admin import CLIENT_ID, USER, Admin
from ottla.admin.configs import IP
from ottla.broker.config import broker_config_from
from ottla.broker.server.broker import Broker
from ottla.broker.testing import BrokerProcess
from ottla.client.config import Address
from ottla.client.connection import Connection
from ottla.producer import Producer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntryData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    OpData,
)
from ottla.zookeeper.testing import Background
from peers.apache_kafka import ApacheKafka, ZooKeeper, run_tool
from peers.maven import kafka_3_server, kafka_4_tools

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

BOUND_S: Final = 60.0
WINDOWS: Final = {"quota.window.num": "2"}
Configs = Callable[..., str]


# ---- Kafka's tool


@pytest.fixture(scope="module", params=["3.9", "4.4"])
def configs(request: pytest.FixtureRequest, broker: BrokerProcess) -> Configs:
    """Run `kafka-configs` of a version."""
    class_path = kafka_3_server() if request.param == "3.9" else kafka_4_tools()
    name = "kafka.admin.ConfigCommand" if request.param == "3.9" else "org.apache.kafka.tools.ConfigCommand"

    def run(*arguments: str) -> str:
        servers = ("--bootstrap-server", broker.bootstrap_servers)
        return run_tool(name, *servers, *arguments, class_path=class_path)

    return run


ENTITIES: Final = {
    "user": ("--entity-type", "users", "--entity-name", "alice"),
    "default client": ("--entity-type", "clients", "--entity-default"),
    "a user's client": (
        "--entity-type", "users", "--entity-name", "alice",
        "--entity-type", "clients", "--entity-name", "app",
    ),
    "host name": ("--entity-type", "ips", "--entity-name", "localhost"),
    "default address": ("--entity-type", "ips", "--entity-default"),
}  # fmt: skip
OF_CLIENTS: Final = {
    "producer_byte_rate": "1024.0",
    "consumer_byte_rate": "2048.0",
    "request_percentage": "12.5",
    "controller_mutation_rate": "3.5",
}
OF_ADDRESSES: Final = {"connection_creation_rate": "1000.0"}


@pytest.mark.parametrize("entity", ENTITIES)
def test_kafkas_tool_sets_describes_and_removes_quotas(configs: Configs, entity: str) -> None:
    named, quotas = ENTITIES[entity], OF_ADDRESSES if "ips" in ENTITIES[entity] else OF_CLIENTS
    added = ",".join(f"{key}={value.removesuffix('.0')}" for key, value in quotas.items())

    assert "Completed updating" in configs("--alter", *named, "--add-config", added)
    described = configs("--describe", *named)
    assert all(f"{key}={value}" in described for key, value in quotas.items()), described
    configs("--alter", *named, "--delete-config", ",".join(quotas))

    described = configs("--describe", *named)
    assert not any(key in described for key in quotas), described


def test_kafkas_tool_describes_the_quotas_of_all_clients_of_all_users(configs: Configs) -> None:
    named = ENTITIES["a user's client"]
    configs("--alter", *named, "--add-config", "producer_byte_rate=8")
    try:
        described = configs("--describe", "--entity-type", "users", "--entity-type", "clients")
        assert "user-principal 'alice', client-id 'app' are producer_byte_rate=8.0" in described
    finally:
        configs("--alter", *named, "--delete-config", "producer_byte_rate")


@pytest.mark.parametrize("quota", ["producer_byte_rate=0", "request_percentage=NaN"])
def test_a_quota_that_is_no_limit_is_refused_to_kafkas_tool(configs: Configs, quota: str) -> None:
    with pytest.raises(RuntimeError, match="InvalidRequestException"):
        configs("--alter", *ENTITIES["user"], "--add-config", quota)

    assert quota.partition("=")[0] not in configs("--describe", *ENTITIES["user"])


# ---- one ZooKeeper


@dataclass(frozen=True)
class Pair:
    """The addresses of a broker of Apache Kafka and one of Ottla in one cluster."""

    apache: Address
    ottla: Address

    @property
    def both(self) -> tuple[Address, Address]:
        return self.apache, self.ottla


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("quotas")
    with ZooKeeper(folder / "zookeeper") as zookeeper:
        settings = {**WINDOWS, "inter.broker.protocol.version": "2.8"}
        own = {
            **WINDOWS, "broker.id": "2", "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(folder / "ottla"), "zookeeper.connect": zookeeper.connect_string,
        }  # fmt: skip
        with (
            ApacheKafka(folder / "apache", settings, zookeeper=zookeeper, heap="384m") as apache,
            Background(Broker(broker_config_from(own))) as ottla,
        ):
            yield Pair(Address("127.0.0.1", apache.port), Address("127.0.0.1", ottla.value.port))


Names = Mapping[str, str | None]


async def alter(broker: Address, names: Names, **quotas: float | None) -> int:
    """Ask one broker to change quotas; return the error code."""
    entry = AlteredEntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in names.items()],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()],
    )
    async with Connection(broker) as connection:
        response = await connection.send(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse)
    return response.entries[0].error_code


async def quotas_at(broker: Address) -> dict[frozenset[tuple[str, str | None]], dict[str, float]]:
    """Return all quotas as one broker describes them."""
    async with Connection(broker) as connection:
        response = await connection.send(DescribeClientQuotasRequest(), DescribeClientQuotasResponse)
    assert response.error_code == ErrorCode.NONE
    return {
        frozenset((of.entity_type, of.entity_name) for of in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries or ()
    }


@pytest.mark.parametrize("writer", ["apache", "ottla"])
@pytest.mark.parametrize(
    "names",
    [
        {USER: "alice"},
        {USER: None},
        {USER: "CN=a b*~/\u00fc+%", CLIENT_ID: "app.1"},
        {USER: None, CLIENT_ID: None},
        {CLIENT_ID: "<default>"},
        {CLIENT_ID: None},
    ],
    ids=str,
)
async def test_each_broker_describes_the_quotas_that_the_other_has_set(
    pair: Pair, writer: str, names: Names
) -> None:
    broker: Address = getattr(pair, writer)
    quotas = {"producer_byte_rate": 1024.0, "consumer_byte_rate": float(2**53), "request_percentage": 0.25}

    assert await alter(broker, names, **quotas) == ErrorCode.NONE
    try:
        described = [await quotas_at(address) for address in pair.both]
        assert described[0] == described[1] == {frozenset(names.items()): quotas}
    finally:
        assert await alter(broker, names, **dict.fromkeys(quotas)) == ErrorCode.NONE
    assert [await quotas_at(address) for address in pair.both] == [{}, {}]


@pytest.mark.parametrize("name", ["10.1.2.3", "localhost", None])
async def test_each_broker_describes_the_quotas_of_addresses_that_the_other_has_set(
    pair: Pair, name: str | None
) -> None:
    for broker in pair.both:
        assert await alter(broker, {IP: name}, connection_creation_rate=1000.0) == ErrorCode.NONE
        described = [await quotas_at(address) for address in pair.both]
        assert described[0] == described[1] == {frozenset({(IP, name)}): {"connection_creation_rate": 1000.0}}
        assert await alter(broker, {IP: name}, connection_creation_rate=None) == ErrorCode.NONE


@pytest.mark.parametrize("writer", ["apache", "ottla"])
async def test_each_broker_holds_clients_to_the_quota_that_the_other_has_set(pair: Pair, writer: str) -> None:
    broker: Address = getattr(pair, writer)
    client_id, topic = f"limited-by-{writer}", f"topic-of-{writer}"
    servers = ",".join(f"{host}:{port}" for host, port in pair.both)
    async with Admin(servers) as admin:
        await admin.topics.create(topic, partitions=2, replication_factor=1)

    assert await alter(broker, {CLIENT_ID: client_id}, producer_byte_rate=1000.0) == ErrorCode.NONE
    for partition in range(2):  # each broker leads one
        async with Producer(servers, client_id=client_id) as producer, asyncio.timeout(BOUND_S):
            while not producer.metrics.produce_throttle_time_max:
                await producer.send_and_wait(topic, b"x" * 500, partition=partition)
    await alter(broker, {CLIENT_ID: client_id}, producer_byte_rate=None)


@pytest.mark.parametrize(
    ("names", "quotas"),
    [
        ({}, {"producer_byte_rate": 1.0}),
        ({"group": "g"}, {"producer_byte_rate": 1.0}),
        ({USER: ""}, {"producer_byte_rate": 1.0}),
        ({USER: "a", IP: "10.0.0.1"}, {"producer_byte_rate": 1.0}),
        ({USER: "a"}, {"no_such_quota": 1.0}),
        ({USER: "a"}, {"producer_byte_rate": 1.5}),
        ({USER: "a"}, {"producer_byte_rate": -1.0}),
        ({USER: "a"}, {"consumer_byte_rate": 1e30}),
        ({IP: "no.such.host.invalid"}, {"connection_creation_rate": 1.0}),
        ({USER: "a"}, {"connection_creation_rate": 1.0}),
        ({IP: "10.0.0.1"}, {"producer_byte_rate": 1.0}),
    ],
    ids=str,
)
async def test_both_brokers_refuse_the_same_changes(
    pair: Pair, names: Names, quotas: dict[str, float]
) -> None:
    codes = [await alter(address, names, **quotas) for address in pair.both]

    assert codes[0] == codes[1] == ErrorCode.INVALID_REQUEST
    assert [await quotas_at(address) for address in pair.both] == [{}, {}]


@pytest.mark.parametrize("value", [0.0, math.nan])
async def test_ottla_refuses_quotas_of_nothing_that_apache_kafka_takes(pair: Pair, value: float) -> None:
    codes = [await alter(address, {USER: "a"}, producer_byte_rate=value) for address in pair.both]
    await alter(pair.apache, {USER: "a"}, producer_byte_rate=None)

    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
