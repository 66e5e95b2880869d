"""Learn which APIs and versions a broker has."""

from __future__ import annotations

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    message,
    nullable_string,
    string,
)


@message(api_key=18, versions=(0, 5), flexible_from=3)
class ApiVersionsRequest(Message):
    """Asks for the APIs and versions of the broker; version 3 names the client's software (KIP-511), 5 the
    cluster and the broker that the client means to reach (KIP-1242).

    A broker that lacks the version answers in version 0 with UNSUPPORTED_VERSION and its ranges.
    """

    client_software_name: str = string(since=3, ignorable=True)
    client_software_version: str = string(since=3, ignorable=True)
    cluster_id: str | None = nullable_string(None, since=5, ignorable=True)
    node_id: int = int32(-1, since=5, ignorable=True)


class ApiVersion(Struct):
    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


class SupportedFeatureKey(Struct):
    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


class FinalizedFeatureKey(Struct):
    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


@message(api_key=18, versions=(0, 5), flexible_from=3)
class ApiVersionsResponse(Message):
    """Lists version ranges.

    Version 3 adds features of the cluster (KIP-584), 4 permits features from version 0 (KIP-1022).

    Its header is always version 0, so that a client can read it before it knows the broker.
    """

    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(since=1, ignorable=True)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, since=3, tag=0, ignorable=True)
    finalized_features_epoch: int = int64(-1, since=3, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, since=3, tag=2, ignorable=True)
    zk_migration_ready: bool = boolean(since=3, tag=3, ignorable=True)
