"""Append records to partitions."""

from __future__ import annotations

from uuid import UUID

from ottla.protocol.schema import (
    Message,
    Records,
    Struct,
    array,
    int16,
    int32,
    int64,
    message,
    nullable_string,
    record_set,
    string,
    struct,
    uuid,
)


class PartitionProduceData(Struct):
    index: int = int32()
    records: Records = record_set()


class TopicProduceData(Struct):
    topic_id: UUID = uuid(since=13, ignorable=True)
    name: str = string(until=12, ignorable=True)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


@message(api_key=0, versions=(0, 13), flexible_from=9)
class ProduceRequest(Message):
    """Asks leaders to append record sets.

    Version 3 brings record batches and the transactional id (KIP-98), 7 permits zstd (KIP-110), 9 is flexible
    (KIP-482), 10 lets the answer name new leaders (KIP-951), 11 permits TRANSACTION_ABORTABLE, 12 adds
    partitions to their transaction (both KIP-890), 13 has topic ids (KIP-516).
    """

    transactional_id: str | None = nullable_string(None, since=3)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(Struct):
    batch_index: int = int32()
    batch_index_error_message: str | None = nullable_string(None)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32(-1)
    leader_epoch: int = int32(-1)


class PartitionProduceResponse(Struct):
    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(-1, since=2, ignorable=True)
    log_start_offset: int = int64(-1, since=5, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, since=8, ignorable=True)
    error_message: str | None = nullable_string(None, since=8, ignorable=True)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, since=10, tag=0)


class TopicProduceResponse(Struct):
    topic_id: UUID = uuid(since=13, ignorable=True)
    name: str = string(until=12, ignorable=True)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


class NodeEndpoint(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = nullable_string(None)


@message(api_key=0, versions=(0, 13), flexible_from=9)
class ProduceResponse(Message):
    """Says where each record set was placed, or why not.

    Version 1 adds the throttle time (KIP-13), 2 the time of appending (KIP-32), 5 the log start offset
    (KIP-107), 8 which records were refused (KIP-467), 10 the current leaders (KIP-951), 13 topic ids
    (KIP-516).
    """

    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(since=1, ignorable=True)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tag=0)
