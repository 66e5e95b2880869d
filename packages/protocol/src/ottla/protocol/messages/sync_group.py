"""Hand out the assignment of a consumer group."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, blob, int16, int32, message, nullable_string, string


class SyncGroupRequestAssignment(Struct):
    member_id: str = string()
    assignment: bytes = blob()


@message(api_key=14, versions=(0, 5), flexible_from=4)
class SyncGroupRequest(Message):
    """Asks for this member's assignment; the leader brings everybody's.

    Version 3 adds static members (KIP-345), 5 the protocol's type and name (KIP-559).
    """

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = nullable_string(None, since=3)
    protocol_type: str | None = nullable_string(None, since=5, ignorable=True)
    protocol_name: str | None = nullable_string(None, since=5, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


@message(api_key=14, versions=(0, 5), flexible_from=4)
class SyncGroupResponse(Message):
    """Carries this member's assignment."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = nullable_string(None, since=5, ignorable=True)
    protocol_name: str | None = nullable_string(None, since=5, ignorable=True)
    assignment: bytes = blob()
