"""Requests of the ACL matrix (`peers.acl_probes`): each about the resources of one name, and harmless."""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from uuid import UUID

from ottla.protocol.acls import (
    Operation,
)
from ottla.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from ottla.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    ShareGroupHeartbeatRequest,
)
from ottla.protocol.messages.share_sessions import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)
from ottla.protocol.messages.streams_group_describe import TopicInfo
from ottla.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from ottla.protocol.records import BatchBuilder
from ottla.protocol.schema import Message

Op = Operation

UNKNOWN_PRODUCER: Final = 1 << 40
MEMBER: Final = "the-member"
LATER_EPOCH: Final = 5
"""Of a member that has joined; one that joins has 0."""
TIMEOUT_MS: Final = 60_000
KEYS: Final = {
    2: ("retention.ms", "1"), 4: ("log.cleaner.threads", "1"), 16: ("interval.ms", "1000"),
    32: ("consumer.session.timeout.ms", "50000"),
}  # fmt: skip
"""A setting of each type of resource, and a value that it may have."""


class Facts(NamedTuple):
    """The names of a probe's resources: its topic, group and transactional id have the same."""

    name: str
    topic_id: UUID = UUID(int=0)
    broker_id: int = 1


def batch(*, transactional: bool) -> bytes:
    """Return a batch of one record; a transactional one is of a producer that no coordinator knows."""
    builder = BatchBuilder()
    builder.append(None, b"value", 1)
    if not transactional:
        return bytes(builder.build())
    return bytes(
        builder.build(producer_id=UNKNOWN_PRODUCER, producer_epoch=0, base_sequence=0, transactional=True)
    )


def produce(facts: Facts, *, transactional_id: str | None = None) -> Message:
    data = PartitionProduceData(index=0, records=batch(transactional=transactional_id is not None))
    topic = TopicProduceData(name=facts.name, topic_id=facts.topic_id, partition_data=[data])
    return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=10_000, topic_data=[topic])


def fetch(facts: Facts, *, replica_id: int = -1) -> Message:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 16)
    return FetchRequest(
        replica_id=replica_id,
        topics=[FetchTopic(topic=facts.name, topic_id=facts.topic_id, partitions=[partition])],
    )


def list_offsets(facts: Facts) -> Message:
    asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=facts.name, partitions=[asked])])


def metadata(facts: Facts, **more: Any) -> Message:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=facts.name)], allow_auto_topic_creation=False, **more
    )


def offset_commit(facts: Facts) -> Message:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topic = OffsetCommitRequestTopic(name=facts.name, topic_id=facts.topic_id, partitions=[partition])
    return OffsetCommitRequest(group_id=facts.name, topics=[topic])


def offset_fetch(facts: Facts, *, named: bool = True) -> Message:
    topic = OffsetFetchRequestTopics(name=facts.name, topic_id=facts.topic_id, partition_indexes=[0])
    topics = [topic] if named else None
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=facts.name, topics=topics)])


def offset_fetch_of_one(facts: Facts) -> Message:
    topic = OffsetFetchRequestTopic(name=facts.name, partition_indexes=[0])
    return OffsetFetchRequest(group_id=facts.name, topics=[topic])


def find_coordinator(facts: Facts, key_type: int) -> Message:
    return FindCoordinatorRequest(key_type=key_type, coordinator_keys=[facts.name])


def join_group(facts: Facts) -> Message:
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    return JoinGroupRequest(
        group_id=facts.name, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="",
        protocol_type="consumer", protocols=[protocol],
    )  # fmt: skip


def create_topics(facts: Facts, name: str | None = None) -> Message:
    topic = CreatableTopic(name=name or facts.name, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], validate_only=True)


def delete_topic(state: DeleteTopicState) -> Message:
    return DeleteTopicsRequest(topics=[state], timeout_ms=10_000)


def add_partitions(facts: Facts, topic: str | None = None) -> Message:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=facts.name,
        v3_and_below_producer_id=UNKNOWN_PRODUCER,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic or facts.name, partitions=[0])],
    )


def add_partitions_of_broker(facts: Facts) -> Message:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=facts.name,
        producer_id=UNKNOWN_PRODUCER,
        verify_only=True,
        topics=[AddPartitionsToTxnTopic(name=facts.name, partitions=[0])],
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


def txn_offset_commit(facts: Facts) -> Message:
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topic = TxnOffsetCommitRequestTopic(name=facts.name, partitions=[partition])
    return TxnOffsetCommitRequest(
        transactional_id=facts.name,
        group_id=facts.name,
        producer_id=UNKNOWN_PRODUCER,
        producer_epoch=0,
        topics=[topic],
    )


def txn_markers(facts: Facts) -> Message:
    topic = WritableTxnMarkerTopic(name=f"{facts.name}-unknown", partition_indexes=[0])
    return WriteTxnMarkersRequest(markers=[WritableTxnMarker(producer_id=1, topics=[topic])])


def describe_configs(kind: int, name: str) -> Message:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    return DescribeConfigsRequest(resources=[resource])


def alter_configs(kind: int, name: str, value: str | None = "1") -> Message:
    key, default = KEYS[kind]
    config = AlterableConfig(name=key, value=value and default)
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    return AlterConfigsRequest(resources=[resource], validate_only=True)


def incremental_alter_configs(kind: int, name: str, value: str | None = "1") -> Message:
    key, default = KEYS[kind]
    config = IncrementalAlterableConfig(name=key, config_operation=0, value=value and default)
    resource = IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)


def alter_log_dirs(facts: Facts) -> Message:
    topic = AlterReplicaLogDirTopic(name=facts.name, partitions=[0])
    return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/nowhere", topics=[topic])])


def delete_records(facts: Facts) -> Message:
    partition = DeleteRecordsPartition(partition_index=0, offset=0)
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=facts.name, partitions=[partition])], timeout_ms=10_000
    )


def offset_delete(facts: Facts) -> Message:
    partition = OffsetDeleteRequestPartition(partition_index=1)
    return OffsetDeleteRequest(
        group_id=facts.name, topics=[OffsetDeleteRequestTopic(name=facts.name, partitions=[partition])]
    )


def leader_epoch(facts: Facts) -> Message:
    asked = OffsetForLeaderPartition(partition=0, leader_epoch=0)
    return OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=facts.name, partitions=[asked])]
    )


def cancel_reassignment(facts: Facts) -> Message:
    topic = ReassignableTopic(name=facts.name, partitions=[ReassignablePartition(partition_index=0)])
    return AlterPartitionReassignmentsRequest(topics=[topic])


def consumer_heartbeat(facts: Facts, epoch: int = LATER_EPOCH) -> Message:
    return ConsumerGroupHeartbeatRequest(
        group_id=facts.name, member_id=MEMBER, member_epoch=epoch, rebalance_timeout_ms=TIMEOUT_MS,
        subscribed_topic_names=[facts.name], topic_partitions=[],
    )  # fmt: skip


def share_heartbeat(facts: Facts, epoch: int = LATER_EPOCH, topic: str | None = None) -> Message:
    return ShareGroupHeartbeatRequest(
        group_id=facts.name, member_id=MEMBER, member_epoch=epoch,
        subscribed_topic_names=[topic or facts.name],
    )  # fmt: skip


def streams_heartbeat(facts: Facts, epoch: int = LATER_EPOCH) -> Message:
    return _streams_heartbeat(facts, epoch, Subtopology(subtopology_id="reads", source_topics=[facts.name]))


def streams_heartbeat_that_creates(facts: Facts) -> Message:
    """Join with an internal topic of so many replicas that it never comes to be."""
    internal = TopicInfo(name=facts.name, partitions=1, replication_factor=99)
    part = Subtopology(
        subtopology_id="repartitions",
        repartition_sink_topics=[facts.name],
        repartition_source_topics=[internal],
    )
    return _streams_heartbeat(facts, 0, part)


def _streams_heartbeat(facts: Facts, epoch: int, part: Subtopology) -> Message:
    return StreamsGroupHeartbeatRequest(
        group_id=facts.name, member_id=MEMBER, member_epoch=epoch, rebalance_timeout_ms=TIMEOUT_MS,
        topology=Topology(epoch=1, subtopologies=[part]), process_id="process",
        active_tasks=[], standby_tasks=[], warmup_tasks=[],
    )  # fmt: skip


def share_fetch(facts: Facts) -> Message:
    topic = ShareFetchTopic(topic_id=facts.topic_id, partitions=[ShareFetchPartition(partition_index=0)])
    return ShareFetchRequest(
        group_id=facts.name, member_id=MEMBER, share_session_epoch=0, max_wait_ms=100, min_bytes=1,
        max_records=1, batch_size=1, topics=[topic],
    )  # fmt: skip


def share_acknowledge(facts: Facts) -> Message:
    batch = AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[1])
    partition = AcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])
    topic = AcknowledgeTopic(topic_id=facts.topic_id, partitions=[partition])
    return ShareAcknowledgeRequest(
        group_id=facts.name, member_id=MEMBER, share_session_epoch=1, topics=[topic]
    )


def share_offsets(facts: Facts, *, named: bool = True) -> Message:
    topic = DescribeShareGroupOffsetsRequestTopic(topic_name=facts.name, partitions=[0])
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=facts.name, topics=[topic] if named else None)
    return DescribeShareGroupOffsetsRequest(groups=[asked])


def alter_share_offsets(facts: Facts) -> Message:
    partition = AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    topic = AlterShareGroupOffsetsRequestTopic(topic_name=facts.name, partitions=[partition])
    return AlterShareGroupOffsetsRequest(group_id=facts.name, topics=[topic])
