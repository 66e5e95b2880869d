"""Clusters for the tests of our clients: our broker, and with `--clusters` Apache Kafka's too."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from peers.apache_kafka import ApacheKafka
from peers.kraft_kafka import KraftKafka
from peers.maven import missing_tools

KINDS = ("ottla", "kafka-3.9", "kafka-4.4")

_OURS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "8"}
_KAFKA = {
    "auto.create.topics.enable": "true",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "8",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.min.session.timeout.ms": "1000",
}


@dataclass(frozen=True)
class Cluster:
    """A running cluster of one broker."""

    kind: str
    """ottla, kafka-3.9 or kafka-4.4."""
    bootstrap_servers: str
    running: Any
    """The runner of the broker, for tests that look into it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--clusters",
        default="ottla",
        help=f"against which brokers tests/sdk runs: all, or a comma list of {', '.join(KINDS)}",
    )


def chosen_kinds(config: pytest.Config) -> list[str]:
    """Return the kinds that the option names. Raises UsageError for one that is not known."""
    named = str(config.getoption("--clusters", default="ottla"))
    kinds = list(KINDS) if named == "all" else named.split(",")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise pytest.UsageError(f"--clusters {unknown[0]} is not known; known are all, {', '.join(KINDS)}")
    return kinds


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cluster" in metafunc.fixturenames:
        metafunc.parametrize("cluster", chosen_kinds(metafunc.config), indirect=True, scope="session")


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One broker for all tests, one kind after the other; topics and groups keep tests apart."""
    kind: str = request.param
    if kind != "ottla" and (missing := missing_tools()):
        pytest.skip(missing)
    with _started(kind, tmp_path_factory.mktemp(kind)) as running:
        yield Cluster(kind, running.bootstrap_servers, running)


def _started(kind: str, folder: Path) -> AbstractContextManager[Any]:
    if kind == "ottla":
        return BrokerProcess(folder, _OURS)
    if kind == "kafka-3.9":
        return ApacheKafka(folder, _KAFKA, heap="512m")
    return KraftKafka(folder, _KAFKA)


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Make names that no other test uses."""
    return lambda stem: f"{stem}-{secrets.token_hex(4)}"


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    """An admin client of the cluster; `admin.topics.create` makes topics with the partitions one wants."""
    async with Admin(cluster.bootstrap_servers) as admin:
        yield admin
