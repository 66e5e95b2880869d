"""From the controller to brokers: stop replicas."""

from __future__ import annotations

from ottla.protocol.schema import Message, Struct, array, boolean, int16, int32, int64, message, string


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
