"""Fixtures of a cluster that all tests of a module share; a `conftest.py` imports them.

To start three brokers takes several seconds of CPU time, to make whole what a test has left most often none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from ottla.broker.testing import BrokerCluster
from peers.one_partition import OnePartition, one_partition

__all__ = ["cluster", "cluster_of_module", "orders"]


@pytest.fixture(scope="module")
def cluster_of_module(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerCluster]:
    """Three brokers with the module's `CLUSTER_SETTINGS`, if it has any."""
    settings: dict[str, str] = getattr(request.module, "CLUSTER_SETTINGS", {})
    with BrokerCluster(tmp_path_factory.mktemp("cluster"), settings) as running:
        yield running


@pytest.fixture
def cluster(cluster_of_module: BrokerCluster) -> BrokerCluster:
    """The cluster of the module, of which every broker runs; topics and groups keep tests apart."""
    cluster_of_module.restore()
    return cluster_of_module


@pytest.fixture
async def orders(cluster: BrokerCluster) -> AsyncIterator[OnePartition]:
    """A partition of that cluster that is still to be created."""
    async with one_partition(cluster) as partition:
        yield partition
