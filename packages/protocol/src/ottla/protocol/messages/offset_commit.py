"""Store the positions of a consumer group."""

from __future__ import annotations

from uuid import UUID

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
    uuid,
)


class OffsetCommitRequestPartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(-1, since=6, ignorable=True)
    commit_timestamp: int = int64(-1, since=1, until=1)
    committed_metadata: str | None = nullable_string()


class OffsetCommitRequestTopic(Struct):
    topic_id: UUID = uuid(since=10, ignorable=True)
    name: str = string(until=9, ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


@message(api_key=8, versions=(0, 10), flexible_from=8)
class OffsetCommitRequest(Message):
    """Commits offsets of a group.

    Version 0 stores them in ZooKeeper. Version 1 names member and generation, 2 to 4 choose a retention time,
    6 adds the leader epoch (KIP-320), 7 static members (KIP-345), 9 permits the newer group protocol,
    10 has topic ids (both KIP-848).
    """

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(-1, since=1, ignorable=True)
    member_id: str = string(since=1, ignorable=True)
    group_instance_id: str | None = nullable_string(None, since=7)
    retention_time_ms: int = int64(-1, since=2, until=4, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetCommitResponseTopic(Struct):
    topic_id: UUID = uuid(since=10, ignorable=True)
    name: str = string(until=9, ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


@message(api_key=8, versions=(0, 10), flexible_from=8)
class OffsetCommitResponse(Message):
    """Says for each partition whether its offset is stored."""

    throttle_time_ms: int = int32(since=3, ignorable=True)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)
