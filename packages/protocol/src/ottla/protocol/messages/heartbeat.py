"""Stay a member of a consumer group."""

from __future__ import annotations

from ottla.protocol.schema import Message, int16, int32, message, nullable_string, string


@message(api_key=12, versions=(0, 4), flexible_from=4)
class HeartbeatRequest(Message):
    """Says that a member is alive; version 3 adds static members (KIP-345)."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = nullable_string(None, since=3)


@message(api_key=12, versions=(0, 4), flexible_from=4)
class HeartbeatResponse(Message):
    """Says whether the membership holds, or that the group is rebalancing."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
