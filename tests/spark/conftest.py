"""One Spark and one broker for all tests of the session: starting Spark takes longer than most tests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.broker.testing import BrokerProcess
from peers.spark import Stream, missing_java, spark_session
from peers.spark_cluster import SparkCluster, spark_cluster
from peers.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Options = Mapping[str, object]


TIMEOUT_S = 300
"""The default timeout. A test that is aborted within a call to Java breaks Spark for all others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip all tests here without Java, and say what to install; raise timeouts otherwise."""
    missing = missing_java()
    for item in items:
        if "tests/spark/" not in item.path.as_posix():
            continue
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark with two task threads."""
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests, which use different topics."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def topics(broker: BrokerProcess) -> Iterator[Topics]:
    """Creates and fills topics of the broker."""
    with Topics(broker.bootstrap_servers) as topics:
        yield topics


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Return a standalone cluster of two workers."""
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Return names that no other test uses."""
    return lambda stem: f"{stem}-{secrets.token_hex(4)}"


@pytest.fixture
def table(spark: SparkSession, broker: BrokerProcess) -> Callable[[Options], DataFrame]:
    """Return tables of topics of the broker: `table({"subscribe": "orders"})`."""

    def table(options: Options) -> DataFrame:
        return with_options(spark.read.format("ottla"), broker, options).load()

    return table


@pytest.fixture
def stream(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Iterator[Callable[..., Stream]]:
    """Return streams of topics of the broker: `stream({"subscribe": "orders"}, availableNow=True)`."""
    made: list[Stream] = []

    def stream(options: Options, of: BrokerProcess = broker, **trigger: Any) -> Stream:
        made.append(
            Stream(
                lambda: with_options(spark.readStream.format("ottla"), of, options).load(),
                tmp_path / f"checkpoint-{len(made)}",
                trigger or {"processingTime": "0 seconds"},
            )
        )
        return made[-1]

    yield stream
    for each in made:
        each.stop()


def with_options(reader: Any, broker: BrokerProcess, options: Options) -> Any:
    """Set the broker and other options of a reader."""
    return reader.options(**{"kafka.bootstrap.servers": broker.bootstrap_servers, **options})
