"""Create access rules."""

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
