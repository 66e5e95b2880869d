"""List and describe transactions, and the producers active in partitions."""

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


@message(api_key=66, versions=(0, 2), flexible_from=0)
class ListTransactionsRequest(Message):
    """Asks for the transactions a broker coordinates (KIP-664).

    Version 1 filters by duration (KIP-994), 2 by a pattern of transactional ids (KIP-1152).
    """

    state_filters: list[str] = array(string)
    producer_id_filters: list[int] = array(int64)
    duration_filter: int = int64(-1, since=1)
    transactional_id_pattern: str | None = nullable_string(None, since=2)


class ListedTransaction(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


@message(api_key=66, versions=(0, 2), flexible_from=0)
class ListTransactionsResponse(Message):
    """Lists transactions."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string)
    transaction_states: list[ListedTransaction] = array(ListedTransaction)


@message(api_key=65, versions=(0, 0), flexible_from=0)
class DescribeTransactionsRequest(Message):
    """Asks about transactional ids (KIP-664)."""

    transactional_ids: list[str] = array(string)


class TopicData(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


class TransactionState(Struct):
    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicData] = array(TopicData)


@message(api_key=65, versions=(0, 0), flexible_from=0)
class DescribeTransactionsResponse(Message):
    """Describes each transaction and the partitions in it."""

    throttle_time_ms: int = int32()
    transaction_states: list[TransactionState] = array(TransactionState)


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
