from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.broker.testing import BrokerProcess
from peers.maven import missing_tools


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs Java where there is none, and say what to install."""
    missing = missing_tools()
    for item in items:
        if missing and item.get_closest_marker("java"):
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker in a process of its own for all tests of a module."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), {"offsets.topic.num.partitions": "8"}) as running:
        yield running
