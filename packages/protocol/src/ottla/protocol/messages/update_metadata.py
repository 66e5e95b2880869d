"""From the controller to brokers: the metadata of the cluster."""

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
