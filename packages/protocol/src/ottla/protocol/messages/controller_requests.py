"""From brokers to the controller: a proposed set of in-sync replicas, and leaders to move away."""

from __future__ import annotations

from uuid import UUID

from ottla.protocol.schema import Message, Struct, array, int8, int16, int32, int64, message, string, uuid


class BrokerState(Struct):
    broker_id: int = int32()
    broker_epoch: int = int64(-1)


class PartitionData(Struct):
    partition_index: int = int32()
    leader_epoch: int = int32()
    new_isr: list[int] = array(int32, until=2)
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, since=3)
    leader_recovery_state: int = int8(since=1)
    partition_epoch: int = int32()


class TopicData(Struct):
    topic_name: str = string(until=1, ignorable=True)
    topic_id: UUID = uuid(since=2, ignorable=True)
    partitions: list[PartitionData] = array(PartitionData)


@message(api_key=56, versions=(0, 3), flexible_from=0)
class AlterPartitionRequest(Message):
    """Asks the controller to accept an ISR (KIP-497).

    Version 1 adds leader recovery (KIP-704), 2 topic ids (KIP-841), 3 the epoch of every replica's broker
    (KIP-903).
    """

    broker_id: int = int32()
    broker_epoch: int = int64(-1)
    topics: list[TopicData] = array(TopicData)


class PartitionDataResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array(int32)
    leader_recovery_state: int = int8(since=1, ignorable=True)
    partition_epoch: int = int32()


class TopicDataResponse(Struct):
    topic_name: str = string(until=1, ignorable=True)
    topic_id: UUID = uuid(since=2, ignorable=True)
    partitions: list[PartitionDataResponse] = array(PartitionDataResponse)


@message(api_key=56, versions=(0, 3), flexible_from=0)
class AlterPartitionResponse(Message):
    """Gives each partition's state as the controller has it."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: list[TopicDataResponse] = array(TopicDataResponse)


@message(api_key=7, versions=(0, 3), flexible_from=3)
class ControlledShutdownRequest(Message):
    """Announces that a broker wants to stop.

    Version 0 travels without a client id in its header; 1 is ordinary; 2 adds the broker epoch (KIP-380).
    """

    broker_id: int = int32()
    broker_epoch: int = int64(-1, since=2, ignorable=True)


class RemainingPartition(Struct):
    topic_name: str = string()
    partition_index: int = int32()


@message(api_key=7, versions=(0, 3), flexible_from=3)
class ControlledShutdownResponse(Message):
    """Lists the partitions the broker still leads."""

    error_code: int = int16()
    remaining_partitions: list[RemainingPartition] = array(RemainingPartition)
