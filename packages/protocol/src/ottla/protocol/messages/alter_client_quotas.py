"""Change client quotas."""

from __future__ import annotations

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    float64,
    int16,
    int32,
    message,
    nullable_string,
    string,
)


class EntityData(Struct):
    entity_type: str = string()
    entity_name: str | None = nullable_string()


class OpData(Struct):
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class EntryData(Struct):
    entity: list[EntityData] = array(EntityData)
    ops: list[OpData] = array(OpData)


@message(api_key=49, versions=(0, 1), flexible_from=1)
class AlterClientQuotasRequest(Message):
    """Sets or removes quotas (KIP-546)."""

    entries: list[EntryData] = array(EntryData)
    validate_only: bool = boolean()


class EntityDataResponse(Struct):
    entity_type: str = string()
    entity_name: str | None = nullable_string()


class EntryDataResponse(Struct):
    error_code: int = int16()
    error_message: str | None = nullable_string()
    entity: list[EntityDataResponse] = array(EntityDataResponse)


@message(api_key=49, versions=(0, 1), flexible_from=1)
class AlterClientQuotasResponse(Message):
    """Says whether each entity was changed."""

    throttle_time_ms: int = int32()
    entries: list[EntryDataResponse] = array(EntryDataResponse)
