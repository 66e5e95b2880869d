"""Join a consumer group."""

from __future__ import annotations

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    blob,
    boolean,
    int16,
    int32,
    message,
    nullable_string,
    string,
)


class JoinGroupRequestProtocol(Struct):
    name: str = string()
    metadata: bytes = blob()


@message(api_key=11, versions=(0, 9), flexible_from=6)
class JoinGroupRequest(Message):
    """Asks to become, or to stay, a member for the next generation.

    Version 1 separates the time to rebalance (KIP-62), 4 makes new members ask twice (KIP-394), 5 adds static
    members (KIP-345), 8 the reason (KIP-800), 9 lets the leader skip the assignment (KIP-814).
    """

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(-1, since=1, ignorable=True)
    member_id: str = string()
    group_instance_id: str | None = nullable_string(None, since=5)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = nullable_string(None, since=8, ignorable=True)


class JoinGroupResponseMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = nullable_string(None, since=5, ignorable=True)
    metadata: bytes = blob()


@message(api_key=11, versions=(0, 9), flexible_from=6)
class JoinGroupResponse(Message):
    """Says the generation, the leader and, to the leader, every member's subscription."""

    throttle_time_ms: int = int32(since=2, ignorable=True)
    error_code: int = int16()
    generation_id: int = int32(-1)
    protocol_type: str | None = nullable_string(None, since=7, ignorable=True)
    protocol_name: str | None = nullable_string(nullable_from=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9)
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)
