"""Describe the partitions of topics, page by page (KIP-966)."""

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
    nullable_struct,
    string,
    uuid,
)


class TopicRequest(Struct):
    name: str = string()


class Cursor(Struct):
    """The first partition of a page."""

    topic_name: str = string()
    partition_index: int = int32()


@message(api_key=75, versions=(0, 0), flexible_from=0)
class DescribeTopicPartitionsRequest(Message):
    """Asks for topics, or all of them without a name, from the cursor on."""

    topics: list[TopicRequest] = array(TopicRequest)
    response_partition_limit: int = int32(2000)
    cursor: Cursor | None = nullable_struct(Cursor)


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(-1)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    eligible_leader_replicas: list[int] | None = nullable_array(int32, None)
    last_known_elr: list[int] | None = nullable_array(int32, None)
    offline_replicas: list[int] = array(int32)


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int = int16()
    name: str | None = nullable_string()
    topic_id: UUID = uuid()
    is_internal: bool = boolean()
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition
    )
    topic_authorized_operations: int = int32(-2147483648)


@message(api_key=75, versions=(0, 0), flexible_from=0)
class DescribeTopicPartitionsResponse(Message):
    """Describes topics up to the limit; the next cursor is null on the last page."""

    throttle_time_ms: int = int32()
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = nullable_struct(Cursor)
