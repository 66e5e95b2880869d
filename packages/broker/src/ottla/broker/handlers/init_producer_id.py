"""InitProducerId: assign an id to an idempotent producer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.handlers.request_context import RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from ottla.broker.transactions.coordinator import Transactions


class Needs(Protocol):
    """The parts of the broker that InitProducerId uses."""

    transactions: Transactions


async def handle(
    services: Needs, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """Assign a new id with epoch 0.

    A transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED: the transaction code of every client treats
    it as fatal at once, instead of retrying until a timeout.
    """
    if request.transactional_id == "":
        return _refusal(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return _refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        producer_id = await services.transactions.producer_ids.next_id()
    except KafkaError as error:
        return _refusal(error.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refusal(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
