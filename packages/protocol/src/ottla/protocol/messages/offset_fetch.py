"""Read the positions of a consumer group."""

from __future__ import annotations

from uuid import UUID

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
    nullable_string,
    string,
    uuid,
)


class OffsetFetchRequestTopic(Struct):
    name: str = string()
    partition_indexes: list[int] = array(int32)


class OffsetFetchRequestTopics(Struct):
    topic_id: UUID = uuid(since=10, ignorable=True)
    name: str = string(until=9, ignorable=True)
    partition_indexes: list[int] = array(int32)


class OffsetFetchRequestGroup(Struct):
    group_id: str = string()
    member_id: str | None = nullable_string(None, since=9, ignorable=True)
    member_epoch: int = int32(-1, since=9, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = nullable_array(OffsetFetchRequestTopics)


@message(api_key=9, versions=(0, 10), flexible_from=6)
class OffsetFetchRequest(Message):
    """Asks for committed offsets.

    Version 0 reads ZooKeeper; 2 may ask for all partitions (KIP-88), 7 waits for open transactions to end
    (KIP-447), 8 asks for several groups (KIP-709), 9 permits the newer group protocol, 10 has
    topic ids (both KIP-848).
    """

    group_id: str = string(until=7)
    topics: list[OffsetFetchRequestTopic] | None = nullable_array(
        OffsetFetchRequestTopic, nullable_from=2, until=7
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, since=8)
    require_stable: bool = boolean(since=7)


class OffsetFetchResponsePartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(-1, since=5, ignorable=True)
    metadata: str | None = nullable_string()
    error_code: int = int16()


class OffsetFetchResponseTopic(Struct):
    name: str = string()
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


class OffsetFetchResponsePartitions(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(-1)
    metadata: str | None = nullable_string()
    error_code: int = int16()


class OffsetFetchResponseTopics(Struct):
    topic_id: UUID = uuid(since=10, ignorable=True)
    name: str = string(until=9, ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions)


class OffsetFetchResponseGroup(Struct):
    group_id: str = string()
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics)
    error_code: int = int16()


@message(api_key=9, versions=(0, 10), flexible_from=6)
class OffsetFetchResponse(Message):
    """Gives committed offsets; -1 where there is none.

    Version 2 adds an error for the whole group, 5 the leader epoch (KIP-320), 8 several groups (KIP-709).
    """

    throttle_time_ms: int = int32(since=3, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7)
    error_code: int = int16(since=2, until=7, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8)
