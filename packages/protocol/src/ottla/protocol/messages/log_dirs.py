"""Describe the log directories of a broker, and move replicas between them."""

from __future__ import annotations

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    message,
    nullable_array,
    string,
)


class DescribableLogDirTopic(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


@message(api_key=35, versions=(0, 5), flexible_from=2)
class DescribeLogDirsRequest(Message):
    """Asks for the replicas in each directory (KIP-113)."""

    topics: list[DescribableLogDirTopic] | None = nullable_array(DescribableLogDirTopic)


class DescribeLogDirsPartition(Struct):
    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


class DescribeLogDirsTopic(Struct):
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Struct):
    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(-1, since=4, ignorable=True)
    usable_bytes: int = int64(-1, since=4, ignorable=True)
    is_cordoned: bool = boolean(since=5, ignorable=True)


@message(api_key=35, versions=(0, 5), flexible_from=2)
class DescribeLogDirsResponse(Message):
    """Lists replicas with size and lag.

    Version 4 adds the size of volumes (KIP-827), 5 whether new replicas are kept away from them (KIP-1066).
    """

    throttle_time_ms: int = int32()
    error_code: int = int16(since=3, ignorable=True)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)


class AlterReplicaLogDirTopic(Struct):
    name: str = string()
    partitions: list[int] = array(int32)


class AlterReplicaLogDir(Struct):
    path: str = string()
    topics: list[AlterReplicaLogDirTopic] = array(AlterReplicaLogDirTopic)


@message(api_key=34, versions=(0, 2), flexible_from=2)
class AlterReplicaLogDirsRequest(Message):
    """Names the directory each replica shall live in (KIP-113)."""

    dirs: list[AlterReplicaLogDir] = array(AlterReplicaLogDir)


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = string()
    partitions: list[AlterReplicaLogDirPartitionResult] = array(AlterReplicaLogDirPartitionResult)


@message(api_key=34, versions=(0, 2), flexible_from=2)
class AlterReplicaLogDirsResponse(Message):
    """Says whether each move was accepted."""

    throttle_time_ms: int = int32()
    results: list[AlterReplicaLogDirTopicResult] = array(AlterReplicaLogDirTopicResult)
