from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ottla.client.testing import ScriptedBroker


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as broker:
        yield broker
