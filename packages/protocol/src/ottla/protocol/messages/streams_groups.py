"""Take part in a streams group, and describe its topology to the coordinator (KIP-1071)."""

from __future__ import annotations

from ottla.protocol.messages.streams_group_describe import (
    Endpoint,
    KeyValue,
    TaskIds,
    TaskOffset,
    TopicInfo,
    TopologyDescription,
)
from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    message,
    nullable_array,
    nullable_string,
    nullable_struct,
    string,
    struct,
)


class CopartitionGroup(Struct):
    """Topics with equal numbers of partitions, as positions in the lists of the subtopology."""

    source_topics: list[int] = array(int16)
    source_topic_regex: list[int] = array(int16)
    repartition_source_topics: list[int] = array(int16)


class Subtopology(Struct):
    subtopology_id: str = string()
    source_topics: list[str] = array(string)
    source_topic_regex: list[str] = array(string)
    state_changelog_topics: list[TopicInfo] = array(TopicInfo)
    repartition_sink_topics: list[str] = array(string)
    repartition_source_topics: list[TopicInfo] = array(TopicInfo)
    copartition_groups: list[CopartitionGroup] = array(CopartitionGroup)


class Topology(Struct):
    epoch: int = int32()
    subtopologies: list[Subtopology] = array(Subtopology)


@message(api_key=88, versions=(0, 1), flexible_from=0)
class StreamsGroupHeartbeatRequest(Message):
    """Joins, stays in or leaves a group; a field that is null has not changed since the last heartbeat."""

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    endpoint_information_epoch: int = int32()
    instance_id: str | None = nullable_string(None)
    rack_id: str | None = nullable_string(None)
    rebalance_timeout_ms: int = int32(-1)
    topology: Topology | None = nullable_struct(Topology)
    active_tasks: list[TaskIds] | None = nullable_array(TaskIds, None)
    standby_tasks: list[TaskIds] | None = nullable_array(TaskIds, None)
    warmup_tasks: list[TaskIds] | None = nullable_array(TaskIds, None)
    process_id: str | None = nullable_string(None)
    user_endpoint: Endpoint | None = nullable_struct(Endpoint)
    client_tags: list[KeyValue] | None = nullable_array(KeyValue, None)
    task_offsets: list[TaskOffset] | None = nullable_array(TaskOffset, None)
    task_end_offsets: list[TaskOffset] | None = nullable_array(TaskOffset, None)
    shutdown_application: bool = boolean()


class Status(Struct):
    status_code: int = int8()
    status_detail: str = string()


class TopicPartition(Struct):
    """Some partitions of one topic."""

    topic: str = string()
    partitions: list[int] = array(int32)


class EndpointToPartitions(Struct):
    user_endpoint: Endpoint = struct(Endpoint)
    active_partitions: list[TopicPartition] = array(TopicPartition)
    standby_partitions: list[TopicPartition] = array(TopicPartition)


@message(api_key=88, versions=(0, 1), flexible_from=0)
class StreamsGroupHeartbeatResponse(Message):
    """Gives the member's epoch and its tasks.

    Version 1 has a wider recovery lag, and may ask for the description of the topology (KIP-1331).
    """

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    member_id: str = string()
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    acceptable_recovery_lag_legacy: int = int32(until=0)
    task_offset_interval_ms: int = int32()
    acceptable_recovery_lag: int = int64(-1, since=1, ignorable=True)
    status: list[Status] | None = nullable_array(Status)
    active_tasks: list[TaskIds] | None = nullable_array(TaskIds, None)
    standby_tasks: list[TaskIds] | None = nullable_array(TaskIds, None)
    warmup_tasks: list[TaskIds] | None = nullable_array(TaskIds, None)
    topology_description_required: bool = boolean(since=1)
    endpoint_information_epoch: int = int32()
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = nullable_array(
        EndpointToPartitions, None
    )


@message(api_key=93, versions=(0, 0), flexible_from=0)
class StreamsGroupTopologyDescriptionUpdateRequest(Message):
    """Describes the whole topology of a group for its administrators (KIP-1331)."""

    group_id: str = string()
    member_id: str = string()
    topology_epoch: int = int32()
    topology_description: TopologyDescription = struct(TopologyDescription)


@message(api_key=93, versions=(0, 0), flexible_from=0)
class StreamsGroupTopologyDescriptionUpdateResponse(Message):
    """Says whether the description is stored."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
