from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.broker.testing import BrokerProcess
from peers.maven import missing_tools
from peers.three_brokers import KINDS, ThreeBrokers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs Java where there is none, and say what to install."""
    missing = missing_tools()
    for item in items:
        if missing and item.get_closest_marker("java"):
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session", params=KINDS)
def three_brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ThreeBrokers]:
    """Three brokers of Apache Kafka, one kind after the other; topics and groups keep tests apart."""
    kind: str = request.param
    with ThreeBrokers(kind, tmp_path_factory.mktemp(kind)) as running:
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker in a process of its own for all tests of a module."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), {"offsets.topic.num.partitions": "8"}) as running:
        yield running
