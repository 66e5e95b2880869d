"""Elect leaders of partitions."""

from __future__ import annotations

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    message,
    nullable_array,
    nullable_string,
    string,
)


class TopicPartitions(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


@message(api_key=43, versions=(0, 2), flexible_from=2)
class ElectLeadersRequest(Message):
    """Asks for the preferred leaders (KIP-183), since version 1 for unclean elections too (KIP-460)."""

    election_type: int = int8(since=1)
    topic_partitions: list[TopicPartitions] | None = nullable_array(TopicPartitions)
    timeout_ms: int = int32(60000)


class PartitionResult(Struct):
    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()


class ReplicaElectionResult(Struct):
    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


@message(api_key=43, versions=(0, 2), flexible_from=2)
class ElectLeadersResponse(Message):
    """Says for each partition whether a leader was elected."""

    throttle_time_ms: int = int32()
    error_code: int = int16(since=1)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
