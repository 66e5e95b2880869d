"""List consumer groups."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int16, int32, message, string


@message(api_key=16, versions=(0, 5), flexible_from=3)
class ListGroupsRequest(Message):
    """Asks for the groups a broker coordinates; version 4 filters by state (KIP-518), 5 by type (KIP-848)."""

    states_filter: list[str] = array(string, since=4)
    types_filter: list[str] = array(string, since=5)


class ListedGroup(Struct):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4, ignorable=True)
    group_type: str = string(since=5, ignorable=True)


@message(api_key=16, versions=(0, 5), flexible_from=3)
class ListGroupsResponse(Message):
    """Lists groups."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)
