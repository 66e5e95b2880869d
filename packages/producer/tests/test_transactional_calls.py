"""What a coordinator is asked, and when."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.producer import Producer
from ottla.producer.transaction_state import TransactionFailed
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from peers.taking_broker import serving


def coordinating(broker: ScriptedBroker) -> ScriptedBroker:
    """Make a broker coordinate transactions, and take all that is asked."""
    broker.on(
        FindCoordinatorRequest,
        lambda _: FindCoordinatorResponse(node_id=NODE_ID, host=broker.host, port=broker.port),
    )
    broker.on(AddPartitionsToTxnRequest, lambda request: added(request, 0))
    broker.on(EndTxnRequest, lambda _: EndTxnResponse())
    return serving(broker)


def added(request: AddPartitionsToTxnRequest, error: int) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


async def test_nothing_is_announced_to_a_transaction_that_is_aborted() -> None:
    async with coordinating(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:
            aborting: list[asyncio.Task[None]] = []

            def busy(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
                aborting.append(asyncio.create_task(producer.abort_transaction()))
                broker.on(AddPartitionsToTxnRequest, lambda later: added(later, 0))
                return added(request, ErrorCode.CONCURRENT_TRANSACTIONS)

            broker.on(AddPartitionsToTxnRequest, busy)
            await producer.begin_transaction()
            sent = producer.send_nowait("t", b"x")
            with pytest.raises(TransactionFailed, match="aborted before the record was sent"):
                await sent
            await aborting[0]
            await asyncio.sleep(0.1)
            assert len(broker.seen(AddPartitionsToTxnRequest)) == 1

            async with producer.transaction():
                await producer.send("t", b"y")

    assert len(broker.seen(AddPartitionsToTxnRequest)) == 2
    assert [request.committed for request in broker.seen(EndTxnRequest)] == [True]
