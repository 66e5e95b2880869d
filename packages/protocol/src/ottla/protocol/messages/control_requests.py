"""From the controller to brokers: roles of replicas, metadata of the cluster, and replicas to stop."""

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
    int64,
    message,
    nullable_string,
    string,
    uuid,
)


class LeaderAndIsrPartitionState(Struct):
    topic_name: str = string(until=1, ignorable=True)
    partition_index: int = int32()
    controller_epoch: int = int32()
    leader: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array(int32)
    partition_epoch: int = int32()
    replicas: list[int] = array(int32)
    adding_replicas: list[int] = array(int32, since=3, ignorable=True)
    removing_replicas: list[int] = array(int32, since=3, ignorable=True)
    is_new: bool = boolean(since=1, ignorable=True)
    leader_recovery_state: int = int8(since=6)


class LeaderAndIsrTopicState(Struct):
    topic_name: str = string()
    topic_id: UUID = uuid(since=5, ignorable=True)
    partition_states: list[LeaderAndIsrPartitionState] = array(LeaderAndIsrPartitionState)


class LeaderAndIsrLiveLeader(Struct):
    broker_id: int = int32()
    host_name: str = string()
    port: int = int32()


@message(api_key=4, versions=(0, 7), flexible_from=4)
class LeaderAndIsrRequest(Message):
    """Makes a broker leader or follower of partitions.

    Version 1 marks new replicas, 2 groups partitions by topic and adds the broker epoch (KIP-380), 3
    reassignments (KIP-455), 4 is flexible, 5 says whether the partitions are all there are and has topic ids
    (KIP-516), 6 leader recovery (KIP-704), 7 migration to KRaft (KIP-866).
    """

    controller_id: int = int32()
    is_kraft_controller: bool = boolean(since=7)
    controller_epoch: int = int32()
    broker_epoch: int = int64(-1, since=2, ignorable=True)
    type: int = int8(since=5)
    ungrouped_partition_states: list[LeaderAndIsrPartitionState] = array(LeaderAndIsrPartitionState, until=1)
    topic_states: list[LeaderAndIsrTopicState] = array(LeaderAndIsrTopicState, since=2)
    live_leaders: list[LeaderAndIsrLiveLeader] = array(LeaderAndIsrLiveLeader)


class LeaderAndIsrPartitionError(Struct):
    topic_name: str = string(until=4, ignorable=True)
    partition_index: int = int32()
    error_code: int = int16()


class LeaderAndIsrTopicError(Struct):
    topic_id: UUID = uuid()
    partition_errors: list[LeaderAndIsrPartitionError] = array(LeaderAndIsrPartitionError)


@message(api_key=4, versions=(0, 7), flexible_from=4)
class LeaderAndIsrResponse(Message):
    """Says which partitions took the new state; by topic id since version 5 (KIP-516)."""

    error_code: int = int16()
    partition_errors: list[LeaderAndIsrPartitionError] = array(LeaderAndIsrPartitionError, until=4)
    topics: list[LeaderAndIsrTopicError] = array(LeaderAndIsrTopicError, since=5)


class UpdateMetadataPartitionState(Struct):
    topic_name: str = string(until=4, ignorable=True)
    partition_index: int = int32()
    controller_epoch: int = int32()
    leader: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array(int32)
    zk_version: int = int32()
    replicas: list[int] = array(int32)
    offline_replicas: list[int] = array(int32, since=4, ignorable=True)


class UpdateMetadataTopicState(Struct):
    topic_name: str = string()
    topic_id: UUID = uuid(since=7, ignorable=True)
    partition_states: list[UpdateMetadataPartitionState] = array(UpdateMetadataPartitionState)


class UpdateMetadataEndpoint(Struct):
    port: int = int32()
    host: str = string()
    listener: str = string(since=3, ignorable=True)
    security_protocol: int = int16()


class UpdateMetadataBroker(Struct):
    id: int = int32()
    v0_host: str = string(until=0, ignorable=True)
    v0_port: int = int32(until=0, ignorable=True)
    endpoints: list[UpdateMetadataEndpoint] = array(UpdateMetadataEndpoint, since=1, ignorable=True)
    rack: str | None = nullable_string(since=2, ignorable=True)


@message(api_key=6, versions=(0, 8), flexible_from=6)
class UpdateMetadataRequest(Message):
    """Replaces a broker's metadata of partitions and of live brokers.

    Version 1 adds endpoints, 2 racks, 3 listener names (KIP-103), 4 offline replicas (KIP-112), 5 groups
    partitions by topic and adds the broker epoch (KIP-380), 6 is flexible, 7 has topic ids (KIP-516), 8
    migration to KRaft (KIP-866).
    """

    controller_id: int = int32()
    is_kraft_controller: bool = boolean(since=8)
    type: int = int8(since=8, tag=0)
    controller_epoch: int = int32()
    broker_epoch: int = int64(-1, since=5, ignorable=True)
    ungrouped_partition_states: list[UpdateMetadataPartitionState] = array(
        UpdateMetadataPartitionState, until=4
    )
    topic_states: list[UpdateMetadataTopicState] = array(UpdateMetadataTopicState, since=5)
    live_brokers: list[UpdateMetadataBroker] = array(UpdateMetadataBroker)


@message(api_key=6, versions=(0, 8), flexible_from=6)
class UpdateMetadataResponse(Message):
    """Acknowledges, or refuses an old controller."""

    error_code: int = int16()


class StopReplicaPartitionV0(Struct):
    topic_name: str = string()
    partition_index: int = int32()


class StopReplicaTopicV1(Struct):
    name: str = string()
    partition_indexes: list[int] = array(int32)


class StopReplicaPartitionState(Struct):
    partition_index: int = int32()
    leader_epoch: int = int32(-1)
    delete_partition: bool = boolean()


class StopReplicaTopicState(Struct):
    topic_name: str = string()
    partition_states: list[StopReplicaPartitionState] = array(StopReplicaPartitionState)


@message(api_key=5, versions=(0, 4), flexible_from=2)
class StopReplicaRequest(Message):
    """Stops replicas, and deletes those it says.

    Version 1 adds the broker epoch (KIP-380), 3 leader epochs and the decision to delete per partition
    (KIP-570), 4 migration to KRaft (KIP-866).
    """

    controller_id: int = int32()
    is_kraft_controller: bool = boolean(since=4)
    controller_epoch: int = int32()
    broker_epoch: int = int64(-1, since=1, ignorable=True)
    delete_partitions: bool = boolean(until=2)
    ungrouped_partitions: list[StopReplicaPartitionV0] = array(StopReplicaPartitionV0, until=0)
    topics: list[StopReplicaTopicV1] = array(StopReplicaTopicV1, since=1, until=2)
    topic_states: list[StopReplicaTopicState] = array(StopReplicaTopicState, since=3)


class StopReplicaPartitionError(Struct):
    topic_name: str = string()
    partition_index: int = int32()
    error_code: int = int16()


@message(api_key=5, versions=(0, 4), flexible_from=2)
class StopReplicaResponse(Message):
    """Says which replicas stopped."""

    error_code: int = int16()
    partition_errors: list[StopReplicaPartitionError] = array(StopReplicaPartitionError)
