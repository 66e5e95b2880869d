"""The controller assigns roles to replicas: leader or follower."""

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
