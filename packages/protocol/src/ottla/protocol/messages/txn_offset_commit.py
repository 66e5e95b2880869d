"""Commit offsets as part of a transaction."""

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


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(-1, since=2, ignorable=True)
    committed_metadata: str | None = nullable_string()


class TxnOffsetCommitRequestTopic(Struct):
    name: str = string()
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


@message(api_key=28, versions=(0, 4), flexible_from=3)
class TxnOffsetCommitRequest(Message):
    """Stores offsets that count once the transaction is committed (KIP-98).

    Version 2 adds the leader epoch (KIP-320), 3 member and generation, so that zombies are fenced (KIP-447).
    """

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32(-1, since=3)
    member_id: str = string(since=3)
    group_instance_id: str | None = nullable_string(None, since=3)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class TxnOffsetCommitResponseTopic(Struct):
    name: str = string()
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


@message(api_key=28, versions=(0, 4), flexible_from=3)
class TxnOffsetCommitResponse(Message):
    """Says for each partition whether its offset is stored."""

    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)
