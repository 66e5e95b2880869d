"""GetTelemetrySubscriptions: which metrics a client shall push, and how often (KIP-714)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from ottla.broker.cluster.zookeeper_session import zookeeper_errors
from ottla.broker.requests.context import RequestContext
from ottla.broker.telemetry.clients import ACCEPTED
from ottla.protocol.errors import KafkaError, UnknownServerError
from ottla.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.telemetry.client_metrics import ClientMetrics


class Needs(Protocol):
    """The parts of the broker that client telemetry uses."""

    @property
    def client_metrics(self) -> Callable[[], ClientMetrics]:
        """Return the telemetry of clients, which the first call makes."""
        ...


async def handle(
    services: Needs, request: GetTelemetrySubscriptionsRequest, context: RequestContext
) -> GetTelemetrySubscriptionsResponse:
    """Answer with the subscriptions that match the client; without any it asks again after the interval."""
    telemetry = services.client_metrics()
    try:
        with zookeeper_errors(UnknownServerError):
            await telemetry.refresh()
        client_id = (
            telemetry.new_id() if request.client_instance_id == UUID(int=0) else request.client_instance_id
        )
        client = telemetry.clients.get(
            client_id, facts_of(client_id, context), context.session, telemetry.now_ms()
        )
    except KafkaError as error:
        return GetTelemetrySubscriptionsResponse(error_code=error.code)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=client_id,
        subscription_id=client.subscription_id,
        accepted_compression_types=list(ACCEPTED),
        push_interval_ms=client.interval_ms,
        telemetry_max_bytes=telemetry.clients.max_bytes,
        delta_temporality=False,  # the last value of a client is all that the endpoint has to keep
        requested_metrics=list(client.metrics),
    )


def facts_of(client_id: UUID, context: RequestContext) -> Mapping[str, str | None]:
    """Return what patterns of subscriptions, and the labels of samples, say about a client."""
    session = context.session
    software_name, software_version = session.software or (None, None)
    return {
        "client_instance_id": str(client_id),
        "client_id": context.client_id,
        "client_software_name": software_name,
        "client_software_version": software_version,
        "client_source_address": session.client_host,
        "client_source_port": session.connection_id.rpartition("-")[0].rpartition(":")[2],
    }
