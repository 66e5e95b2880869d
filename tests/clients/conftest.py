from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from ottla.broker.testing import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker in a process of its own for all tests of a module; topics keep them apart."""
    settings = {"num.partitions": "3", "group.initial.rebalance.delay.ms": "50"}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings) as running:
        yield running


@pytest.fixture(scope="module")
def servers(broker: BrokerProcess) -> str:
    return broker.bootstrap_servers


_numbers = itertools.count(1)


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Make names that no other test uses."""
    return lambda stem: f"{stem}-{next(_numbers)}"
