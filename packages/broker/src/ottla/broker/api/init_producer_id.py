"""InitProducerId: assign a producer id and epoch, for a transactional id a lasting one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.coordinators.response_errors import INITIALIZE_FENCED_FROM, known_to
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import IDEMPOTENT_WRITE, WRITE_TOPICS, WRITE_TXNS
from ottla.broker.security.authorizer import CLUSTER, Resource, ResourceType
from ottla.broker.transactions.events import NO_PRODUCER, Producer, Result
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from ottla.broker.transactions.coordinator import TransactionCoordinator


class Needs(Protocol):
    """The parts of the broker that InitProducerId uses."""

    transactions: TransactionCoordinator


async def handle(
    services: Needs, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """Assign a new id with epoch 0, or the next epoch of the transactional id."""
    refusal = _refusal(request.transactional_id, context)
    result = await _result(services.transactions, request) if refusal is None else Result(refusal)
    return InitProducerIdResponse(
        error_code=known_to(context.api_version, result.error, INITIALIZE_FENCED_FROM),
        producer_id=result.producer.id,
        producer_epoch=result.producer.epoch,
    )


def _refusal(transactional_id: str | None, context: RequestContext) -> ErrorCode | None:
    """Return the error of a client without the permission; WRITE on any topic is enough for idempotence."""
    if transactional_id is not None:
        is_allowed = context.allows(WRITE_TXNS, Resource(ResourceType.TRANSACTIONAL_ID, transactional_id))
        return None if is_allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    is_allowed = context.allows(IDEMPOTENT_WRITE, CLUSTER, is_asked_for=False) or context.allows_any(
        WRITE_TOPICS
    )
    return None if is_allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def _result(transactions: TransactionCoordinator, request: InitProducerIdRequest) -> Result:
    named = Producer(request.producer_id, request.producer_epoch)
    if (named.id == NO_PRODUCER.id) != (named.epoch == NO_PRODUCER.epoch):
        return Result(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        expected = None if named == NO_PRODUCER else named
        return await transactions.initialize(
            request.transactional_id, request.transaction_timeout_ms, expected
        )
    try:
        producer_id = await transactions.producer_ids.next_id()
    except KafkaError as error:
        return Result(error.code)
    return Result(ErrorCode.NONE, Producer(producer_id, 0))
