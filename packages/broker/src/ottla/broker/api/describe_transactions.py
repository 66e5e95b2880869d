"""DescribeTransactions: the state of transactional ids (KIP-664)."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DESCRIBE_TOPICS, DESCRIBE_TXNS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.open_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

if TYPE_CHECKING:
    from ottla.broker.transactions.coordinator import TransactionCoordinator
    from ottla.broker.transactions.events import TransactionSnapshot


class Needs(Protocol):
    """The parts of the broker that DescribeTransactions uses."""

    transactions: TransactionCoordinator


async def handle(
    services: Needs, request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    """Describe each transactional id, or say why this broker cannot.

    Topics that the client may not describe are left out.
    """
    return DescribeTransactionsResponse(
        transaction_states=[
            _described(services, transactional_id, context)
            async for transactional_id in context.paced(dict.fromkeys(request.transactional_ids))
        ]
    )


def _found(
    services: Needs, transactional_id: str, context: RequestContext
) -> TransactionSnapshot | ErrorCode:
    if not context.allows(DESCRIBE_TXNS, Resource(ResourceType.TRANSACTIONAL_ID, transactional_id)):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return services.transactions.describe(transactional_id)


def _is_shown(topic: str, context: RequestContext) -> bool:
    return context.allows(DESCRIBE_TOPICS, Resource(ResourceType.TOPIC, topic), is_asked_for=False)


def _described(services: Needs, transactional_id: str, context: RequestContext) -> TransactionState:
    found = _found(services, transactional_id, context)
    if isinstance(found, ErrorCode):
        return TransactionState(transactional_id=transactional_id, error_code=found)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state.value,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer.id,
        producer_epoch=found.producer.epoch,
        topics=[
            TopicData(topic=topic, partitions=[entry.partition for entry in group])
            for topic, group in groupby(sorted(found.partitions), lambda partition: partition.topic)
            if _is_shown(topic, context)
        ],
    )
