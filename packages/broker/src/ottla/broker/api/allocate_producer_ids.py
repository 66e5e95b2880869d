"""AllocateProducerIds: the controller reserves a block of producer ids for a broker (KIP-730)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import NotController, StaleBrokerEpoch
from ottla.protocol.messages.producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.controller.controller import Controller
    from ottla.broker.transactions.coordinator import TransactionCoordinator


class Needs(Protocol):
    """The parts of the broker that AllocateProducerIds uses."""

    controller: Controller
    transactions: TransactionCoordinator


async def handle(
    services: Needs, request: AllocateProducerIdsRequest, context: RequestContext
) -> AllocateProducerIdsResponse:
    """Reserve a block, unless the request is for an earlier registration of the broker."""
    cluster = services.controller.context
    if cluster is None:
        raise NotController
    broker = cluster.live.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        raise StaleBrokerEpoch
    block = await services.transactions.producer_ids.claim_for(request.broker_id)
    return AllocateProducerIdsResponse(
        producer_id_start=block.first, producer_id_len=block.last - block.first + 1
    )
