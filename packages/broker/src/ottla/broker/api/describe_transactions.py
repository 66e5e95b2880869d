"""DescribeTransactions: the state of transactional ids (KIP-664)."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests.context import RequestContext
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
    """Describe each transactional id, or say why this broker cannot."""
    return DescribeTransactionsResponse(
        transaction_states=[
            _described(transactional_id, services.transactions.describe(transactional_id))
            async for transactional_id in context.paced(dict.fromkeys(request.transactional_ids))
        ]
    )


def _described(transactional_id: str, found: TransactionSnapshot | ErrorCode) -> TransactionState:
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
        ],
    )
