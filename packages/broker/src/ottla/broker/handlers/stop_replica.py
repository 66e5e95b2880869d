"""StopReplica: the controller takes replicas away from this broker."""

from __future__ import annotations

from ottla.broker.handlers.services import RequestContext, Services
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse


async def handle(
    services: Services, request: StopReplicaRequest, context: RequestContext | None = None
) -> StopReplicaResponse:
    """Stop replicas, and delete those that are to be deleted.

    A request for an earlier life of this broker is refused: it would delete the data of this one.
    """
    if services.controller.is_stale_broker_epoch(request.broker_epoch):
        return StopReplicaResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    return await services.replicas.stop_replicas(request)
