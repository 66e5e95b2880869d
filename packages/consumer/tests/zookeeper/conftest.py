from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ottla.consumer.zookeeper.testing import MemoryGroup


@pytest.fixture
async def world() -> AsyncIterator[MemoryGroup]:
    made = MemoryGroup()
    yield made
    made.admin.close()


@pytest.fixture
async def bound() -> AsyncIterator[None]:
    async with asyncio.timeout(30):
        yield
