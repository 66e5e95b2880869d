"""Read records of partitions."""

from __future__ import annotations

from uuid import UUID

from ottla.protocol.schema import (
    Message,
    Records,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    message,
    nullable_array,
    nullable_string,
    record_set,
    string,
    struct,
    uuid,
)


class ReplicaState(Struct):
    replica_id: int = int32(-1)
    replica_epoch: int = int64(-1)


class FetchPartition(Struct):
    partition: int = int32()
    current_leader_epoch: int = int32(-1, since=9, ignorable=True)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(-1, since=12)
    log_start_offset: int = int64(-1, since=5, ignorable=True)
    partition_max_bytes: int = int32()
    replica_directory_id: UUID = uuid(since=17, tag=0, ignorable=True)
    high_watermark: int = int64(0x7FFFFFFFFFFFFFFF, since=18, tag=1, ignorable=True)


class FetchTopic(Struct):
    topic: str = string(until=12, ignorable=True)
    topic_id: UUID = uuid(since=13, ignorable=True)
    partitions: list[FetchPartition] = array(FetchPartition)


class ForgottenTopic(Struct):
    topic: str = string(until=12, ignorable=True)
    topic_id: UUID = uuid(since=13, ignorable=True)
    partitions: list[int] = array(int32)


@message(api_key=1, versions=(0, 18), flexible_from=12)
class FetchRequest(Message):
    """Asks for records from an offset on, waiting until there are enough; followers replicate with it.

    Version 3 bounds the whole response (KIP-74), 4 adds isolation (KIP-98), 5 the follower's log start
    (KIP-107), 7 fetch sessions (KIP-227), 9 the leader epoch (KIP-320), 11 the rack (KIP-392), 12 the last
    fetched epoch (KIP-595), 13 topic ids (KIP-516), 15 the replica's epoch (KIP-903), 17 its directory
    (KIP-853), 18 the high watermark that a follower knows (KIP-1166).
    """

    cluster_id: str | None = nullable_string(None, since=12, tag=0, ignorable=True)
    replica_id: int = int32(-1, until=14)
    replica_state: ReplicaState = struct(ReplicaState, since=15, tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(0x7FFFFFFF, since=3, ignorable=True)
    isolation_level: int = int8(since=4, ignorable=True)
    session_id: int = int32(since=7, ignorable=True)
    session_epoch: int = int32(-1, since=7, ignorable=True)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, since=7)
    rack_id: str = string(since=11, ignorable=True)


class EpochEndOffset(Struct):
    epoch: int = int32(-1)
    end_offset: int = int64(-1)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32(-1)
    leader_epoch: int = int32(-1)


class SnapshotId(Struct):
    end_offset: int = int64(-1)
    epoch: int = int32(-1)


class AbortedTransaction(Struct):
    producer_id: int = int64()
    first_offset: int = int64()


class PartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(-1, since=4, ignorable=True)
    log_start_offset: int = int64(-1, since=5, ignorable=True)
    diverging_epoch: EpochEndOffset = struct(EpochEndOffset, since=12, tag=0)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, since=12, tag=1)
    snapshot_id: SnapshotId = struct(SnapshotId, since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = nullable_array(
        AbortedTransaction, since=4, ignorable=True
    )
    preferred_read_replica: int = int32(-1, since=11)
    records: Records = record_set()


class FetchableTopicResponse(Struct):
    topic: str = string(until=12, ignorable=True)
    topic_id: UUID = uuid(since=13, ignorable=True)
    partitions: list[PartitionData] = array(PartitionData)


class NodeEndpoint(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = nullable_string(None)


@message(api_key=1, versions=(0, 18), flexible_from=12)
class FetchResponse(Message):
    """Carries record sets, with the offsets a reader must know about each partition.

    Version 1 adds the throttle time (KIP-13), 4 the last stable offset and aborted transactions (KIP-98), 5
    the log start (KIP-107), 7 fetch sessions (KIP-227), 11 the preferred replica (KIP-392), 12 where logs
    diverge (KIP-595), 13 topic ids (KIP-516), 16 endpoints of new leaders (KIP-951).
    """

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16(since=7, ignorable=True)
    session_id: int = int32(since=7)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=16, tag=0)
