"""ListConfigResources: the topics, brokers and other resources that have settings (KIP-714, KIP-1142)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.api.describe_configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from ottla.broker.cluster.zookeeper_session import zookeeper_errors
from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import UnsupportedVersion
from ottla.protocol.messages.configs import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.configs import Configs
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.telemetry.client_metrics import ClientMetrics

TYPES: Final = (GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC)
"""The types of resources, in the order of an answer."""
_TYPES_FROM: Final = 1


class Needs(Protocol):
    """The parts of the broker that ListConfigResources uses."""

    configs: Configs
    metadata: MetadataCache

    @property
    def client_metrics(self) -> Callable[[], ClientMetrics]:
        """Return the telemetry of clients, which the first call makes."""
        ...


async def handle(
    services: Needs, request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    """List the resources of the types asked for, or of all; version 0 lists client metrics alone."""
    served = TYPES if context.api_version >= _TYPES_FROM else (CLIENT_METRICS,)
    asked = set(request.resource_types) or set(served)
    if not asked <= set(served):
        raise UnsupportedVersion
    if CLIENT_METRICS in asked:
        with zookeeper_errors():
            await services.client_metrics().refresh()
    resources = [
        ConfigResource(resource_type=kind, resource_name=name)
        for kind in TYPES
        if kind in asked
        async for name in context.paced(list(_names(services, kind, context)))
    ]
    return ListConfigResourcesResponse(config_resources=resources)


def _names(services: Needs, kind: int, context: RequestContext) -> Iterable[str]:
    if kind == TOPIC:
        return services.metadata.topic_names
    if kind == GROUP:
        return services.configs.groups_with_settings
    if kind in (BROKER, BROKER_LOGGER):
        listener = context.session.listener_name
        return [str(broker.id) for broker in services.metadata.brokers if broker.endpoint(listener)]
    return services.client_metrics().subscriptions.configs if kind == CLIENT_METRICS else ()
