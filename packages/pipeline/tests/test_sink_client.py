"""Transaction timeouts that tasks request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.pipeline.errors import OptionError
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.sink_client import SinkClient
from ottla.pipeline.sink.tasks import TaskIdentity
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse


class Allowing(ScriptedBroker):
    """A broker with a maximum transaction timeout."""

    allowed_ms = 900_000

    def begun(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        is_refused = request.transaction_timeout_ms > self.allowed_ms
        code = ErrorCode.INVALID_TRANSACTION_TIMEOUT if is_refused else ErrorCode.NONE
        return InitProducerIdResponse(error_code=code, producer_id=1, producer_epoch=0)


@pytest.fixture
async def broker() -> AsyncIterator[Allowing]:
    async with Allowing() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata())
        broker.on(
            FindCoordinatorRequest,
            lambda _: FindCoordinatorResponse(node_id=NODE_ID, host=broker.host, port=broker.port),
        )
        broker.on(InitProducerIdRequest, broker.begun)
        yield broker


async def asked_ms(broker: Allowing, *, waits: bool, **options: str) -> list[int]:
    """Open a producer for a task; return the timeouts that it requested."""
    servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    config = SinkConfig.of(servers | {"delivery": "exactly-once"} | options)

    def opened() -> None:
        client = SinkClient(config)
        try:
            with client.producer(TaskIdentity("q", 7, 3), waits=waits):
                pass
        finally:
            client.close(10)

    await asyncio.to_thread(opened)
    return [each.transaction_timeout_ms for each in broker.seen(InitProducerIdRequest)]


async def test_a_transaction_that_waits_for_others_asks_for_more_time(broker: Allowing) -> None:
    assert await asked_ms(broker, waits=False) == [300_000]
    assert await asked_ms(broker, waits=True) == [300_000, 900_000]


async def test_brokers_that_allow_less_are_asked_for_less(broker: Allowing) -> None:
    broker.allowed_ms = 300_000

    assert await asked_ms(broker, waits=True) == [900_000, 300_000]


async def test_only_the_timeouts_of_the_options_are_requested(broker: Allowing) -> None:
    broker.allowed_ms = 8_000

    assert await asked_ms(broker, waits=True, **{"kafka.transaction.timeout.ms": "8000"}) == [8_000]
    with pytest.raises(OptionError, match=r"'kafka\.transaction\.timeout\.ms' is 9000 ms"):
        await asked_ms(broker, waits=True, **{"kafka.transaction.timeout.ms": "9000"})
