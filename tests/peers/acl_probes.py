"""Which API asks for which permissions: the table of the ACL matrix (`peers.acl_matrix`).

`PROBES` has a request for each API and way of asking, with the permissions that it needs, in Apache Kafka's
order, and the error codes. No request changes anything that another one sees.

666 lines because it is one table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from ottla.protocol.acls import (
    CLUSTER_NAME,
    Operation,
)
from ottla.protocol.acls import ResourceType as Type
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.acls import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from ottla.protocol.messages.client_quotas import DescribeClientQuotasRequest
from ottla.protocol.messages.cluster import DescribeClusterRequest, FeatureUpdateKey, UpdateFeaturesRequest
from ottla.protocol.messages.configs import ListConfigResourcesRequest
from ottla.protocol.messages.control_requests import (
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from ottla.protocol.messages.controller_requests import AlterPartitionRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.open_transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    TopicRequest,
)
from ottla.protocol.messages.partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from ottla.protocol.messages.producer_ids import AllocateProducerIdsRequest, InitProducerIdRequest
from ottla.protocol.messages.scram_credentials import DescribeUserScramCredentialsRequest, UserName
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.protocol.messages.topic_descriptions import DescribeTopicPartitionsRequest
from ottla.protocol.messages.topic_descriptions import TopicRequest as TopicOfPage
from ottla.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
)
from ottla.protocol.schema import Message
from peers.acl_requests import (
    UNKNOWN_PRODUCER,
    Facts,
    add_partitions,
    add_partitions_of_broker,
    alter_configs,
    alter_log_dirs,
    cancel_reassignment,
    create_topics,
    delete_records,
    delete_topic,
    describe_configs,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    join_group,
    leader_epoch,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_fetch_of_one,
    produce,
    txn_markers,
    txn_offset_commit,
)

Op = Operation
HIDDEN: Final = -100
"""In place of an error code: the name does not stand in the response."""
STALE_EPOCH: Final = 1
"""A broker epoch that no running broker has: it makes brokers' requests harmless."""


class Need(NamedTuple):
    """Permissions of which a request needs one, and the error code without it."""

    permissions: tuple[tuple[Operation, Type], ...]
    refused: int


@dataclass(frozen=True)
class Probe:
    """One way to ask an API about the resources of one name."""

    title: str
    request: Callable[[Facts], Message]
    needs: tuple[Need, ...]
    served: int = E.NONE
    """The error code where nothing is refused: most requests are such that they change nothing."""
    version: int | None = None
    """The only version that is sent; the newest of both sides if None."""
    shows: tuple[tuple[Operation, Type], ...] = ()
    """Permissions that only decide about what else is shown."""
    operations_on: Type | None = None
    """The type of the resource whose authorized operations the response lists."""
    topic_exists: bool = True
    group_exists: bool = True
    suffix: str = ""
    """The end of the names, which may make them illegal ones."""
    is_deleted: bool = False
    """Whether a request that is served deletes the topic."""
    group_kind: str = ""
    """Of the group, which a heartbeat makes: consumer, share or streams; that of a commit if empty."""
    is_left: bool = False
    """Whether the group has no member any more."""
    first: Callable[[Facts], Message] | None = None
    """A request that goes before on the same connection."""
    is_of_kafka_4: bool = False
    """Whether Apache Kafka 3.9 does not know the request, or not in that version, or answers otherwise."""

    @property
    def name(self) -> str:
        """The name of its resources."""
        return "acl-" + "".join(char if char.isalnum() else "-" for char in self.title.lower()) + self.suffix

    @property
    def types(self) -> tuple[Type, ...]:
        """The types of the resources that matter to it."""
        named = [kind for need in self.needs for _, kind in need.permissions]
        named += [kind for _, kind in self.shows]
        if self.operations_on is not None:
            named.append(self.operations_on)
        return tuple(dict.fromkeys(named))

    def name_of(self, kind: Type) -> str:
        """Return the name of its resource of a type."""
        return CLUSTER_NAME if kind is Type.CLUSTER else self.name


# ---- the table


def need(refused: int, *permissions: tuple[Operation, Type]) -> Need:
    return Need(permissions, refused)


READ_TOPIC, WRITE_TOPIC = (Op.READ, Type.TOPIC), (Op.WRITE, Type.TOPIC)
CREATE_TOPIC, DELETE_TOPIC, ALTER_TOPIC = (
    (Op.CREATE, Type.TOPIC),
    (Op.DELETE, Type.TOPIC),
    (Op.ALTER, Type.TOPIC),
)
DESCRIBE_TOPIC, DESCRIBE_GROUP = (Op.DESCRIBE, Type.TOPIC), (Op.DESCRIBE, Type.GROUP)
READ_GROUP, DELETE_GROUP = (Op.READ, Type.GROUP), (Op.DELETE, Type.GROUP)
WRITE_TXN, DESCRIBE_TXN = (Op.WRITE, Type.TRANSACTIONAL_ID), (Op.DESCRIBE, Type.TRANSACTIONAL_ID)
CLUSTER_ACTION, ALTER = (Op.CLUSTER_ACTION, Type.CLUSTER), (Op.ALTER, Type.CLUSTER)
DESCRIBE, CREATE = (Op.DESCRIBE, Type.CLUSTER), (Op.CREATE, Type.CLUSTER)
NO_TOPIC, NO_GROUP = E.TOPIC_AUTHORIZATION_FAILED, E.GROUP_AUTHORIZATION_FAILED
NO_TXN, NO_CLUSTER = E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.CLUSTER_AUTHORIZATION_FAILED
BY_BROKER = (need(NO_CLUSTER, CLUSTER_ACTION),)


PROBES: Final = (
    Probe("Produce", produce, (need(NO_TOPIC, WRITE_TOPIC),)),
    Probe("Produce by id", produce, (need(NO_TOPIC, WRITE_TOPIC),), version=13, is_of_kafka_4=True),
    Probe("Produce v3", produce, (need(NO_TOPIC, WRITE_TOPIC),), version=3),
    Probe(
        "Produce unknown topic",
        produce,
        (need(NO_TOPIC, WRITE_TOPIC),),
        E.UNKNOWN_TOPIC_OR_PARTITION,
        topic_exists=False,
    ),
    Probe(
        "Produce transactional",
        lambda facts: produce(facts, transactional_id=facts.name),
        (need(NO_TXN, WRITE_TXN), need(NO_TOPIC, WRITE_TOPIC)),
        E.INVALID_PRODUCER_ID_MAPPING,
    ),
    Probe("Fetch by name", fetch, (need(NO_TOPIC, READ_TOPIC),), version=12),
    Probe("Fetch by id", fetch, (need(NO_TOPIC, READ_TOPIC),), version=17),
    Probe(
        "Fetch unknown topic",
        fetch,
        (need(NO_TOPIC, READ_TOPIC),),
        E.UNKNOWN_TOPIC_OR_PARTITION,
        12,
        topic_exists=False,
    ),
    Probe(
        "Fetch unknown id",
        lambda facts: fetch(facts._replace(topic_id=UUID(int=7))),
        (),
        E.UNKNOWN_TOPIC_ID,
        17,
        shows=(READ_TOPIC,),
        topic_exists=False,
    ),
    Probe(
        "Fetch of a follower",
        lambda facts: fetch(facts, replica_id=77),
        (need(NO_TOPIC, CLUSTER_ACTION),),
        E.NOT_LEADER_OR_FOLLOWER,
        12,
        shows=(READ_TOPIC,),
    ),
    Probe("ListOffsets", list_offsets, (need(NO_TOPIC, DESCRIBE_TOPIC),)),
    Probe("ListOffsets v0", list_offsets, (need(NO_TOPIC, DESCRIBE_TOPIC),), version=0),
    Probe("Metadata", metadata, (need(NO_TOPIC, DESCRIBE_TOPIC),)),
    Probe(
        "Metadata unknown topic",
        metadata,
        (need(NO_TOPIC, DESCRIBE_TOPIC),),
        E.UNKNOWN_TOPIC_OR_PARTITION,
        topic_exists=False,
    ),
    Probe(
        "Metadata by id",
        lambda facts: MetadataRequest(topics=[MetadataRequestTopic(topic_id=facts.topic_id, name=None)]),
        (need(NO_TOPIC, DESCRIBE_TOPIC),),
        version=12,
    ),
    Probe(
        "Metadata of all topics", lambda facts: MetadataRequest(topics=None), (need(HIDDEN, DESCRIBE_TOPIC),)
    ),
    Probe(
        "Metadata with operations",
        lambda facts: metadata(facts, include_topic_authorized_operations=True),
        (need(NO_TOPIC, DESCRIBE_TOPIC),),
        operations_on=Type.TOPIC,
    ),
    Probe(
        "Metadata with operations on the cluster",
        lambda facts: metadata(facts, include_cluster_authorized_operations=True),
        (need(NO_TOPIC, DESCRIBE_TOPIC),),
        version=10,
        operations_on=Type.CLUSTER,
    ),
    Probe(
        "Metadata that creates",
        # An illegal name is never created: what is asked for before is all that can be seen.
        lambda facts: MetadataRequest(topics=[MetadataRequestTopic(name=facts.name)]),
        (need(NO_TOPIC, DESCRIBE_TOPIC), need(NO_TOPIC, CREATE, CREATE_TOPIC)),
        E.INVALID_TOPIC_EXCEPTION,
        topic_exists=False,
        suffix="!",
    ),
    Probe("OffsetCommit", offset_commit, (need(NO_GROUP, READ_GROUP), need(NO_TOPIC, READ_TOPIC))),
    Probe(
        "OffsetCommit by id",
        offset_commit,
        (need(NO_GROUP, READ_GROUP), need(NO_TOPIC, READ_TOPIC)),
        version=10,
        is_of_kafka_4=True,
    ),
    Probe(
        "OffsetFetch by id",
        offset_fetch,
        (need(NO_GROUP, DESCRIBE_GROUP), need(NO_TOPIC, DESCRIBE_TOPIC)),
        version=10,
        is_of_kafka_4=True,
    ),
    Probe(
        "DescribeTopicPartitions",
        lambda facts: DescribeTopicPartitionsRequest(topics=[TopicOfPage(name=facts.name)]),
        (need(NO_TOPIC, DESCRIBE_TOPIC),),
        operations_on=Type.TOPIC,
        is_of_kafka_4=True,
    ),
    Probe(
        "DescribeTopicPartitions of all topics",
        lambda facts: DescribeTopicPartitionsRequest(),
        (need(HIDDEN, DESCRIBE_TOPIC),),
        operations_on=Type.TOPIC,
        is_of_kafka_4=True,
    ),
    Probe(
        "ListConfigResources",
        lambda facts: ListConfigResourcesRequest(resource_types=[2]),
        (need(NO_CLUSTER, (Op.DESCRIBE_CONFIGS, Type.CLUSTER)),),
        is_of_kafka_4=True,
    ),
    Probe(
        "OffsetCommit v0", offset_commit, (need(NO_GROUP, READ_GROUP), need(NO_TOPIC, READ_TOPIC)), version=0
    ),
    Probe("OffsetFetch", offset_fetch, (need(NO_GROUP, DESCRIBE_GROUP), need(NO_TOPIC, DESCRIBE_TOPIC))),
    Probe(
        "OffsetFetch v5",
        offset_fetch_of_one,
        (need(NO_GROUP, DESCRIBE_GROUP), need(NO_TOPIC, DESCRIBE_TOPIC)),
        version=5,
    ),
    Probe(
        "OffsetFetch of all topics",
        lambda facts: offset_fetch(facts, named=False),
        (need(NO_GROUP, DESCRIBE_GROUP), need(HIDDEN, DESCRIBE_TOPIC)),
    ),
    Probe(
        "FindCoordinator of a group",
        lambda facts: find_coordinator(facts, 0),
        (need(NO_GROUP, DESCRIBE_GROUP),),
        version=4,
    ),
    Probe(
        "FindCoordinator of a group v3",
        lambda facts: FindCoordinatorRequest(key=facts.name),
        (need(NO_GROUP, DESCRIBE_GROUP),),
        version=3,
    ),
    Probe(
        "FindCoordinator of a transactional id",
        lambda facts: find_coordinator(facts, 1),
        (need(NO_TXN, DESCRIBE_TXN),),
        version=4,
    ),
    Probe(
        "FindCoordinator of a share group",
        lambda facts: find_coordinator(facts, 2),
        BY_BROKER,
        E.INVALID_REQUEST,  # its key names no topic
        6,
        is_of_kafka_4=True,
    ),
    Probe("JoinGroup", join_group, (need(NO_GROUP, READ_GROUP),), E.MEMBER_ID_REQUIRED),
    Probe(
        "Heartbeat",
        lambda facts: HeartbeatRequest(group_id=facts.name, member_id="other"),
        (need(NO_GROUP, READ_GROUP),),
        E.UNKNOWN_MEMBER_ID,
    ),
    Probe(
        "LeaveGroup",
        lambda facts: LeaveGroupRequest(group_id=facts.name, members=[MemberIdentity(member_id="other")]),
        (need(NO_GROUP, READ_GROUP),),
        E.UNKNOWN_MEMBER_ID,
    ),
    Probe(
        "SyncGroup",
        lambda facts: SyncGroupRequest(
            group_id=facts.name, member_id="other", protocol_type="consumer", protocol_name="range"
        ),
        (need(NO_GROUP, READ_GROUP),),
        E.UNKNOWN_MEMBER_ID,
    ),
    Probe(
        "SyncGroup without a protocol",
        lambda facts: SyncGroupRequest(group_id=facts.name, member_id="other"),
        (),
        E.INCONSISTENT_GROUP_PROTOCOL,
        5,
        shows=(READ_GROUP,),
    ),
    Probe(
        "DescribeGroups",
        lambda facts: DescribeGroupsRequest(groups=[facts.name]),
        (need(NO_GROUP, DESCRIBE_GROUP),),
    ),
    Probe(
        "DescribeGroups with operations",
        lambda facts: DescribeGroupsRequest(groups=[facts.name], include_authorized_operations=True),
        (need(NO_GROUP, DESCRIBE_GROUP),),
        operations_on=Type.GROUP,
        is_of_kafka_4=True,  # whose groups have settings
    ),
    Probe("ListGroups", lambda facts: ListGroupsRequest(), (need(HIDDEN, DESCRIBE, DESCRIBE_GROUP),)),
    Probe(
        "DeleteGroups",
        lambda facts: DeleteGroupsRequest(groups_names=[facts.name]),
        (need(NO_GROUP, DELETE_GROUP),),
        E.GROUP_ID_NOT_FOUND,
        group_exists=False,
    ),
    Probe(
        "CreateTopics",
        create_topics,
        (need(NO_TOPIC, CREATE, CREATE_TOPIC),),
        shows=((Op.DESCRIBE_CONFIGS, Type.TOPIC),),
        topic_exists=False,
    ),
    Probe(
        "CreateTopics that exists",
        create_topics,
        (need(NO_TOPIC, CREATE, CREATE_TOPIC),),
        E.TOPIC_ALREADY_EXISTS,
        shows=((Op.DESCRIBE_CONFIGS, Type.TOPIC),),
    ),
    Probe(
        "DeleteTopics",
        lambda facts: delete_topic(DeleteTopicState(name=facts.name)),
        (need(NO_TOPIC, DELETE_TOPIC),),
        E.UNKNOWN_TOPIC_OR_PARTITION,
        6,
        topic_exists=False,
    ),
    Probe(
        "DeleteTopics v5",
        lambda facts: DeleteTopicsRequest(topic_names=[facts.name], timeout_ms=10_000),
        (need(NO_TOPIC, DELETE_TOPIC),),
        E.UNKNOWN_TOPIC_OR_PARTITION,
        5,
        topic_exists=False,
    ),
    Probe(
        "DeleteTopics by id",
        lambda facts: delete_topic(DeleteTopicState(topic_id=facts.topic_id)),
        (need(NO_TOPIC, DESCRIBE_TOPIC), need(NO_TOPIC, DELETE_TOPIC)),
        version=6,
        is_deleted=True,
    ),
    Probe(
        "DeleteTopics by unknown id",
        lambda facts: delete_topic(DeleteTopicState(topic_id=UUID(int=7))),
        (),
        E.UNKNOWN_TOPIC_ID,
        6,
        shows=(DELETE_TOPIC,),
        topic_exists=False,
    ),
    Probe(
        "CreatePartitions",
        lambda facts: CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=facts.name, count=3, assignments=None)],
            timeout_ms=10_000,
            validate_only=True,
        ),
        (need(NO_TOPIC, ALTER_TOPIC),),
    ),
    Probe("DeleteRecords", delete_records, (need(NO_TOPIC, DELETE_TOPIC),)),
    Probe(
        "InitProducerId",
        lambda facts: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000),
        (need(NO_CLUSTER, (Op.IDEMPOTENT_WRITE, Type.CLUSTER), WRITE_TOPIC),),
    ),
    Probe(
        "InitProducerId of a transactional id",
        lambda facts: InitProducerIdRequest(transactional_id=facts.name, transaction_timeout_ms=0),
        (need(NO_TXN, WRITE_TXN),),
        E.INVALID_TRANSACTION_TIMEOUT,
    ),
    Probe("OffsetForLeaderEpoch", leader_epoch, (need(NO_TOPIC, CLUSTER_ACTION, DESCRIBE_TOPIC),)),
    Probe(
        "AddPartitionsToTxn",
        add_partitions,
        (need(NO_TXN, WRITE_TXN), need(NO_TOPIC, WRITE_TOPIC)),
        E.INVALID_PRODUCER_ID_MAPPING,
        3,
    ),
    Probe(
        "AddPartitionsToTxn of an internal topic",
        lambda facts: add_partitions(facts, "__consumer_offsets"),
        (need(NO_TXN, WRITE_TXN),),
        NO_TOPIC,
        3,
        shows=(WRITE_TOPIC,),
    ),
    Probe(
        "AddPartitionsToTxn of brokers", add_partitions_of_broker, BY_BROKER, E.INVALID_PRODUCER_ID_MAPPING, 5
    ),
    Probe(
        "AddOffsetsToTxn",
        lambda facts: AddOffsetsToTxnRequest(
            transactional_id=facts.name, producer_id=UNKNOWN_PRODUCER, group_id=facts.name
        ),
        (need(NO_TXN, WRITE_TXN), need(NO_GROUP, READ_GROUP)),
        E.INVALID_PRODUCER_ID_MAPPING,
    ),
    Probe(
        "EndTxn",
        lambda facts: EndTxnRequest(transactional_id=facts.name, producer_id=UNKNOWN_PRODUCER),
        (need(NO_TXN, WRITE_TXN),),
        E.INVALID_PRODUCER_ID_MAPPING,
    ),
    Probe(
        "WriteTxnMarkers",
        txn_markers,
        (need(NO_CLUSTER, ALTER, CLUSTER_ACTION),),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    Probe(
        "TxnOffsetCommit",
        txn_offset_commit,
        (need(NO_TXN, WRITE_TXN), need(NO_GROUP, READ_GROUP), need(NO_TOPIC, READ_TOPIC)),
        E.INVALID_PRODUCER_ID_MAPPING,
    ),
    Probe(
        "DescribeConfigs of a topic",
        lambda facts: describe_configs(2, facts.name),
        (need(NO_TOPIC, (Op.DESCRIBE_CONFIGS, Type.TOPIC)),),
    ),
    Probe(
        "DescribeConfigs of a broker",
        lambda facts: describe_configs(4, str(facts.broker_id)),
        (need(NO_CLUSTER, (Op.DESCRIBE_CONFIGS, Type.CLUSTER)),),
    ),
    Probe(
        "AlterConfigs of a topic",
        lambda facts: alter_configs(2, facts.name),
        (need(NO_TOPIC, (Op.ALTER_CONFIGS, Type.TOPIC)),),
    ),
    Probe(
        "AlterConfigs with null",
        lambda facts: alter_configs(2, facts.name, None),
        (),
        E.INVALID_REQUEST,
        shows=((Op.ALTER_CONFIGS, Type.TOPIC),),
    ),
    Probe(
        "AlterConfigs of a broker",
        lambda facts: alter_configs(4, str(facts.broker_id)),
        (need(NO_CLUSTER, (Op.ALTER_CONFIGS, Type.CLUSTER)),),
    ),
    Probe(
        "IncrementalAlterConfigs of a topic",
        lambda facts: incremental_alter_configs(2, facts.name),
        (need(NO_TOPIC, (Op.ALTER_CONFIGS, Type.TOPIC)),),
    ),
    Probe(
        "IncrementalAlterConfigs with null",
        lambda facts: incremental_alter_configs(2, facts.name, None),
        (),
        E.INVALID_REQUEST,
        shows=((Op.ALTER_CONFIGS, Type.TOPIC),),
    ),
    Probe(
        "IncrementalAlterConfigs of a broker",
        lambda facts: incremental_alter_configs(4, str(facts.broker_id)),
        (need(NO_CLUSTER, (Op.ALTER_CONFIGS, Type.CLUSTER)),),
    ),
    Probe("AlterReplicaLogDirs", alter_log_dirs, (need(NO_CLUSTER, ALTER),), E.LOG_DIR_NOT_FOUND),
    Probe(
        "DescribeLogDirs",
        lambda facts: DescribeLogDirsRequest(
            topics=[DescribableLogDirTopic(topic=facts.name, partitions=[0])]
        ),
        (need(NO_CLUSTER, DESCRIBE),),
    ),
    Probe(
        "ElectLeaders",
        lambda facts: ElectLeadersRequest(
            topic_partitions=[TopicPartitions(topic=facts.name, partitions=[0])]
        ),
        (need(NO_CLUSTER, ALTER),),
        E.ELECTION_NOT_NEEDED,
    ),
    Probe(
        "AlterPartitionReassignments",
        cancel_reassignment,
        (need(NO_CLUSTER, ALTER),),
        E.NO_REASSIGNMENT_IN_PROGRESS,
    ),
    Probe(
        "ListPartitionReassignments",
        lambda facts: ListPartitionReassignmentsRequest(topics=None),
        (need(NO_CLUSTER, DESCRIBE),),
    ),
    Probe("OffsetDelete", offset_delete, (need(NO_GROUP, DELETE_GROUP), need(NO_TOPIC, READ_TOPIC))),
    Probe(
        "UpdateFeatures",
        lambda facts: UpdateFeaturesRequest(
            feature_updates=[FeatureUpdateKey(feature="f", max_version_level=1)]
        ),
        (need(NO_CLUSTER, ALTER),),
        E.INVALID_REQUEST,
    ),
    Probe(
        "DescribeProducers",
        lambda facts: DescribeProducersRequest(topics=[TopicRequest(name=facts.name, partition_indexes=[0])]),
        (need(NO_TOPIC, READ_TOPIC),),
    ),
    Probe(
        "DescribeProducers with an illegal name",
        lambda facts: DescribeProducersRequest(topics=[TopicRequest(name="a b", partition_indexes=[0])]),
        (),
        E.INVALID_TOPIC_EXCEPTION,
        shows=(READ_TOPIC,),
    ),
    Probe("DescribeCluster", lambda facts: DescribeClusterRequest(), (), shows=(DESCRIBE,)),
    Probe(
        "DescribeCluster with operations",
        lambda facts: DescribeClusterRequest(include_cluster_authorized_operations=True),
        (),
        operations_on=Type.CLUSTER,
    ),
    Probe(
        "DescribeTransactions",
        lambda facts: DescribeTransactionsRequest(transactional_ids=[facts.name]),
        (need(NO_TXN, DESCRIBE_TXN),),
        shows=(DESCRIBE_TOPIC,),
    ),
    Probe("ListTransactions", lambda facts: ListTransactionsRequest(), (need(HIDDEN, DESCRIBE_TXN),)),
    Probe(
        "LeaderAndIsr",
        lambda facts: LeaderAndIsrRequest(broker_epoch=STALE_EPOCH),
        BY_BROKER,
        E.STALE_BROKER_EPOCH,
    ),
    Probe(
        "StopReplica",
        lambda facts: StopReplicaRequest(broker_epoch=STALE_EPOCH),
        BY_BROKER,
        E.STALE_BROKER_EPOCH,
    ),
    Probe(
        "UpdateMetadata",
        lambda facts: UpdateMetadataRequest(broker_epoch=STALE_EPOCH),
        BY_BROKER,
        E.STALE_BROKER_EPOCH,
    ),
    Probe(
        "AlterPartition",
        lambda facts: AlterPartitionRequest(broker_id=facts.broker_id, broker_epoch=STALE_EPOCH),
        BY_BROKER,
        E.STALE_BROKER_EPOCH,
    ),
    Probe(
        "AllocateProducerIds",
        lambda facts: AllocateProducerIdsRequest(broker_id=facts.broker_id, broker_epoch=STALE_EPOCH),
        BY_BROKER,
        E.STALE_BROKER_EPOCH,
    ),
    Probe(
        "DescribeAcls",
        lambda facts: DescribeAclsRequest(
            resource_type_filter=2,
            resource_name_filter="nothing",
            pattern_type_filter=3,
            operation=1,
            permission_type=1,
        ),
        (need(NO_CLUSTER, DESCRIBE),),
    ),
    Probe("CreateAcls", lambda facts: CreateAclsRequest(creations=[]), (need(HIDDEN, ALTER),), HIDDEN),
    Probe("DeleteAcls", lambda facts: DeleteAclsRequest(filters=[]), (need(HIDDEN, ALTER),), HIDDEN),
    Probe(
        "DescribeClientQuotas",
        lambda facts: DescribeClientQuotasRequest(),
        (need(NO_CLUSTER, (Op.DESCRIBE_CONFIGS, Type.CLUSTER)),),
    ),
    Probe(
        "DescribeUserScramCredentials",
        lambda facts: DescribeUserScramCredentialsRequest(users=[UserName(name="nobody")]),
        (need(NO_CLUSTER, DESCRIBE),),
        E.RESOURCE_NOT_FOUND,
    ),
)
