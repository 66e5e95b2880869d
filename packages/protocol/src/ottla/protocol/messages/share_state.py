"""State of share partitions, which leaders keep at the share coordinator (KIP-932). Between brokers only."""

from __future__ import annotations

from uuid import UUID

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    message,
    nullable_string,
    string,
    uuid,
)


class StateBatch(Struct):
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_state: int = int8()
    """0 available, 2 acknowledged, 4 archived."""
    delivery_count: int = int16()


class PartitionResult(Struct):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)


class InitializeStatePartition(Struct):
    partition: int = int32()
    state_epoch: int = int32()
    start_offset: int = int64()


class InitializeStateData(Struct):
    topic_id: UUID = uuid()
    partitions: list[InitializeStatePartition] = array(InitializeStatePartition)


@message(api_key=83, versions=(0, 0), flexible_from=0)
class InitializeShareGroupStateRequest(Message):
    """Begins the state of share partitions; a start offset of -1 leaves it to the leader."""

    group_id: str = string()
    topics: list[InitializeStateData] = array(InitializeStateData)


class InitializeStateResult(Struct):
    topic_id: UUID = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


@message(api_key=83, versions=(0, 0), flexible_from=0)
class InitializeShareGroupStateResponse(Message):
    """Says for each partition whether its state begins."""

    results: list[InitializeStateResult] = array(InitializeStateResult)


class ReadStatePartition(Struct):
    partition: int = int32()
    leader_epoch: int = int32()


class ReadStateData(Struct):
    topic_id: UUID = uuid()
    partitions: list[ReadStatePartition] = array(ReadStatePartition)


@message(api_key=84, versions=(0, 0), flexible_from=0)
class ReadShareGroupStateRequest(Message):
    """Asks for the state of share partitions, and fences leaders of earlier epochs."""

    group_id: str = string()
    topics: list[ReadStateData] = array(ReadStateData)


class ReadStatePartitionResult(Struct):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    state_epoch: int = int32()
    start_offset: int = int64()
    state_batches: list[StateBatch] = array(StateBatch)


class ReadStateResult(Struct):
    topic_id: UUID = uuid()
    partitions: list[ReadStatePartitionResult] = array(ReadStatePartitionResult)


@message(api_key=84, versions=(0, 0), flexible_from=0)
class ReadShareGroupStateResponse(Message):
    """Gives the start offset of each partition, and the state of the records from there on."""

    results: list[ReadStateResult] = array(ReadStateResult)


class WriteStatePartition(Struct):
    partition: int = int32()
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(-1, since=1, ignorable=True)
    state_batches: list[StateBatch] = array(StateBatch)


class WriteStateData(Struct):
    topic_id: UUID = uuid()
    partitions: list[WriteStatePartition] = array(WriteStatePartition)


@message(api_key=85, versions=(0, 1), flexible_from=0)
class WriteShareGroupStateRequest(Message):
    """Changes the state of share partitions; version 1 counts the finished records (KIP-1226)."""

    group_id: str = string()
    topics: list[WriteStateData] = array(WriteStateData)


class WriteStateResult(Struct):
    topic_id: UUID = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


@message(api_key=85, versions=(0, 1), flexible_from=0)
class WriteShareGroupStateResponse(Message):
    """Says for each partition whether its state is stored."""

    results: list[WriteStateResult] = array(WriteStateResult)


class DeleteStatePartition(Struct):
    partition: int = int32()


class DeleteStateData(Struct):
    topic_id: UUID = uuid()
    partitions: list[DeleteStatePartition] = array(DeleteStatePartition)


@message(api_key=86, versions=(0, 0), flexible_from=0)
class DeleteShareGroupStateRequest(Message):
    """Deletes the state of share partitions."""

    group_id: str = string()
    topics: list[DeleteStateData] = array(DeleteStateData)


class DeleteStateResult(Struct):
    topic_id: UUID = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


@message(api_key=86, versions=(0, 0), flexible_from=0)
class DeleteShareGroupStateResponse(Message):
    """Says for each partition whether its state is deleted."""

    results: list[DeleteStateResult] = array(DeleteStateResult)


class ReadStateSummaryPartition(Struct):
    partition: int = int32()
    leader_epoch: int = int32()


class ReadStateSummaryData(Struct):
    topic_id: UUID = uuid()
    partitions: list[ReadStateSummaryPartition] = array(ReadStateSummaryPartition)


@message(api_key=87, versions=(0, 1), flexible_from=0)
class ReadShareGroupStateSummaryRequest(Message):
    """Asks for the start offsets of share partitions."""

    group_id: str = string()
    topics: list[ReadStateSummaryData] = array(ReadStateSummaryData)


class ReadStateSummaryPartitionResult(Struct):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(-1, since=1, ignorable=True)


class ReadStateSummaryResult(Struct):
    topic_id: UUID = uuid()
    partitions: list[ReadStateSummaryPartitionResult] = array(ReadStateSummaryPartitionResult)


@message(api_key=87, versions=(0, 1), flexible_from=0)
class ReadShareGroupStateSummaryResponse(Message):
    """Gives start offsets; version 1 adds how many records above them are finished (KIP-1226)."""

    results: list[ReadStateSummaryResult] = array(ReadStateSummaryResult)
