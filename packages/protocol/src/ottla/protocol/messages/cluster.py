"""Describe the cluster, and change its features."""

from __future__ import annotations

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    nullable_string,
    string,
)


@message(api_key=60, versions=(0, 2), flexible_from=0)
class DescribeClusterRequest(Message):
    """Asks for brokers and controller (KIP-700).

    Version 1 chooses brokers or controllers (KIP-919), 2 may ask for fenced brokers too (KIP-1073).
    """

    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(1, since=1)
    include_fenced_brokers: bool = boolean(since=2)


class DescribeClusterBroker(Struct):
    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = nullable_string(None)
    is_fenced: bool = boolean(since=2)


@message(api_key=60, versions=(0, 2), flexible_from=0)
class DescribeClusterResponse(Message):
    """Lists brokers."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    endpoint_type: int = int8(1, since=1)
    cluster_id: str = string()
    controller_id: int = int32(-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(-2147483648)


class FeatureUpdateKey(Struct):
    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean(until=0)
    upgrade_type: int = int8(1, since=1)


@message(api_key=57, versions=(0, 2), flexible_from=0)
class UpdateFeaturesRequest(Message):
    """Asks for new levels of features (KIP-584); version 1 can merely validate."""

    timeout_ms: int = int32(60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean(since=1)


class UpdatableFeatureResult(Struct):
    feature: str = string()
    error_code: int = int16()
    error_message: str | None = nullable_string()


@message(api_key=57, versions=(0, 2), flexible_from=0)
class UpdateFeaturesResponse(Message):
    """Says whether each feature was changed; since version 2 all are, or none (KIP-1022)."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, until=1, ignorable=True)
