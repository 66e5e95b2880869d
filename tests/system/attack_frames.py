"""Frames with long lists, made by repetition: ten million elements cost no time to encode."""

from __future__ import annotations

import struct
from collections.abc import Callable

from ottla.protocol.api import ApiKey
from ottla.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest
from ottla.protocol.schema import Message

CLIENT_ID = b"attack"


def framed(key: int, version: int, body: bytes, correlation_id: int = 1) -> bytes:
    """Return a request in its frame, with the header of a version that is not flexible."""
    head = struct.pack(">hhih", key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID
    return struct.pack(">i", len(head) + len(body)) + head + body


def repeated(make: Callable[[int], Message], version: int, count: int) -> bytes:
    """Return the encoding of `make(count)`: a request whose one list has `count` equal elements.

    The list's place and an element's bytes are found by comparing the encodings of one and two elements.
    """
    one, two = make(1).encode(version), make(2).encode(version)
    differs = next(at for at, (first, second) in enumerate(zip(one, two, strict=False)) if first != second)
    begins, size = differs + 1, len(two) - len(one)
    return (
        one[: differs - 3]
        + struct.pack(">i", count)
        + one[begins : begins + size] * count
        + one[begins + size :]
    )


def list_frame(name: str, topic: str, count: int) -> bytes:
    """Return a frame of a named request whose list has `count` elements."""
    key, version, make = LISTS[name]
    return framed(key, version, repeated(lambda number: make(topic, number), version, count))


def distinct_topics(key: ApiKey, count: int) -> bytes:
    """Return a frame that names `count` topics that do not exist."""
    names = [f"made-by-attack-{number}" for number in range(count)]
    if key == ApiKey.METADATA:
        wanted = [MetadataRequestTopic(name=name) for name in names]
        return framed(key, 4, MetadataRequest(topics=wanted, allow_auto_topic_creation=True).encode(4))
    if key == ApiKey.DELETE_TOPICS:
        return framed(key, 1, DeleteTopicsRequest(topic_names=names, timeout_ms=30_000).encode(1))
    made = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    return framed(key, 1, CreateTopicsRequest(topics=made, timeout_ms=30_000).encode(1))


def _describe_configs(topic: str, count: int) -> Message:
    resource = DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=None)
    return DescribeConfigsRequest(resources=[resource] * count)


def _delete_records(topic: str, count: int) -> Message:
    partition = DeleteRecordsPartition(partition_index=0, offset=0)
    asked = DeleteRecordsTopic(name=topic, partitions=[partition] * count)
    return DeleteRecordsRequest(topics=[asked], timeout_ms=1_000)


def _fetch(topic: str, count: int) -> Message:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    asked = FetchTopic(topic=topic, partitions=[partition] * count)
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=[asked])


def _produce(topic: str, count: int) -> Message:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=99, records=b"")] * count)
    return ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[data])


def _leader_epochs(topic: str, count: int) -> Message:
    partition = OffsetForLeaderPartition(partition=0, leader_epoch=0)
    asked = OffsetForLeaderTopic(topic=topic, partitions=[partition] * count)
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=[asked])


def _list_offsets(topic: str, count: int) -> Message:
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[partition] * count)])


def _metadata(topic: str, count: int) -> Message:
    return MetadataRequest(topics=[MetadataRequestTopic(name=topic)] * count)


def _offset_commit(topic: str, count: int) -> Message:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    asked = OffsetCommitRequestTopic(name=topic, partitions=[partition] * count)
    return OffsetCommitRequest(
        group_id="attack", generation_id_or_member_epoch=-1, member_id="", topics=[asked]
    )


LISTS: dict[str, tuple[ApiKey, int, Callable[[str, int], Message]]] = {
    "DescribeConfigs": (ApiKey.DESCRIBE_CONFIGS, 1, _describe_configs),
    "DeleteRecords": (ApiKey.DELETE_RECORDS, 1, _delete_records),
    "Fetch": (ApiKey.FETCH, 6, _fetch),
    "Produce": (ApiKey.PRODUCE, 7, _produce),
    "OffsetForLeaderEpoch": (ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, _leader_epochs),
    "ListOffsets": (ApiKey.LIST_OFFSETS, 2, _list_offsets),
    "Metadata": (ApiKey.METADATA, 1, _metadata),
    "OffsetCommit": (ApiKey.OFFSET_COMMIT, 2, _offset_commit),
}
