"""A scripted broker that coordinates transactions, for unit tests of producers."""

from __future__ import annotations

from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from peers.accepting_broker import serving


def coordinating(broker: ScriptedBroker) -> ScriptedBroker:
    """Make a broker coordinate transactions, and accept every request."""
    broker.on(
        FindCoordinatorRequest,
        lambda _: FindCoordinatorResponse(node_id=NODE_ID, host=broker.host, port=broker.port),
    )
    broker.on(AddPartitionsToTxnRequest, lambda request: added(request, 0))
    broker.on(AddOffsetsToTxnRequest, lambda _: AddOffsetsToTxnResponse())
    broker.on(TxnOffsetCommitRequest, lambda _: TxnOffsetCommitResponse())
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
