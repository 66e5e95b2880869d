"""A broker for each module of tests, and an admin client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data")) as started:
        yield started


@pytest.fixture
def address(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.port}"


@pytest.fixture
async def admin(address: str) -> AsyncIterator[Admin]:
    async with Admin(address) as connected:
        yield connected
