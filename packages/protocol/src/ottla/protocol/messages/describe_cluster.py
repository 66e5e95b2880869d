"""Describe the cluster."""

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


@message(api_key=60, versions=(0, 1), flexible_from=0)
class DescribeClusterRequest(Message):
    """Asks for brokers and controller (KIP-700); version 1 chooses brokers or controllers (KIP-919)."""

    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(1, since=1)


class DescribeClusterBroker(Struct):
    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = nullable_string(None)


@message(api_key=60, versions=(0, 1), flexible_from=0)
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
