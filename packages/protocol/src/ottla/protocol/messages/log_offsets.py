"""Offsets of a partition's log: found by time or leader epoch, and records dropped below one."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int8, int16, int32, int64, message, string


class ListOffsetsPartition(Struct):
    partition_index: int = int32()
    current_leader_epoch: int = int32(-1, since=4, ignorable=True)
    timestamp: int = int64()
    max_num_offsets: int = int32(1, until=0)


class ListOffsetsTopic(Struct):
    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


@message(api_key=2, versions=(0, 11), flexible_from=6)
class ListOffsetsRequest(Message):
    """Asks for the offset at a timestamp; -1 means the end, -2 the start.

    Version 0 asks for several segment base offsets. Version 1 asks for one record by its time (KIP-79), 2
    adds isolation (KIP-98), 4 the leader epoch (KIP-320), 7 the record of the highest timestamp (KIP-734), 8
    the local log's start (KIP-405), 9 the last tiered offset (KIP-1005), 10 a limit of the wait for tiered
    storage (KIP-1075), 11 the next offset to be tiered (KIP-1023).
    """

    replica_id: int = int32()
    isolation_level: int = int8(since=2)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32(since=10, ignorable=True)


class ListOffsetsPartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    old_style_offsets: list[int] = array(int64, until=0)
    timestamp: int = int64(-1, since=1)
    offset: int = int64(-1, since=1)
    leader_epoch: int = int32(-1, since=4)


class ListOffsetsTopicResponse(Struct):
    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


@message(api_key=2, versions=(0, 11), flexible_from=6)
class ListOffsetsResponse(Message):
    """Gives an offset for every partition asked about.

    Version 0 lists offsets, highest first; 1 gives one with its timestamp (KIP-79); 4 adds the leader epoch
    (KIP-320).
    """

    throttle_time_ms: int = int32(since=2, ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


class OffsetForLeaderPartition(Struct):
    partition: int = int32()
    current_leader_epoch: int = int32(-1, since=2, ignorable=True)
    leader_epoch: int = int32()


class OffsetForLeaderTopic(Struct):
    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


@message(api_key=23, versions=(0, 4), flexible_from=4)
class OffsetForLeaderEpochRequest(Message):
    """Asks for the end of leader epochs, to find where logs diverge (KIP-101).

    Version 2 adds the current epoch (KIP-320), 3 the replica's id (KIP-392).
    """

    replica_id: int = int32(-2, since=3, ignorable=True)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


class EpochEndOffset(Struct):
    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(-1, since=1, ignorable=True)
    end_offset: int = int64(-1)


class OffsetForLeaderTopicResult(Struct):
    topic: str = string()
    partitions: list[EpochEndOffset] = array(EpochEndOffset)


@message(api_key=23, versions=(0, 4), flexible_from=4)
class OffsetForLeaderEpochResponse(Message):
    """Gives the largest epoch not above the one asked for, and its end offset."""

    throttle_time_ms: int = int32(since=2, ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)


class DeleteRecordsPartition(Struct):
    partition_index: int = int32()
    offset: int = int64()


class DeleteRecordsTopic(Struct):
    name: str = string()
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


@message(api_key=21, versions=(0, 2), flexible_from=2)
class DeleteRecordsRequest(Message):
    """Moves log starts forward; offset -1 means the high watermark (KIP-107)."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()


class DeleteRecordsPartitionResult(Struct):
    partition_index: int = int32()
    low_watermark: int = int64()
    error_code: int = int16()


class DeleteRecordsTopicResult(Struct):
    name: str = string()
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


@message(api_key=21, versions=(0, 2), flexible_from=2)
class DeleteRecordsResponse(Message):
    """Gives the new log starts."""

    throttle_time_ms: int = int32()
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)
