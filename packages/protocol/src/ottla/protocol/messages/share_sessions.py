"""Acquire records of share partitions, and acknowledge them (KIP-932)."""

from __future__ import annotations

from uuid import UUID

from ottla.protocol.messages.fetch import NodeEndpoint
from ottla.protocol.schema import (
    LATEST,
    Message,
    Records,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    message,
    nullable_string,
    record_set,
    struct,
    uuid,
)


class AcknowledgementBatch(Struct):
    first_offset: int = int64()
    last_offset: int = int64()
    acknowledge_types: list[int] = array(int8)
    """One for all offsets, or one for each: 0 gap, 1 accept, 2 release, 3 reject, 4 renew."""


class ShareFetchPartition(Struct):
    partition_index: int = int32()
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch)


class ShareFetchTopic(Struct):
    topic_id: UUID = uuid()
    partitions: list[ShareFetchPartition] = array(ShareFetchPartition)


class ForgottenTopic(Struct):
    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


@message(api_key=78, versions=(1, 2), flexible_from=0)
class ShareFetchRequest(Message):
    """Acquires records for a member of a share group, and acknowledges those acquired before.

    Version 0 was an early access of Kafka 4.0. Version 2 chooses how many records are acquired (KIP-1206) and
    extends their locks (KIP-1222).
    """

    group_id: str | None = nullable_string(None)
    member_id: str | None = nullable_string()
    share_session_epoch: int = int32()
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(0x7FFFFFFF)
    max_records: int = int32()
    batch_size: int = int32()
    share_acquire_mode: int = int8(since=2, ignorable=True)
    """0 whole batches (`batch_optimized`), 1 no more than `max_records` (`record_limit`)."""
    is_renew_ack: bool = boolean(since=2)
    topics: list[ShareFetchTopic] = array(ShareFetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32()
    leader_epoch: int = int32()


class AcquiredRecords(Struct):
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_count: int = int16()


class ShareFetchPartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    acknowledge_error_code: int = int16()
    acknowledge_error_message: str | None = nullable_string(None)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch)
    records: Records = record_set(b"", nullable_from=LATEST)
    acquired_records: list[AcquiredRecords] = array(AcquiredRecords)


class ShareFetchableTopicResponse(Struct):
    topic_id: UUID = uuid()
    partitions: list[ShareFetchPartitionData] = array(ShareFetchPartitionData)


@message(api_key=78, versions=(1, 2), flexible_from=0)
class ShareFetchResponse(Message):
    """Carries record sets, and which of their records were acquired."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    acquisition_lock_timeout_ms: int = int32()
    responses: list[ShareFetchableTopicResponse] = array(ShareFetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint)


class AcknowledgePartition(Struct):
    partition_index: int = int32()
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch)


class AcknowledgeTopic(Struct):
    topic_id: UUID = uuid()
    partitions: list[AcknowledgePartition] = array(AcknowledgePartition)


@message(api_key=79, versions=(1, 2), flexible_from=0)
class ShareAcknowledgeRequest(Message):
    """Acknowledges acquired records; version 2 can extend their locks (KIP-1222)."""

    group_id: str | None = nullable_string(None)
    member_id: str | None = nullable_string()
    share_session_epoch: int = int32()
    is_renew_ack: bool = boolean(since=2)
    topics: list[AcknowledgeTopic] = array(AcknowledgeTopic)


class ShareAcknowledgePartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch)


class ShareAcknowledgeTopicResponse(Struct):
    topic_id: UUID = uuid()
    partitions: list[ShareAcknowledgePartitionData] = array(ShareAcknowledgePartitionData)


@message(api_key=79, versions=(1, 2), flexible_from=0)
class ShareAcknowledgeResponse(Message):
    """Says for each partition whether the acknowledgements were taken."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    acquisition_lock_timeout_ms: int = int32(since=2, ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = array(ShareAcknowledgeTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint)
