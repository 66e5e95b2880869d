"""Benches on which the same scenario runs: without a broker, and with one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.broker.testing import BrokerThread
from peers.stream_benches import Bench, BrokerBench, DriverBench


@pytest.fixture(params=["driver", "broker"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "driver":
        with DriverBench() as driver:
            yield driver
        return
    broker: BrokerThread = request.getfixturevalue("ottla_broker")
    with BrokerBench(broker.bootstrap_servers) as found:
        yield found
