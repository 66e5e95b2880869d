"""Add partitions and offsets to a transaction, commit offsets in it, end it, and mark its end in logs."""

from __future__ import annotations

from uuid import UUID

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    message,
    nullable_string,
    string,
    uuid,
)


class AddPartitionsToTxnTopic(Struct):
    name: str = string()
    partitions: list[int] = array(int32)


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    verify_only: bool = boolean()
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic)


@message(api_key=24, versions=(0, 5), flexible_from=3)
class AddPartitionsToTxnRequest(Message):
    """Announces partitions a transaction is going to write to (KIP-98).

    Versions below 4 carry one transaction. From 4 on brokers send several, perhaps only to verify them
    (KIP-890).
    """

    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, since=4)
    v3_and_below_transactional_id: str = string(until=3)
    v3_and_below_producer_id: int = int64(until=3)
    v3_and_below_producer_epoch: int = int16(until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, until=3)


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = int32()
    partition_error_code: int = int16()


class AddPartitionsToTxnTopicResult(Struct):
    name: str = string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult)


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = string()
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult)


@message(api_key=24, versions=(0, 5), flexible_from=3)
class AddPartitionsToTxnResponse(Message):
    """Says for each partition whether it is part of the transaction."""

    throttle_time_ms: int = int32()
    error_code: int = int16(since=4, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, until=3
    )


@message(api_key=25, versions=(0, 4), flexible_from=3)
class AddOffsetsToTxnRequest(Message):
    """Announces that a transaction is going to commit offsets of a group (KIP-98)."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


@message(api_key=25, versions=(0, 4), flexible_from=3)
class AddOffsetsToTxnResponse(Message):
    """Says whether the group's offsets partition is part of the transaction."""

    throttle_time_ms: int = int32()
    error_code: int = int16()


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(-1, since=2, ignorable=True)
    committed_metadata: str | None = nullable_string()


class TxnOffsetCommitRequestTopic(Struct):
    topic_id: UUID = uuid(since=6, ignorable=True)
    name: str = string(until=5, ignorable=True)
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


@message(api_key=28, versions=(0, 6), flexible_from=3)
class TxnOffsetCommitRequest(Message):
    """Stores offsets that count once the transaction is committed (KIP-98).

    Version 2 adds the leader epoch (KIP-320), 3 member and generation, so that zombies are fenced (KIP-447),
    5 adds the group to the transaction (KIP-890), 6 has topic ids.
    """

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32(-1, since=3)
    """Or the epoch of a member of the newer group protocol."""
    member_id: str = string(since=3)
    group_instance_id: str | None = nullable_string(None, since=3)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class TxnOffsetCommitResponseTopic(Struct):
    topic_id: UUID = uuid(since=6, ignorable=True)
    name: str = string(until=5, ignorable=True)
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


@message(api_key=28, versions=(0, 6), flexible_from=3)
class TxnOffsetCommitResponse(Message):
    """Says for each partition whether its offset is stored."""

    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)


@message(api_key=26, versions=(0, 5), flexible_from=3)
class EndTxnRequest(Message):
    """Commits or aborts a transaction (KIP-98)."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


@message(api_key=26, versions=(0, 5), flexible_from=3)
class EndTxnResponse(Message):
    """Says whether the decision is recorded; version 5 gives the epoch of the next transaction (KIP-890)."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(-1, since=5, ignorable=True)
    producer_epoch: int = int16(-1, since=5, ignorable=True)


class WritableTxnMarkerTopic(Struct):
    name: str = string()
    partition_indexes: list[int] = array(int32)


class WritableTxnMarker(Struct):
    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()
    transaction_version: int = int8(since=2, ignorable=True)


@message(api_key=27, versions=(0, 2), flexible_from=1)
class WriteTxnMarkersRequest(Message):
    """Asks leaders to append commit or abort markers (KIP-98); version 2 adds their version (KIP-1228)."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class WritableTxnMarkerTopicResult(Struct):
    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


class WritableTxnMarkerResult(Struct):
    producer_id: int = int64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


@message(api_key=27, versions=(0, 2), flexible_from=1)
class WriteTxnMarkersResponse(Message):
    """Says for each partition whether its marker is written."""

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)
