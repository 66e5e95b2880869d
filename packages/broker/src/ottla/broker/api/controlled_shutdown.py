"""ControlledShutdown: move leaderships off a broker before it stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.peers.controller_requests import ControlledShutdown
from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.controller_requests import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)

if TYPE_CHECKING:
    from ottla.broker.controller.controller import Controller


class Needs(Protocol):
    """The parts of the broker that ControlledShutdown uses."""

    controller: Controller


async def handle(
    services: Needs, request: ControlledShutdownRequest, context: RequestContext
) -> ControlledShutdownResponse:
    """Move leaderships off the broker; respond with the partitions that could not be moved."""
    try:
        answers = await services.controller.ask(ControlledShutdown(request.broker_id, request.broker_epoch))
    except KafkaError as error:
        return ControlledShutdownResponse(error_code=error.code)
    return ControlledShutdownResponse(
        error_code=answers.top,
        remaining_partitions=[
            RemainingPartition(topic_name=partition.topic, partition_index=partition.partition)
            for partition in answers.remaining
        ],
    )
