"""A coordinator that is gone for longer than a call waits: reading begins when it is back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.client.testing import ScriptedBroker
from ottla.consumer import Consumer, TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.metadata import MetadataRequest

SHORT: Any = {"default_api_timeout_ms": 50, "retry_backoff_ms": 5, "retry_backoff_max_ms": 10}
ASKS = 30


UNKNOWN = FindCoordinatorResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, node_id=-1)
DOWN = FindCoordinatorResponse(node_id=2, host="127.0.0.1", port=1)


@pytest.mark.parametrize("gone", [UNKNOWN, DOWN], ids=["unknown", "down"])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("is_member", [True, False])
async def test_a_coordinator_that_is_gone_for_long_is_looked_for_again_and_ends_nothing(
    is_member: bool, isolation: Any, gone: FindCoordinatorResponse
) -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(30):
        broker.on(MetadataRequest, lambda _: broker.metadata("t"))
        broker.on(FindCoordinatorRequest, lambda _: gone)
        consumer = Consumer(
            bootstrap_servers=broker.bootstrap_servers, group_id="g", isolation_level=isolation, **SHORT
        )
        if is_member:
            consumer.subscribe(["t"])
        async with consumer:
            if not is_member:
                consumer.assign([TopicPartition("t", 0)])
            while len(broker.seen(FindCoordinatorRequest)) < ASKS:
                assert await consumer.getmany(timeout_ms=20) == {}
