"""StopReplica: stop replicas on this broker, as the controller says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.control_requests import StopReplicaRequest, StopReplicaResponse

if TYPE_CHECKING:
    from ottla.broker.controller.controller import Controller
    from ottla.broker.replication.replicas import Replicas


class Needs(Protocol):
    """The parts of the broker that StopReplica uses."""

    controller: Controller
    replicas: Replicas


async def handle(
    services: Needs, request: StopReplicaRequest, context: RequestContext
) -> StopReplicaResponse:
    """Apply a request that arrived over the network."""
    return await apply(services, request)


async def apply(services: Needs, request: StopReplicaRequest) -> StopReplicaResponse:
    """Stop replicas, and delete those that the request marks for deletion.

    A request for an earlier registration of this broker is refused: it would delete data that the broker got
    since then.
    """
    if request.is_kraft_controller:  # of a migration that this broker does not take part in (KIP-866)
        return StopReplicaResponse(error_code=ErrorCode.INVALID_REQUEST)
    if services.controller.is_stale_broker_epoch(request.broker_epoch):
        return StopReplicaResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    return await services.replicas.stop_replicas(request)
