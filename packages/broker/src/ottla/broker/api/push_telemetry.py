"""PushTelemetry: take the metrics of a client (KIP-714)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ottla.broker.api.get_telemetry_subscriptions import facts_of
from ottla.broker.cluster.zookeeper_session import zookeeper_errors
from ottla.broker.requests.context import RequestContext
from ottla.broker.telemetry.clients import Push
from ottla.protocol.errors import KafkaError, UnknownServerError
from ottla.protocol.messages.telemetry import PushTelemetryRequest, PushTelemetryResponse

if TYPE_CHECKING:
    from ottla.broker.runtime.threads import RecordThreads
    from ottla.broker.telemetry.client_metrics import ClientMetrics


class Needs(Protocol):
    """The parts of the broker that client telemetry uses."""

    record_threads: RecordThreads

    @property
    def client_metrics(self) -> Callable[[], ClientMetrics]:
        """Return the telemetry of clients, which the first call makes."""
        ...


async def handle(
    services: Needs, request: PushTelemetryRequest, context: RequestContext
) -> PushTelemetryResponse:
    """Check the push, unfold its metrics on a thread, keep their values for the page, and hand them on."""
    telemetry, client_id = services.client_metrics(), request.client_instance_id
    push = Push(request.subscription_id, request.terminating, request.compression_type, len(request.metrics))
    try:
        with zookeeper_errors(UnknownServerError):
            await telemetry.refresh()
        facts = facts_of(client_id, context)
        client = telemetry.clients.push(client_id, facts, context.session, push, telemetry.now_ms())
    except KafkaError as error:
        return PushTelemetryResponse(error_code=error.code)
    if not request.metrics:
        return PushTelemetryResponse()
    from ottla.broker.telemetry import payloads

    try:
        async with telemetry.unfolding:
            opened = await services.record_threads.run(
                payloads.read,
                request.metrics,
                request.compression_type,
                telemetry.clients.max_bytes,
                telemetry.labels_of(client),
            )
    except KafkaError as error:
        client.last_error = error.code
        telemetry.refused(client, error)
        return PushTelemetryResponse(error_code=error.code)
    await context.turn.run(telemetry.take(client, opened))
    return PushTelemetryResponse()
