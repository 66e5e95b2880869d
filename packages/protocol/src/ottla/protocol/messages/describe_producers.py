"""List the producers active in partitions."""

from __future__ import annotations

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    message,
    nullable_string,
    string,
)


class TopicRequest(Struct):
    name: str = string()
    partition_indexes: list[int] = array(int32)


@message(api_key=61, versions=(0, 0), flexible_from=0)
class DescribeProducersRequest(Message):
    """Asks for producer state (KIP-664)."""

    topics: list[TopicRequest] = array(TopicRequest)


class ProducerState(Struct):
    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(-1)
    last_timestamp: int = int64(-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(-1)


class PartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    active_producers: list[ProducerState] = array(ProducerState)


class TopicResponse(Struct):
    name: str = string()
    partitions: list[PartitionResponse] = array(PartitionResponse)


@message(api_key=61, versions=(0, 0), flexible_from=0)
class DescribeProducersResponse(Message):
    """Lists producers with their sequences and open transactions."""

    throttle_time_ms: int = int32()
    topics: list[TopicResponse] = array(TopicResponse)
