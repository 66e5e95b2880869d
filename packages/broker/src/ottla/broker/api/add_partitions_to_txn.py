"""AddPartitionsToTxn: partitions of a transaction; from version 4 on brokers verify several (KIP-890)."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.coordinators.response_errors import known_to
from ottla.broker.requests.authorization import NOTHING_REFUSED, is_served, refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import WRITE_TOPICS, WRITE_TXNS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.broker.transactions.events import EPOCH_RISES_FROM, Producer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.topics import INTERNAL_TOPICS, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.inter_broker_access import InterBrokerAccess
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.transactions.coordinator import TransactionCoordinator

SEVERAL_FROM: Final = 4
"""The first version that only brokers send."""

ErrorOf = Callable[[TopicPartition], ErrorCode]


class Needs(Protocol):
    """The parts of the broker that AddPartitionsToTxn uses."""

    inter_broker: InterBrokerAccess
    metadata: MetadataCache
    transactions: TransactionCoordinator


async def handle(
    services: Needs, request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse:
    """Add the partitions of one client's transaction, or add or verify those of several for a broker.

    A partition that is unknown, or that the client may not write to, fails its whole transaction: the others
    get OPERATION_NOT_ATTEMPTED.
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
    if not await is_served(services.inter_broker, context):
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=asked.transactional_id,
                topic_results=await _topic_results(services, asked, context),
            )
            async for asked in context.paced(request.transactions)
        ]
    )


async def _topic_results(
    services: Needs, transaction: AddPartitionsToTxnTransaction, context: RequestContext
) -> list[AddPartitionsToTxnTopicResult]:
    error_of = await _errors(services, transaction, context)
    return [
        await _topic_result(topic, error_of, context) async for topic in context.paced(transaction.topics)
    ]


async def _topic_result(
    topic: AddPartitionsToTxnTopic, error_of: ErrorOf, context: RequestContext
) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(
                partition_index=number,
                partition_error_code=known_to(
                    context.api_version, error_of(TopicPartition(topic.name, number))
                ),
            )
            async for number in context.paced(topic.partitions)
        ],
    )


async def _errors(
    services: Needs, transaction: AddPartitionsToTxnTransaction, context: RequestContext
) -> ErrorOf:
    """Add or verify the partitions if all of them exist; return the error of each."""
    transactional_id = Resource(ResourceType.TRANSACTIONAL_ID, transaction.transactional_id)
    is_of_client = context.api_version < SEVERAL_FROM
    if is_of_client and not context.allows(WRITE_TXNS, transactional_id):
        return lambda _: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    refused = await _refused(transaction, context) if is_of_client else NOTHING_REFUSED
    known, are_all_known = set[TopicPartition](), True
    async for topic in context.paced(transaction.topics):
        async for number in context.paced(topic.partitions):
            partition = TopicPartition(topic.name, number)
            if topic.name not in refused and services.metadata.partition(partition) is not None:
                known.add(partition)
            else:
                are_all_known = False
    if not are_all_known:
        return partial(_not_added, known, refused)
    producer = Producer(transaction.producer_id, transaction.producer_epoch)
    if transaction.verify_only:
        return services.transactions.verify(transaction.transactional_id, producer, known).__getitem__
    # A broker adds the partitions that it leads for a producer of version 2, which does not itself.
    version = 0 if is_of_client else EPOCH_RISES_FROM
    error = await services.transactions.add_partitions(transaction.transactional_id, producer, known, version)
    return lambda _: error


async def _refused(transaction: AddPartitionsToTxnTransaction, context: RequestContext) -> AbstractSet[str]:
    """Return the topics that a client may not write to; the broker's own are always among them."""
    names = [topic.name async for topic in context.paced(transaction.topics)]
    refused = await refused_names(
        context, WRITE_TOPICS, (name for name in names if name not in INTERNAL_TOPICS)
    )
    return refused | INTERNAL_TOPICS


def _not_added(
    known: AbstractSet[TopicPartition], refused: AbstractSet[str], partition: TopicPartition
) -> ErrorCode:
    if partition.topic in refused:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.OPERATION_NOT_ATTEMPTED if partition in known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
