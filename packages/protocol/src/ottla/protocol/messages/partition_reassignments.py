"""Move partitions to other brokers, and list those that are being moved."""

from __future__ import annotations

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
)


class ReassignablePartition(Struct):
    partition_index: int = int32()
    replicas: list[int] | None = nullable_array(int32, None)


class ReassignableTopic(Struct):
    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


@message(api_key=45, versions=(0, 1), flexible_from=0)
class AlterPartitionReassignmentsRequest(Message):
    """Sets the wanted replicas of partitions, or cancels with null (KIP-455).

    Version 1 may forbid a change of the number of replicas (KIP-860).
    """

    timeout_ms: int = int32(60000)
    allow_replication_factor_change: bool = boolean(True, since=1)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


class ReassignablePartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()


class ReassignableTopicResponse(Struct):
    name: str = string()
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


@message(api_key=45, versions=(0, 1), flexible_from=0)
class AlterPartitionReassignmentsResponse(Message):
    """Says for each partition whether its move was accepted."""

    throttle_time_ms: int = int32()
    allow_replication_factor_change: bool = boolean(True, since=1, ignorable=True)
    error_code: int = int16()
    error_message: str | None = nullable_string()
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)


class ListPartitionReassignmentsTopics(Struct):
    name: str = string()
    partition_indexes: list[int] = array(int32)


@message(api_key=46, versions=(0, 0), flexible_from=0)
class ListPartitionReassignmentsRequest(Message):
    """Asks for moves under way, of some topics or all (KIP-455)."""

    timeout_ms: int = int32(60000)
    topics: list[ListPartitionReassignmentsTopics] | None = nullable_array(
        ListPartitionReassignmentsTopics, None
    )


class OngoingPartitionReassignment(Struct):
    partition_index: int = int32()
    replicas: list[int] = array(int32)
    adding_replicas: list[int] = array(int32)
    removing_replicas: list[int] = array(int32)


class OngoingTopicReassignment(Struct):
    name: str = string()
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


@message(api_key=46, versions=(0, 0), flexible_from=0)
class ListPartitionReassignmentsResponse(Message):
    """Lists replicas that are, come and go."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)
