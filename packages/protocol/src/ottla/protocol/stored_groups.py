"""Records of the newer kinds of groups in `__consumer_offsets`, and of `__share_group_state`.

The first two bytes of a key say its kind (`GROUP_RECORDS`, `SHARE_STATE_RECORDS`), those of a value its
version, which is 0 for all of these; later facts are tagged fields, which earlier readers skip. A record
without a value takes back what its key stands for. Kinds 9 and 18 were of Kafka's previews, and are gone;
kind 4 is read and deleted, but not written since Kafka 4.1.

The module has over 300 lines because each record is one declaration: kinds of groups share none of them.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from ottla.protocol.messages.share_state import StateBatch
from ottla.protocol.messages.streams_group_describe import Endpoint, KeyValue, TaskIds
from ottla.protocol.messages.streams_groups import Subtopology
from ottla.protocol.primitives import Buffer, MalformedMessage
from ottla.protocol.schema import (
    Struct,
    array,
    blob,
    int8,
    int32,
    int64,
    message,
    nullable_array,
    nullable_string,
    nullable_struct,
    string,
    uuid,
)
from ottla.protocol.stored_messages import VersionedMessage, version_of


class GroupKey(VersionedMessage):
    """A key that names a group, and perhaps a member or an expression of it."""


# ---- consumer groups (KIP-848)


@message(versions=(3, 3))
class ConsumerGroupMetadataKey(GroupKey):
    group_id: str = string()


@message(versions=(0, 0), flexible_from=0)
class ConsumerGroupMetadataValue(VersionedMessage):
    """The group epoch, and a hash of the topics that members read."""

    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


@message(versions=(4, 4))
class ConsumerGroupPartitionMetadataKey(GroupKey):
    group_id: str = string()


class PartitionRacks(Struct):
    partition: int = int32()
    racks: list[str] = array(string)


class TopicMetadata(Struct):
    topic_id: UUID = uuid()
    topic_name: str = string()
    num_partitions: int = int32()
    partition_metadata: list[PartitionRacks] = array(PartitionRacks)


@message(versions=(0, 0), flexible_from=0)
class ConsumerGroupPartitionMetadataValue(VersionedMessage):
    """Topics that members read, as Kafka 4.0 stored them."""

    topics: list[TopicMetadata] = array(TopicMetadata)


@message(versions=(5, 5))
class ConsumerGroupMemberMetadataKey(GroupKey):
    group_id: str = string()
    member_id: str = string()


class ClassicProtocol(Struct):
    name: str = string()
    metadata: bytes = blob()


class ClassicMemberMetadata(Struct):
    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


@message(versions=(0, 0), flexible_from=0)
class ConsumerGroupMemberMetadataValue(VersionedMessage):
    """A member: its client, its subscription, and its protocols where it joined by the classic protocol."""

    instance_id: str | None = nullable_string()
    rack_id: str | None = nullable_string()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = nullable_string()
    rebalance_timeout_ms: int = int32(-1)
    server_assignor: str | None = nullable_string()
    # Kafka's default is an empty struct, so a member of the newer protocol is written with an explicit null.
    classic_member_metadata: ClassicMemberMetadata | None = nullable_struct(ClassicMemberMetadata, (), tag=0)


@message(versions=(6, 6))
class ConsumerGroupTargetAssignmentMetadataKey(GroupKey):
    group_id: str = string()


@message(versions=(0, 0), flexible_from=0)
class ConsumerGroupTargetAssignmentMetadataValue(VersionedMessage):
    """The group epoch that the target assignment was made for."""

    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0)


@message(versions=(7, 7))
class ConsumerGroupTargetAssignmentMemberKey(GroupKey):
    group_id: str = string()
    member_id: str = string()


class TopicPartition(Struct):
    """Some partitions of one topic."""

    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


@message(versions=(0, 0), flexible_from=0)
class ConsumerGroupTargetAssignmentMemberValue(VersionedMessage):
    """The partitions that a member shall have."""

    topic_partitions: list[TopicPartition] = array(TopicPartition)


@message(versions=(8, 8))
class ConsumerGroupCurrentMemberAssignmentKey(GroupKey):
    group_id: str = string()
    member_id: str = string()


class AssignedTopicPartitions(Struct):
    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)
    assignment_epochs: list[int] | None = nullable_array(int32, tag=0)


@message(versions=(0, 0), flexible_from=0)
class ConsumerGroupCurrentMemberAssignmentValue(VersionedMessage):
    """The partitions that a member has, and those that it must give up."""

    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[AssignedTopicPartitions] = array(AssignedTopicPartitions)
    partitions_pending_revocation: list[AssignedTopicPartitions] = array(AssignedTopicPartitions)


@message(versions=(16, 16))
class ConsumerGroupRegularExpressionKey(GroupKey):
    group_id: str = string()
    regular_expression: str = string()


@message(versions=(0, 0), flexible_from=0)
class ConsumerGroupRegularExpressionValue(VersionedMessage):
    """The topics that an expression matched, and the version of the metadata that they were read from."""

    topics: list[str] = array(string)
    version: int = int64()
    timestamp: int = int64()


# ---- share groups (KIP-932)


@message(versions=(10, 10))
class ShareGroupMemberMetadataKey(GroupKey):
    group_id: str = string()
    member_id: str = string()


@message(versions=(0, 0), flexible_from=0)
class ShareGroupMemberMetadataValue(VersionedMessage):
    rack_id: str | None = nullable_string()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)


@message(versions=(11, 11))
class ShareGroupMetadataKey(GroupKey):
    group_id: str = string()


@message(versions=(0, 0), flexible_from=0)
class ShareGroupMetadataValue(VersionedMessage):
    """The group epoch, and a hash of the topics that members read."""

    epoch: int = int32()
    metadata_hash: int = int64()


@message(versions=(12, 12))
class ShareGroupTargetAssignmentMetadataKey(GroupKey):
    group_id: str = string()


@message(versions=(0, 0), flexible_from=0)
class ShareGroupTargetAssignmentMetadataValue(VersionedMessage):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0)


@message(versions=(13, 13))
class ShareGroupTargetAssignmentMemberKey(GroupKey):
    group_id: str = string()
    member_id: str = string()


@message(versions=(0, 0), flexible_from=0)
class ShareGroupTargetAssignmentMemberValue(VersionedMessage):
    topic_partitions: list[TopicPartition] = array(TopicPartition)


@message(versions=(14, 14))
class ShareGroupCurrentMemberAssignmentKey(GroupKey):
    group_id: str = string()
    member_id: str = string()


@message(versions=(0, 0), flexible_from=0)
class ShareGroupCurrentMemberAssignmentValue(VersionedMessage):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[TopicPartition] = array(TopicPartition)


@message(versions=(15, 15))
class ShareGroupStatePartitionMetadataKey(GroupKey):
    group_id: str = string()


class TopicPartitionsInfo(Struct):
    topic_id: UUID = uuid()
    topic_name: str = string()
    partitions: list[int] = array(int32)


class TopicInfo(Struct):
    topic_id: UUID = uuid()
    topic_name: str = string()


@message(versions=(0, 0), flexible_from=0)
class ShareGroupStatePartitionMetadataValue(VersionedMessage):
    """The share partitions whose state begins, has begun, or is being deleted."""

    initializing_topics: list[TopicPartitionsInfo] = array(TopicPartitionsInfo)
    initialized_topics: list[TopicPartitionsInfo] = array(TopicPartitionsInfo)
    deleting_topics: list[TopicInfo] = array(TopicInfo)


# ---- streams groups (KIP-1071)


@message(versions=(17, 17))
class StreamsGroupMetadataKey(GroupKey):
    group_id: str = string()


@message(versions=(0, 0), flexible_from=0)
class StreamsGroupMetadataValue(VersionedMessage):
    """The group epoch, a hash of its topics, and how far its topology was validated and described."""

    epoch: int = int32()
    metadata_hash: int = int64()
    validated_topology_epoch: int = int32(-1, tag=0)
    last_assignment_configs: list[KeyValue] | None = nullable_array(KeyValue, tag=1)
    stored_description_topology_epoch: int = int32(-1, tag=2)
    failed_description_topology_epoch: int = int32(-1, tag=3)


@message(versions=(19, 19))
class StreamsGroupMemberMetadataKey(GroupKey):
    group_id: str = string()
    member_id: str = string()


@message(versions=(0, 0), flexible_from=0)
class StreamsGroupMemberMetadataValue(VersionedMessage):
    instance_id: str | None = nullable_string()
    rack_id: str | None = nullable_string()
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout_ms: int = int32(-1)
    topology_epoch: int = int32()
    process_id: str = string()
    user_endpoint: Endpoint | None = nullable_struct(Endpoint)
    client_tags: list[KeyValue] = array(KeyValue)


@message(versions=(20, 20))
class StreamsGroupTargetAssignmentMetadataKey(GroupKey):
    group_id: str = string()


@message(versions=(0, 0), flexible_from=0)
class StreamsGroupTargetAssignmentMetadataValue(VersionedMessage):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0)


@message(versions=(21, 21))
class StreamsGroupTargetAssignmentMemberKey(GroupKey):
    group_id: str = string()
    member_id: str = string()


@message(versions=(0, 0), flexible_from=0)
class StreamsGroupTargetAssignmentMemberValue(VersionedMessage):
    active_tasks: list[TaskIds] = array(TaskIds)
    standby_tasks: list[TaskIds] = array(TaskIds)
    warmup_tasks: list[TaskIds] = array(TaskIds)


@message(versions=(22, 22))
class StreamsGroupCurrentMemberAssignmentKey(GroupKey):
    group_id: str = string()
    member_id: str = string()


class AssignedTaskIds(Struct):
    subtopology_id: str = string()
    partitions: list[int] = array(int32)
    assignment_epochs: list[int] | None = nullable_array(int32, tag=0)


@message(versions=(0, 0), flexible_from=0)
class StreamsGroupCurrentMemberAssignmentValue(VersionedMessage):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    active_tasks: list[AssignedTaskIds] = array(AssignedTaskIds)
    standby_tasks: list[AssignedTaskIds] = array(AssignedTaskIds)
    warmup_tasks: list[AssignedTaskIds] = array(AssignedTaskIds)
    active_tasks_pending_revocation: list[AssignedTaskIds] = array(AssignedTaskIds)
    standby_tasks_pending_revocation: list[AssignedTaskIds] = array(AssignedTaskIds)
    warmup_tasks_pending_revocation: list[AssignedTaskIds] = array(AssignedTaskIds)


@message(versions=(23, 23))
class StreamsGroupTopologyKey(GroupKey):
    group_id: str = string()


@message(versions=(0, 0), flexible_from=0)
class StreamsGroupTopologyValue(VersionedMessage):
    epoch: int = int32()
    subtopologies: list[Subtopology] = array(Subtopology)


# ---- share partitions, in __share_group_state (KIP-932)


@message(versions=(0, 0))
class ShareSnapshotKey(GroupKey):
    group_id: str = string()
    topic_id: UUID = uuid()
    partition: int = int32()


@message(versions=(0, 0), flexible_from=0)
class ShareSnapshotValue(VersionedMessage):
    """The whole state of a share partition."""

    snapshot_epoch: int = int32()
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    create_timestamp: int = int64()
    write_timestamp: int = int64()
    state_batches: list[StateBatch] = array(StateBatch)
    delivery_complete_count: int = int32(-1, tag=0)


@message(versions=(1, 1))
class ShareUpdateKey(GroupKey):
    group_id: str = string()
    topic_id: UUID = uuid()
    partition: int = int32()


@message(versions=(0, 0), flexible_from=0)
class ShareUpdateValue(VersionedMessage):
    """A change since the snapshot of the same epoch; a leader epoch or start offset of -1 is unchanged."""

    snapshot_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    state_batches: list[StateBatch] = array(StateBatch)
    delivery_complete_count: int = int32(-1, tag=0)


RecordKind = tuple[type[GroupKey], type[VersionedMessage]]

GROUP_RECORDS: Final[dict[int, RecordKind]] = {
    key.MIN_VERSION: (key, value)
    for key, value in (
        (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
        (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
        (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
        (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
        (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
        (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
        (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
        (ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue),
        (ShareGroupMetadataKey, ShareGroupMetadataValue),
        (ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue),
        (ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue),
        (ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue),
        (ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue),
        (StreamsGroupMetadataKey, StreamsGroupMetadataValue),
        (StreamsGroupMemberMetadataKey, StreamsGroupMemberMetadataValue),
        (StreamsGroupTargetAssignmentMetadataKey, StreamsGroupTargetAssignmentMetadataValue),
        (StreamsGroupTargetAssignmentMemberKey, StreamsGroupTargetAssignmentMemberValue),
        (StreamsGroupCurrentMemberAssignmentKey, StreamsGroupCurrentMemberAssignmentValue),
        (StreamsGroupTopologyKey, StreamsGroupTopologyValue),
    )
}
"""The classes of key and value by the kind that opens a key of `__consumer_offsets`, from 3 on."""

SHARE_STATE_RECORDS: Final[dict[int, RecordKind]] = {
    0: (ShareSnapshotKey, ShareSnapshotValue),
    1: (ShareUpdateKey, ShareUpdateValue),
}
"""The classes of key and value by the kind that opens a key of `__share_group_state`."""


def key_bytes(key: GroupKey) -> bytes:
    """Return a key with its kind in front."""
    return key.to_bytes(key.MIN_VERSION)


def decode_record(
    key: Buffer, value: Buffer | None, kinds: dict[int, RecordKind] = GROUP_RECORDS
) -> tuple[GroupKey, VersionedMessage | None]:
    """Read a record whose key is of one of `kinds`. Raises MalformedMessage, for other kinds too."""
    kind = version_of(key)
    if kind not in kinds:
        raise MalformedMessage("GroupKey", kind, "version", 0, "there is no such kind of record")
    key_class, value_class = kinds[kind]
    return key_class.from_bytes(key), None if value is None else value_class.from_bytes(value)
