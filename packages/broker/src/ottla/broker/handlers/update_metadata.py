"""UpdateMetadata: take the live brokers and the leaders from the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.handlers.request_context import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

if TYPE_CHECKING:
    from ottla.broker.cluster.configs import Configs
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.controller.controller import Controller
    from ottla.broker.groups.coordinator import GroupCoordinator


class Needs(Protocol):
    """The parts of the broker that UpdateMetadata uses."""

    configs: Configs
    controller: Controller
    groups: GroupCoordinator
    metadata: MetadataCache


async def handle(
    services: Needs, request: UpdateMetadataRequest, context: RequestContext
) -> UpdateMetadataResponse:
    """Apply a request that arrived over the network."""
    return await apply(services, request)


async def apply(services: Needs, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
    """Update the metadata cache. Stale controller epochs and stale broker epochs are refused."""
    if request.controller_epoch < services.metadata.controller_epoch:
        return UpdateMetadataResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
    if services.controller.is_stale_broker_epoch(request.broker_epoch):
        return UpdateMetadataResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    deleted = services.metadata.update(request)
    for topic in {partition.topic for partition in deleted}:
        services.configs.forget_topic(topic)
    if deleted:
        services.groups.partitions_deleted(deleted)
    return UpdateMetadataResponse()
