"""List access rules."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int8, int16, int32, message, nullable_string, string


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
