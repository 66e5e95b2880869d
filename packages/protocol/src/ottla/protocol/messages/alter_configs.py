"""Replace configurations."""

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
    value: str | None = nullable_string()


class AlterConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


@message(api_key=33, versions=(0, 2), flexible_from=2)
class AlterConfigsRequest(Message):
    """Sets all keys of a resource at once; a key that is not named returns to its default (KIP-133)."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Struct):
    error_code: int = int16()
    error_message: str | None = nullable_string()
    resource_type: int = int8()
    resource_name: str = string()


@message(api_key=33, versions=(0, 2), flexible_from=2)
class AlterConfigsResponse(Message):
    """Says whether each resource was changed."""

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
