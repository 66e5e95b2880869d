"""List, read and replace configurations, and change single keys of them."""

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
    nullable_array,
    nullable_string,
    string,
)


class DescribeConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = nullable_array(string)


@message(api_key=32, versions=(0, 4), flexible_from=4)
class DescribeConfigsRequest(Message):
    """Asks for all or some keys of topics or brokers (KIP-133).

    Version 1 asks for synonyms (KIP-226), 3 for documentation (KIP-569).
    """

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(since=1)
    include_documentation: bool = boolean(since=3)


class DescribeConfigsSynonym(Struct):
    name: str = string()
    value: str | None = nullable_string()
    source: int = int8()


class DescribeConfigsResourceResult(Struct):
    name: str = string()
    value: str | None = nullable_string()
    read_only: bool = boolean()
    is_default: bool = boolean(until=0)
    config_source: int = int8(-1, since=1, ignorable=True)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, since=1, ignorable=True)
    config_type: int = int8(since=3, ignorable=True)
    documentation: str | None = nullable_string(since=3, ignorable=True)


class DescribeConfigsResult(Struct):
    error_code: int = int16()
    error_message: str | None = nullable_string()
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


@message(api_key=32, versions=(0, 4), flexible_from=4)
class DescribeConfigsResponse(Message):
    """Lists keys with value and origin."""

    throttle_time_ms: int = int32()
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)


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


class IncrementalAlterableConfig(Struct):
    name: str = string()
    config_operation: int = int8()
    value: str | None = nullable_string()


class IncrementalAlterConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[IncrementalAlterableConfig] = array(IncrementalAlterableConfig)


@message(api_key=44, versions=(0, 1), flexible_from=1)
class IncrementalAlterConfigsRequest(Message):
    """Sets, deletes, appends to or subtracts from keys (KIP-339)."""

    resources: list[IncrementalAlterConfigsResource] = array(IncrementalAlterConfigsResource)
    validate_only: bool = boolean()


@message(api_key=44, versions=(0, 1), flexible_from=1)
class IncrementalAlterConfigsResponse(Message):
    """Says whether each resource was changed."""

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


@message(api_key=74, versions=(0, 1), flexible_from=0)
class ListConfigResourcesRequest(Message):
    """Asks for the resources with a configuration.

    Version 0 lists subscriptions of client metrics (KIP-714), 1 resources of the types asked for, or of all
    (KIP-1142).
    """

    resource_types: list[int] = array(int8, since=1)


class ConfigResource(Struct):
    resource_name: str = string()
    resource_type: int = int8(16, since=1, ignorable=True)


@message(api_key=74, versions=(0, 1), flexible_from=0)
class ListConfigResourcesResponse(Message):
    """Lists resources by type and name."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)
