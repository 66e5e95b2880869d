"""Find where a leader epoch ended."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, int16, int32, int64, message, string


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
