"""Servers that the tests of this package share."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from ottla.zookeeper.apache_server import NoZooKeeper, RealZooKeeper, find_installation
from ottla.zookeeper.embedded import EmbeddedCoordinator, Limits
from ottla.zookeeper.testing import Background

_numbers = count(1)
SHORT_SESSION_MS = 1_000


@pytest.fixture(scope="session")
def embedded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An embedded coordinator with a directory; yields its connect string."""
    limits = Limits(min_session_timeout_ms=SHORT_SESSION_MS)
    coordinator = EmbeddedCoordinator(tmp_path_factory.mktemp("embedded"), limits=limits, tick_ms=50)
    with Background(coordinator) as server:
        yield server.value.connect_string


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real ZooKeeper, or a skip; yields its connect string."""
    try:
        find_installation()
    except NoZooKeeper as error:
        pytest.skip(str(error))
    with Background(RealZooKeeper(tmp_path_factory.mktemp("real") / Path("zk"), tick_ms=500)) as server:
        yield server.value.connect_string


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.java)])
def hosts(request: pytest.FixtureRequest) -> str:
    """Each of the two in turn."""
    return str(request.getfixturevalue(f"{request.param}_server"))


@pytest.fixture
def connect(hosts: str) -> str:
    """A chroot of its own at each of the two in turn."""
    return f"{hosts}/test-{next(_numbers)}"
