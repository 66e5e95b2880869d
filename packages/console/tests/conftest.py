"""A broker for each module of tests, an admin client for it, and a console that allows changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.client.config import ClientConfig
from ottla.console.settings import ClusterSettings
from ottla.console.testing import serving


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


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "state" / "audit.jsonl"


@pytest.fixture
async def console(address: str, audit: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A console that allows changes; modules that need another one have their own."""
    cluster = ClusterSettings("local", address, ClientConfig)
    async with serving(cluster, allows_changes=True, audit=audit) as client:
        yield client
