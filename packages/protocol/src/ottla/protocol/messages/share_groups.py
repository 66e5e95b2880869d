"""Take part in share groups, describe them, and read, set and delete their first offsets (KIP-932)."""

from __future__ import annotations

from uuid import UUID

from ottla.protocol.messages.consumer_groups import Assignment, MemberAssignment
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
    nullable_struct,
    string,
    struct,
    uuid,
)


@message(api_key=76, versions=(1, 1), flexible_from=0)
class ShareGroupHeartbeatRequest(Message):
    """Joins, stays in or leaves a share group (KIP-932); version 0 was an early access of Kafka 4.0."""

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    rack_id: str | None = nullable_string(None)
    subscribed_topic_names: list[str] | None = nullable_array(string, None)


@message(api_key=76, versions=(1, 1), flexible_from=0)
class ShareGroupHeartbeatResponse(Message):
    """Gives the member's epoch and the partitions it reads, with others or alone."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    member_id: str | None = nullable_string(None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = nullable_struct(Assignment)


@message(api_key=77, versions=(1, 1), flexible_from=0)
class ShareGroupDescribeRequest(Message):
    """Asks about groups; version 0 was an early access of Kafka 4.0, and is gone."""

    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()


class Member(Struct):
    member_id: str = string()
    rack_id: str | None = nullable_string(None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    assignment: MemberAssignment = struct(MemberAssignment)


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


@message(api_key=77, versions=(1, 1), flexible_from=0)
class ShareGroupDescribeResponse(Message):
    """Describes members with the partitions that each of them reads, with others or alone."""

    throttle_time_ms: int = int32()
    groups: list[DescribedGroup] = array(DescribedGroup)


class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = string()
    partitions: list[int] = array(int32)


class DescribeShareGroupOffsetsRequestGroup(Struct):
    group_id: str = string()
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = nullable_array(
        DescribeShareGroupOffsetsRequestTopic
    )


@message(api_key=90, versions=(0, 1), flexible_from=0)
class DescribeShareGroupOffsetsRequest(Message):
    """Asks for the offsets of groups; topics None asks for all that have some."""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = array(DescribeShareGroupOffsetsRequestGroup)


class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = int32()
    start_offset: int = int64()
    leader_epoch: int = int32()
    lag: int = int64(-1, since=1, ignorable=True)
    error_code: int = int16()
    error_message: str | None = nullable_string(None)


class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = string()
    topic_id: UUID = uuid()
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = array(
        DescribeShareGroupOffsetsResponsePartition
    )


class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: str = string()
    topics: list[DescribeShareGroupOffsetsResponseTopic] = array(DescribeShareGroupOffsetsResponseTopic)
    error_code: int = int16()
    error_message: str | None = nullable_string(None)


@message(api_key=90, versions=(0, 1), flexible_from=0)
class DescribeShareGroupOffsetsResponse(Message):
    """Gives the first offset that each group has not finished; version 1 adds the lag (KIP-1226)."""

    throttle_time_ms: int = int32()
    groups: list[DescribeShareGroupOffsetsResponseGroup] = array(DescribeShareGroupOffsetsResponseGroup)


class AlterShareGroupOffsetsRequestPartition(Struct):
    partition_index: int = int32()
    start_offset: int = int64()


class AlterShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = string()
    partitions: list[AlterShareGroupOffsetsRequestPartition] = array(AlterShareGroupOffsetsRequestPartition)


@message(api_key=91, versions=(0, 0), flexible_from=0)
class AlterShareGroupOffsetsRequest(Message):
    """Sets offsets of a group that has no members."""

    group_id: str = string()
    topics: list[AlterShareGroupOffsetsRequestTopic] = array(AlterShareGroupOffsetsRequestTopic)


class AlterShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)


class AlterShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = string()
    topic_id: UUID = uuid()
    partitions: list[AlterShareGroupOffsetsResponsePartition] = array(AlterShareGroupOffsetsResponsePartition)


@message(api_key=91, versions=(0, 0), flexible_from=0)
class AlterShareGroupOffsetsResponse(Message):
    """Says for each partition whether its offset was set."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = array(AlterShareGroupOffsetsResponseTopic)


class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = string()


@message(api_key=92, versions=(0, 0), flexible_from=0)
class DeleteShareGroupOffsetsRequest(Message):
    """Deletes the offsets of topics from a group that has no members."""

    group_id: str = string()
    topics: list[DeleteShareGroupOffsetsRequestTopic] = array(DeleteShareGroupOffsetsRequestTopic)


class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = string()
    topic_id: UUID = uuid()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)


@message(api_key=92, versions=(0, 0), flexible_from=0)
class DeleteShareGroupOffsetsResponse(Message):
    """Says for each topic whether its offsets were deleted."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = array(DeleteShareGroupOffsetsResponseTopic)
