"""Read and change client quotas."""

from __future__ import annotations

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    message,
    nullable_array,
    nullable_string,
    string,
)


class ComponentData(Struct):
    entity_type: str = string()
    match_type: int = int8()
    match: str | None = nullable_string()


@message(api_key=48, versions=(0, 1), flexible_from=1)
class DescribeClientQuotasRequest(Message):
    """Asks for the quotas that match a filter (KIP-546)."""

    components: list[ComponentData] = array(ComponentData)
    strict: bool = boolean()


class EntityData(Struct):
    entity_type: str = string()
    entity_name: str | None = nullable_string()


class ValueData(Struct):
    key: str = string()
    value: float = float64()


class EntryData(Struct):
    entity: list[EntityData] = array(EntityData)
    values: list[ValueData] = array(ValueData)


@message(api_key=48, versions=(0, 1), flexible_from=1)
class DescribeClientQuotasResponse(Message):
    """Lists quotas by entity."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    entries: list[EntryData] | None = nullable_array(EntryData)


class OpData(Struct):
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class AlteredEntryData(Struct):
    entity: list[EntityData] = array(EntityData)
    ops: list[OpData] = array(OpData)


@message(api_key=49, versions=(0, 1), flexible_from=1)
class AlterClientQuotasRequest(Message):
    """Sets or removes quotas (KIP-546)."""

    entries: list[AlteredEntryData] = array(AlteredEntryData)
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
