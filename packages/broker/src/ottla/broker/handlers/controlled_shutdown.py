"""ControlledShutdown: a broker that wants to leave hands its leaderships over first."""

from __future__ import annotations

from ottla.broker.controller.events import ControlledShutdown
from ottla.broker.handlers.services import RequestContext, Services
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)


async def handle(
    services: Services, request: ControlledShutdownRequest, context: RequestContext | None = None
) -> ControlledShutdownResponse:
    """Move leaderships off the broker; answer with those that could not be moved."""
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
