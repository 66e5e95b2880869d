"""Describe streams groups: their topology, and the tasks of each member (KIP-1071)."""

from __future__ import annotations

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
    uint16,
)


@message(api_key=89, versions=(0, 1), flexible_from=0)
class StreamsGroupDescribeRequest(Message):
    """Asks about groups; version 1 asks for the whole topology too (KIP-1331)."""

    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()
    include_topology_description: bool = boolean(since=1)


class KeyValue(Struct):
    key: str = string()
    value: str = string()


class TopicInfo(Struct):
    name: str = string()
    partitions: int = int32()
    replication_factor: int = int16()
    topic_configs: list[KeyValue] = array(KeyValue)


class Subtopology(Struct):
    subtopology_id: str = string()
    source_topics: list[str] = array(string)
    repartition_sink_topics: list[str] = array(string)
    state_changelog_topics: list[TopicInfo] = array(TopicInfo)
    repartition_source_topics: list[TopicInfo] = array(TopicInfo)


class Topology(Struct):
    epoch: int = int32()
    subtopologies: list[Subtopology] | None = nullable_array(Subtopology, None)


class Endpoint(Struct):
    host: str = string()
    port: int = uint16()


class TaskOffset(Struct):
    subtopology_id: str = string()
    partition: int = int32()
    offset: int = int64()


class TaskIds(Struct):
    subtopology_id: str = string()
    partitions: list[int] = array(int32)


class Assignment(Struct):
    active_tasks: list[TaskIds] = array(TaskIds)
    standby_tasks: list[TaskIds] = array(TaskIds)
    warmup_tasks: list[TaskIds] = array(TaskIds)


class Member(Struct):
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = nullable_string(None)
    rack_id: str | None = nullable_string(None)
    client_id: str = string()
    client_host: str = string()
    topology_epoch: int = int32()
    process_id: str = string()
    user_endpoint: Endpoint | None = nullable_struct(Endpoint)
    client_tags: list[KeyValue] = array(KeyValue)
    task_offsets: list[TaskOffset] = array(TaskOffset)
    task_end_offsets: list[TaskOffset] = array(TaskOffset)
    assignment: Assignment = struct(Assignment)
    target_assignment: Assignment = struct(Assignment)
    is_classic: bool = boolean()


class TopologyDescriptionNode(Struct):
    name: str = string()
    node_type: int = int8()
    source_topics: list[str] = array(string)
    sink_topic: str | None = nullable_string(None)
    stores: list[str] = array(string)
    successors: list[str] = array(string)


class TopologyDescriptionSubtopology(Struct):
    subtopology_id: str = string()
    nodes: list[TopologyDescriptionNode] = array(TopologyDescriptionNode)


class TopologyDescriptionGlobalStore(Struct):
    source: TopologyDescriptionNode = struct(TopologyDescriptionNode)
    processor: TopologyDescriptionNode = struct(TopologyDescriptionNode)


class TopologyDescription(Struct):
    subtopologies: list[TopologyDescriptionSubtopology] = array(TopologyDescriptionSubtopology)
    global_stores: list[TopologyDescriptionGlobalStore] = array(TopologyDescriptionGlobalStore)


class DescribedGroup(Struct):
    error_code: int = int16()
    error_message: str | None = nullable_string(None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    topology: Topology | None = nullable_struct(Topology)
    members: list[Member] = array(Member)
    authorized_operations: int = int32(-2147483648)
    topology_description: TopologyDescription | None = nullable_struct(TopologyDescription, since=1)
    topology_description_status: int = int8(since=1)
    assignor_name: str | None = nullable_string(None, since=1, ignorable=True)


@message(api_key=89, versions=(0, 1), flexible_from=0)
class StreamsGroupDescribeResponse(Message):
    """Describes members with the tasks that they run and those that they will.

    Version 1 adds the whole topology (KIP-1331) and the assignor (KIP-1357).
    """

    throttle_time_ms: int = int32()
    groups: list[DescribedGroup] = array(DescribedGroup)
