"""Delete access rules."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int8, int16, int32, message, nullable_string, string


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
