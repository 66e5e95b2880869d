"""Quotas by Kafka's own `kafka-configs`, and on one ZooKeeper with Apache Kafka 3.9: each reads the other's."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from ottla.admin import CLIENT_ID, USER, Admin, Quota
from ottla.admin.configs import IP
from ottla.broker.config import broker_config_from
from ottla.broker.server.broker import Broker
from ottla.broker.testing import BrokerProcess
from ottla.client.config import ClientConfig
from ottla.producer import Producer
from ottla.protocol.errors import KafkaError
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
    "default user": ("--entity-type", "users", "--entity-default"),
    "client": ("--entity-type", "clients", "--entity-name", "app"),
    "default client": ("--entity-type", "clients", "--entity-default"),
    "user's client": (
        "--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients", "--entity-name", "app",
    ),
    "default of both": (
        "--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-default",
    ),
}  # fmt: skip
OF_CLIENTS: Final = {
    "producer_byte_rate": "1024.0",
    "consumer_byte_rate": "2048.0",
    "request_percentage": "12.5",
    "controller_mutation_rate": "3.5",
}
OF_ADDRESSES: Final = {
    "address": ("--entity-type", "ips", "--entity-name", "10.0.0.1"),
    "host name": ("--entity-type", "ips", "--entity-name", "localhost"),
    "default": ("--entity-type", "ips", "--entity-default"),
}


def written(quotas: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value.removesuffix('.0')}" for key, value in quotas.items())


@pytest.mark.parametrize("entity", ENTITIES)
def test_kafkas_tool_sets_describes_and_removes_the_quotas_of_clients(configs: Configs, entity: str) -> None:
    named = ENTITIES[entity]

    assert "Completed updating config" in configs("--alter", *named, "--add-config", written(OF_CLIENTS))
    described = configs("--describe", *named)
    assert "Quota configs for" in described
    for key, value in OF_CLIENTS.items():
        assert f"{key}={value}" in described

    configs("--alter", *named, "--delete-config", "request_percentage,controller_mutation_rate")
    described = configs("--describe", *named)
    assert "request_percentage" not in described
    assert "producer_byte_rate=1024.0" in described
    configs("--alter", *named, "--delete-config", "producer_byte_rate,consumer_byte_rate")
    assert "byte_rate" not in configs("--describe", *named)


@pytest.mark.parametrize("entity", OF_ADDRESSES)
def test_kafkas_tool_sets_describes_and_removes_the_quotas_of_addresses(
    configs: Configs, entity: str
) -> None:
    named = OF_ADDRESSES[entity]

    configs("--alter", *named, "--add-config", "connection_creation_rate=1000")
    assert "connection_creation_rate=1000.0" in configs("--describe", *named)
    configs("--alter", *named, "--delete-config", "connection_creation_rate")
    assert "connection_creation_rate" not in configs("--describe", *named)


def test_kafkas_tool_describes_all_users_and_clients_with_quotas(configs: Configs) -> None:
    both = ENTITIES["user's client"]
    configs("--alter", *ENTITIES["client"], "--add-config", "producer_byte_rate=7")
    configs("--alter", *both, "--add-config", "producer_byte_rate=8")
    try:
        assert "producer_byte_rate=7.0" in configs("--describe", "--entity-type", "clients")
        described = configs("--describe", "--entity-type", "users", "--entity-type", "clients")
        assert "user-principal 'alice', client-id 'app' are producer_byte_rate=8.0" in described
    finally:
        for named in (ENTITIES["client"], both):
            configs("--alter", *named, "--delete-config", "producer_byte_rate")


@pytest.mark.parametrize(
    "value", ["producer_byte_rate=0", "request_percentage=NaN", "consumer_byte_rate=-1", "no_such_quota=1"]
)
def test_a_quota_that_limits_nothing_or_everything_is_refused_to_kafkas_tool(
    configs: Configs, value: str
) -> None:
    with pytest.raises(RuntimeError, match=r"InvalidRequestException|Unknown|requirement failed|nvalid"):
        configs("--alter", *ENTITIES["user"], "--add-config", value)

    assert value.partition("=")[0] not in configs("--describe", *ENTITIES["user"])


# ---- one ZooKeeper


class Pair:
    """A broker of Apache Kafka and one of Ottla in one cluster."""

    def __init__(self, apache: str, ottla: str) -> None:
        self.servers = {"apache": apache, "ottla": ottla}


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
            yield Pair(apache.bootstrap_servers, f"127.0.0.1:{ottla.value.port}")


class OneBroker:
    """An admin client that asks one broker of a cluster: it knows no other."""
