"""Find the broker in charge of a group or a transaction."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int8, int16, int32, message, nullable_string, string


@message(api_key=10, versions=(0, 6), flexible_from=3)
class FindCoordinatorRequest(Message):
    """Asks for the coordinator of a group.

    Version 1 also finds that of a transactional id (KIP-98), 4 several at once (KIP-699), 5 permits
    TRANSACTION_ABORTABLE (KIP-890), 6 finds that of a share partition (KIP-932).
    """

    key: str = string(until=3)
    key_type: int = int8(since=1)
    coordinator_keys: list[str] = array(string, since=4)


class Coordinator(Struct):
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()


@message(api_key=10, versions=(0, 6), flexible_from=3)
class FindCoordinatorResponse(Message):
    """Names the coordinator."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16(until=3)
    error_message: str | None = nullable_string(since=1, until=3, ignorable=True)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: list[Coordinator] = array(Coordinator, since=4)
