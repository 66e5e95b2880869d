"""Describe brokers, topics and partition leaders."""

from __future__ import annotations

from uuid import UUID

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    message,
    nullable_array,
    nullable_string,
    string,
    uuid,
)


class MetadataRequestTopic(Struct):
    topic_id: UUID = uuid(since=10, ignorable=True)
    name: str | None = nullable_string(nullable_from=10)


@message(api_key=3, versions=(0, 13), flexible_from=9)
class MetadataRequest(Message):
    """Asks about some topics, or all: an empty list in version 0, null since version 1.

    Version 4 decides about automatic creation (KIP-204), 8 asks for permitted operations (KIP-430), 10 has
    topic ids (KIP-516), 11 leaves cluster operations to DescribeCluster (KIP-700), 12 asks by topic id.
    """

    topics: list[MetadataRequestTopic] | None = nullable_array(MetadataRequestTopic, nullable_from=1)
    allow_auto_topic_creation: bool = boolean(True, since=4)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


class MetadataResponseBroker(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = nullable_string(None, since=1, ignorable=True)


class MetadataResponsePartition(Struct):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(-1, since=7, ignorable=True)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    offline_replicas: list[int] = array(int32, since=5, ignorable=True)


class MetadataResponseTopic(Struct):
    error_code: int = int16()
    name: str | None = nullable_string(nullable_from=12)
    topic_id: UUID = uuid(since=10, ignorable=True)
    is_internal: bool = boolean(since=1, ignorable=True)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(-2147483648, since=8)


@message(api_key=3, versions=(0, 13), flexible_from=9)
class MetadataResponse(Message):
    """Describes the cluster as this broker knows it.

    Version 1 adds racks and the controller, 2 the cluster id (KIP-78), 5 offline replicas (KIP-112), 7 leader
    epochs (KIP-320), 8 permitted operations (KIP-430), 10 topic ids (KIP-516), 13 an error for all, which
    sends the client back to its bootstrap servers (KIP-1102).
    """

    throttle_time_ms: int = int32(since=3, ignorable=True)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = nullable_string(None, since=2, ignorable=True)
    controller_id: int = int32(-1, since=1, ignorable=True)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(-2147483648, since=8, until=10)
    error_code: int = int16(since=13, ignorable=True)
