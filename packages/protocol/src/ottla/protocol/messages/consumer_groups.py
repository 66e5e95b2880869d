"""Take part in a group of the newer protocol, and describe such groups."""

from __future__ import annotations

from uuid import UUID

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    nullable_array,
    nullable_string,
    nullable_struct,
    string,
    struct,
    uuid,
)


class TopicPartitions(Struct):
    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


@message(api_key=68, versions=(0, 1), flexible_from=0)
class ConsumerGroupHeartbeatRequest(Message):
    """Joins, stays in or leaves a group, and names the partitions the member owns (KIP-848).

    Version 1 adds subscriptions by a regular expression; members choose their own ids (KIP-1082).
    """

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = nullable_string(None)
    rack_id: str | None = nullable_string(None)
    rebalance_timeout_ms: int = int32(-1)
    subscribed_topic_names: list[str] | None = nullable_array(string, None)
    subscribed_topic_regex: str | None = nullable_string(None, since=1)
    server_assignor: str | None = nullable_string(None)
    topic_partitions: list[TopicPartitions] | None = nullable_array(TopicPartitions, None)


class TopicPartitionsResponse(Struct):
    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


class Assignment(Struct):
    topic_partitions: list[TopicPartitionsResponse] = array(TopicPartitionsResponse)


@message(api_key=68, versions=(0, 1), flexible_from=0)
class ConsumerGroupHeartbeatResponse(Message):
    """Gives the member's epoch and its target assignment."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    member_id: str | None = nullable_string(None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = nullable_struct(Assignment)


@message(api_key=69, versions=(0, 1), flexible_from=0)
class ConsumerGroupDescribeRequest(Message):
    """Asks about groups (KIP-848)."""

    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()


class DescribedTopicPartitions(Struct):
    topic_id: UUID = uuid()
    topic_name: str = string()
    partitions: list[int] = array(int32)


class MemberAssignment(Struct):
    topic_partitions: list[DescribedTopicPartitions] = array(DescribedTopicPartitions)


class Member(Struct):
    member_id: str = string()
    instance_id: str | None = nullable_string(None)
    rack_id: str | None = nullable_string(None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = nullable_string(None)
    assignment: MemberAssignment = struct(MemberAssignment)
    target_assignment: MemberAssignment = struct(MemberAssignment)
    member_type: int = int8(-1, since=1, ignorable=True)
    """0 classic, 1 consumer, -1 not known."""


class DescribedGroup(Struct):
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[Member] = array(Member)
    authorized_operations: int = int32(-2147483648)


@message(api_key=69, versions=(0, 1), flexible_from=0)
class ConsumerGroupDescribeResponse(Message):
    """Describes members with their current and target assignments.

    Version 1 says whether a member speaks the classic protocol (KIP-1099).
    """

    throttle_time_ms: int = int32()
    groups: list[DescribedGroup] = array(DescribedGroup)
