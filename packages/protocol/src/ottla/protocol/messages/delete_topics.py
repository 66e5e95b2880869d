"""Delete topics."""

from __future__ import annotations

from uuid import UUID

from ottla.protocol.schema import Message, Struct, array, int16, int32, message, nullable_string, string, uuid


class DeleteTopicState(Struct):
    name: str | None = nullable_string(None)
    topic_id: UUID = uuid()


@message(api_key=20, versions=(0, 6), flexible_from=4)
class DeleteTopicsRequest(Message):
    """Deletes topics by name, since version 6 by topic id too (KIP-516)."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6)
    topic_names: list[str] = array(string, until=5, ignorable=True)
    timeout_ms: int = int32()


class DeletableTopicResult(Struct):
    name: str | None = nullable_string(nullable_from=6)
    topic_id: UUID = uuid(since=6, ignorable=True)
    error_code: int = int16()
    error_message: str | None = nullable_string(None, since=5, ignorable=True)


@message(api_key=20, versions=(0, 6), flexible_from=4)
class DeleteTopicsResponse(Message):
    """Says whether each topic is being deleted; version 5 adds a message (KIP-599)."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)
