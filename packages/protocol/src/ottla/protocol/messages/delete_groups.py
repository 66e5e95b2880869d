"""Delete consumer groups."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int16, int32, message, string


@message(api_key=42, versions=(0, 2), flexible_from=2)
class DeleteGroupsRequest(Message):
    """Deletes groups that have no members (KIP-229)."""

    groups_names: list[str] = array(string)


class DeletableGroupResult(Struct):
    group_id: str = string()
    error_code: int = int16()


@message(api_key=42, versions=(0, 2), flexible_from=2)
class DeleteGroupsResponse(Message):
    """Says whether each group was deleted."""

    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
