"""Change single keys of configurations."""

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


class AlterableConfig(Struct):
    name: str = string()
    config_operation: int = int8()
    value: str | None = nullable_string()


class AlterConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


@message(api_key=44, versions=(0, 1), flexible_from=1)
class IncrementalAlterConfigsRequest(Message):
    """Sets, deletes, appends to or subtracts from keys (KIP-339)."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Struct):
    error_code: int = int16()
    error_message: str | None = nullable_string()
    resource_type: int = int8()
    resource_name: str = string()


@message(api_key=44, versions=(0, 1), flexible_from=1)
class IncrementalAlterConfigsResponse(Message):
    """Says whether each resource was changed."""

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
