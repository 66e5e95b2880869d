"""Create, list and delete access rules."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int8, int16, int32, message, nullable_string, string


class AclCreation(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    resource_pattern_type: int = int8(3, since=1)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


@message(api_key=30, versions=(0, 3), flexible_from=2)
class CreateAclsRequest(Message):
    """Adds rules; version 1 adds pattern types (KIP-290)."""

    creations: list[AclCreation] = array(AclCreation)


class AclCreationResult(Struct):
    error_code: int = int16()
    error_message: str | None = nullable_string()


@message(api_key=30, versions=(0, 3), flexible_from=2)
class CreateAclsResponse(Message):
    """Says whether each rule was added."""

    throttle_time_ms: int = int32()
    results: list[AclCreationResult] = array(AclCreationResult)


@message(api_key=29, versions=(0, 3), flexible_from=2)
class DescribeAclsRequest(Message):
    """Asks for the rules that match a filter; version 1 adds pattern types (KIP-290)."""

    resource_type_filter: int = int8()
    resource_name_filter: str | None = nullable_string()
    pattern_type_filter: int = int8(3, since=1)
    principal_filter: str | None = nullable_string()
    host_filter: str | None = nullable_string()
    operation: int = int8()
    permission_type: int = int8()


class AclDescription(Struct):
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class DescribeAclsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(3, since=1)
    acls: list[AclDescription] = array(AclDescription)


@message(api_key=29, versions=(0, 3), flexible_from=2)
class DescribeAclsResponse(Message):
    """Lists rules by resource."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)


class DeleteAclsFilter(Struct):
    resource_type_filter: int = int8()
    resource_name_filter: str | None = nullable_string()
    pattern_type_filter: int = int8(3, since=1)
    principal_filter: str | None = nullable_string()
    host_filter: str | None = nullable_string()
    operation: int = int8()
    permission_type: int = int8()


@message(api_key=31, versions=(0, 3), flexible_from=2)
class DeleteAclsRequest(Message):
    """Removes the rules that match filters; version 1 adds pattern types (KIP-290)."""

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter)


class DeleteAclsMatchingAcl(Struct):
    error_code: int = int16()
    error_message: str | None = nullable_string()
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(3, since=1)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class DeleteAclsFilterResult(Struct):
    error_code: int = int16()
    error_message: str | None = nullable_string()
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


@message(api_key=31, versions=(0, 3), flexible_from=2)
class DeleteAclsResponse(Message):
    """Lists, for each filter, the rules it removed."""

    throttle_time_ms: int = int32()
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)
