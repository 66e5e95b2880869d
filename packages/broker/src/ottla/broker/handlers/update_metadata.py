"""UpdateMetadata: the controller tells who lives and who leads."""

from __future__ import annotations

from ottla.broker.handlers.services import RequestContext, Services
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse


async def handle(
    services: Services, request: UpdateMetadataRequest, context: RequestContext | None = None
) -> UpdateMetadataResponse:
    """Take the news in, unless they come from a controller that has been replaced."""
    if request.controller_epoch < services.metadata.controller_epoch:
        return UpdateMetadataResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
    if services.controller.is_stale_broker_epoch(request.broker_epoch):
        return UpdateMetadataResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    deleted = services.metadata.update(request)
    for topic in {partition.topic for partition in deleted}:
        services.configs.forget_topic(topic)
    if deleted and services.groups is not None:
        services.groups.partitions_deleted(deleted)
    return UpdateMetadataResponse()
