"""AddPartitionsToTxn: partitions of a transaction; from version 4 on brokers verify several (KIP-890)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.handlers.inter_broker_requests import is_served
from ottla.broker.handlers.request_context import RequestContext
from ottla.broker.transactions.events import Producer
from ottla.broker.transactions.response_errors import known_to
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.inter_broker_access import InterBrokerAccess
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.transactions.coordinator import TransactionCoordinator

SEVERAL_FROM: Final = 4
"""The first version that only brokers send."""


class Needs(Protocol):
    """The parts of the broker that AddPartitionsToTxn uses."""

    inter_broker: InterBrokerAccess
    metadata: MetadataCache
    transactions: TransactionCoordinator


async def handle(
    services: Needs, request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse:
    """Add the partitions of one client's transaction, or add or verify those of several for a broker.

    An unknown partition fails its whole transaction: the others get OPERATION_NOT_ATTEMPTED.
    """
    if context.api_version < SEVERAL_FROM:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        topics = await _topic_results(services, transaction, context)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
    if not await is_served(services, context):
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=one.transactional_id,
                topic_results=await _topic_results(services, one, context),
            )
            async for one in context.paced(request.transactions)
        ]
    )


async def _topic_results(
    services: Needs, transaction: AddPartitionsToTxnTransaction, context: RequestContext
) -> list[AddPartitionsToTxnTopicResult]:
    partitions = [
        TopicPartition(topic.name, number)
        async for topic in context.paced(transaction.topics)
        for number in topic.partitions
    ]
    errors = _errors_of_unknown(services, partitions)
    if not errors:
        errors = await _errors(services.transactions, transaction, partitions)
    version = context.api_version
    return [_topic_result(topic, errors, version) async for topic in context.paced(transaction.topics)]


def _topic_result(
    topic: AddPartitionsToTxnTopic, errors: Mapping[TopicPartition, ErrorCode], version: int
) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(
                partition_index=number,
                partition_error_code=known_to(version, errors[TopicPartition(topic.name, number)]),
            )
            for number in topic.partitions
        ],
    )


def _errors_of_unknown(
    services: Needs, partitions: Sequence[TopicPartition]
) -> Mapping[TopicPartition, ErrorCode]:
    """Return an error for each partition if one of them does not exist; empty otherwise."""
    unknown = {one for one in partitions if services.metadata.partition(one) is None}
    if not unknown:
        return {}
    return {
        one: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if one in unknown else ErrorCode.OPERATION_NOT_ATTEMPTED
        for one in partitions
    }


async def _errors(
    transactions: TransactionCoordinator,
    transaction: AddPartitionsToTxnTransaction,
    partitions: Sequence[TopicPartition],
) -> Mapping[TopicPartition, ErrorCode]:
    producer = Producer(transaction.producer_id, transaction.producer_epoch)
    if transaction.verify_only:
        return transactions.verify(transaction.transactional_id, producer, partitions)
    error = await transactions.add_partitions(transaction.transactional_id, producer, partitions)
    return dict.fromkeys(partitions, error)
