from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.broker.security.sasl.testing import PASSWORD, SETTINGS, Wire
from ottla.broker.testing import BrokerThread
from peers.shared_cluster import cluster, cluster_of_module, orders

__all__ = ["broker_with_logins", "cluster", "cluster_of_module", "orders"]


@pytest.fixture(scope="module")
def broker_with_logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """A broker where alice logs in by every mechanism."""
    with BrokerThread(tmp_path_factory.mktemp("broker"), SETTINGS) as running:
        with Wire(running.port) as wire:
            wire.log_in()
            wire.set_password("alice", PASSWORD)
        yield running
