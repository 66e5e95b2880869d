"""EndTxn: commit or abort a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.coordinators.response_errors import known_to
from ottla.broker.requests.context import RequestContext
from ottla.broker.transactions.events import Producer
from ottla.protocol.messages.transactions import EndTxnRequest, EndTxnResponse

if TYPE_CHECKING:
    from ottla.broker.transactions.coordinator import TransactionCoordinator


RAISES_FROM: Final = 5
"""The first version that is of transactions version 2: the response has what the next one is done with."""


class Needs(Protocol):
    """The parts of the broker that EndTxn uses."""

    transactions: TransactionCoordinator


async def handle(services: Needs, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
    """Answer once the decision is committed; the markers are sent after that."""
    producer = Producer(request.producer_id, request.producer_epoch)
    if context.api_version >= RAISES_FROM:
        result = await services.transactions.end_raising(
            request.transactional_id, producer, commit=request.committed
        )
        return EndTxnResponse(
            error_code=result.error,
            producer_id=result.producer.id,
            producer_epoch=result.producer.epoch,
        )
    error = await services.transactions.end(request.transactional_id, producer, commit=request.committed)
    return EndTxnResponse(error_code=known_to(context.api_version, error))
