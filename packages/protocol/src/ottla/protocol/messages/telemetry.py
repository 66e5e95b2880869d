"""Metrics of clients: which of them a broker asks for, and their values (KIP-714)."""

from __future__ import annotations

from uuid import UUID

from ottla.protocol.schema import (
    Message,
    array,
    blob,
    boolean,
    int8,
    int16,
    int32,
    message,
    string,
    uuid,
)


@message(api_key=71, versions=(0, 0), flexible_from=0)
class GetTelemetrySubscriptionsRequest(Message):
    """Asks which metrics to push; without an id, for an id of the client instance too."""

    client_instance_id: UUID = uuid()


@message(api_key=71, versions=(0, 0), flexible_from=0)
class GetTelemetrySubscriptionsResponse(Message):
    """Names metrics by prefixes, how often to push them, and in which form."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    client_instance_id: UUID = uuid()
    subscription_id: int = int32()
    accepted_compression_types: list[int] = array(int8)
    push_interval_ms: int = int32()
    telemetry_max_bytes: int = int32()
    delta_temporality: bool = boolean()
    requested_metrics: list[str] = array(string)


@message(api_key=72, versions=(0, 0), flexible_from=0)
class PushTelemetryRequest(Message):
    """Carries metrics in OpenTelemetry's format, MetricsData of OTLP."""

    client_instance_id: UUID = uuid()
    subscription_id: int = int32()
    terminating: bool = boolean()
    compression_type: int = int8()
    metrics: bytes = blob()


@message(api_key=72, versions=(0, 0), flexible_from=0)
class PushTelemetryResponse(Message):
    """Says whether the metrics were taken."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
