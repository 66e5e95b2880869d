"""Leave a consumer group."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int16, int32, message, nullable_string, string


class MemberIdentity(Struct):
    member_id: str = string()
    group_instance_id: str | None = nullable_string(None)
    reason: str | None = nullable_string(None, since=5, ignorable=True)


@message(api_key=13, versions=(0, 5), flexible_from=4)
class LeaveGroupRequest(Message):
    """Removes one member, since version 3 several (KIP-345), since 5 with a reason (KIP-800)."""

    group_id: str = string()
    member_id: str = string(until=2)
    members: list[MemberIdentity] = array(MemberIdentity, since=3)


class MemberResponse(Struct):
    member_id: str = string()
    group_instance_id: str | None = nullable_string()
    error_code: int = int16()


@message(api_key=13, versions=(0, 5), flexible_from=4)
class LeaveGroupResponse(Message):
    """Says whether each member has left."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, since=3)
