"""The part of the table of the ACL matrix about groups whose coordinator assigns the partitions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final
from uuid import UUID

from ottla.protocol.acls import (
    Operation,
)
from ottla.protocol.acls import ResourceType as Type
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from ottla.protocol.messages.groups import ListGroupsRequest
from ottla.protocol.messages.share_groups import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    ShareGroupDescribeRequest,
)
from ottla.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteStateData,
    DeleteStatePartition,
    InitializeShareGroupStateRequest,
    InitializeStateData,
    InitializeStatePartition,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadStateData,
    ReadStatePartition,
    ReadStateSummaryData,
    ReadStateSummaryPartition,
    WriteShareGroupStateRequest,
    WriteStateData,
    WriteStatePartition,
)
from ottla.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from ottla.protocol.messages.streams_groups import StreamsGroupTopologyDescriptionUpdateRequest
from ottla.protocol.schema import Message
from peers.acl_probes import (
    BY_BROKER,
    CREATE,
    CREATE_TOPIC,
    DELETE_GROUP,
    DESCRIBE_GROUP,
    DESCRIBE_TOPIC,
    HIDDEN,
    NO_CLUSTER,
    NO_GROUP,
    NO_TOPIC,
    READ_GROUP,
    READ_TOPIC,
    Need,
    Probe,
    need,
)
from peers.acl_requests import (
    MEMBER,
    Facts,
    alter_configs,
    alter_share_offsets,
    consumer_heartbeat,
    describe_configs,
    incremental_alter_configs,
    share_acknowledge,
    share_fetch,
    share_heartbeat,
    share_offsets,
    streams_heartbeat,
    streams_heartbeat_that_creates,
)

Op = Operation

HEARTBEAT = (need(NO_GROUP, READ_GROUP), need(NO_TOPIC, DESCRIBE_TOPIC))
DESCRIPTION = (need(NO_GROUP, DESCRIBE_GROUP), need(NO_TOPIC, DESCRIBE_TOPIC))
SHARE_READ = (need(NO_GROUP, READ_GROUP), need(NO_TOPIC, READ_TOPIC))
NO_TOPIC_ID = UUID(int=7)


def newer(
    title: str,
    request: Callable[[Facts], Message],
    needs: tuple[Need, ...],
    served: int = E.NONE,
    **more: Any,
) -> Probe:
    """Return a probe of a request that Apache Kafka 3.9 does not know; a group is there if it has a kind."""
    return Probe(
        title, request, needs, served, is_of_kafka_4=True, group_exists=bool(more.get("group_kind")), **more
    )


def list_groups(kind: str, _: Facts) -> Message:
    """List groups of a kind, but not the one whose topics are missing: a probe makes it meanwhile."""
    return ListGroupsRequest(types_filter=[kind], states_filter=["Stable", "Reconciling"])


OF_NEWER_GROUPS: Final = (
    *(
        newer(
            f"ListGroups of {kind} groups",
            partial(list_groups, kind),
            (need(HIDDEN, (Op.DESCRIBE, Type.CLUSTER), DESCRIBE_GROUP),),
            group_kind=kind,
        )
        for kind in ("consumer", "share", "streams")
    ),
    newer("ConsumerGroupHeartbeat", consumer_heartbeat, HEARTBEAT, E.GROUP_ID_NOT_FOUND),
    newer(
        "ConsumerGroupDescribe",
        lambda facts: ConsumerGroupDescribeRequest(
            group_ids=[facts.name], include_authorized_operations=True
        ),
        DESCRIPTION,
        group_kind="consumer",
        operations_on=Type.GROUP,
    ),
    newer("ShareGroupHeartbeat", share_heartbeat, HEARTBEAT, E.GROUP_ID_NOT_FOUND),
    newer(
        "ShareGroupDescribe",
        lambda facts: ShareGroupDescribeRequest(group_ids=[facts.name], include_authorized_operations=True),
        DESCRIPTION,
        group_kind="share",
        operations_on=Type.GROUP,
    ),
    newer("ShareFetch", share_fetch, SHARE_READ, group_kind="share"),
    newer(
        "ShareAcknowledge",
        share_acknowledge,
        SHARE_READ,
        E.INVALID_RECORD_STATE,
        group_kind="share",
        first=share_fetch,
    ),
    newer("DescribeShareGroupOffsets", share_offsets, DESCRIPTION, group_kind="share"),
    newer(
        "DescribeShareGroupOffsets of all topics",
        lambda facts: share_offsets(facts, named=False),
        (need(NO_GROUP, DESCRIBE_GROUP), need(HIDDEN, DESCRIBE_TOPIC)),
        group_kind="share",
    ),
    newer("AlterShareGroupOffsets", alter_share_offsets, SHARE_READ, group_kind="share", is_left=True),
    newer(
        "AlterShareGroupOffsets of a group with members",
        alter_share_offsets,
        (need(NO_GROUP, READ_GROUP),),
        E.NON_EMPTY_GROUP,
        group_kind="share",
        shows=(READ_TOPIC,),
    ),
    newer(
        "DeleteShareGroupOffsets",
        lambda facts: DeleteShareGroupOffsetsRequest(
            group_id=facts.name, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=facts.name)]
        ),
        (need(NO_GROUP, DELETE_GROUP),),
        E.GROUP_ID_NOT_FOUND,
        shows=(READ_TOPIC,),
    ),
    newer(
        "InitializeShareGroupState",
        lambda facts: InitializeShareGroupStateRequest(
            group_id=facts.name,
            topics=[InitializeStateData(topic_id=NO_TOPIC_ID, partitions=[InitializeStatePartition()])],
        ),
        BY_BROKER,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    newer(
        "ReadShareGroupState",
        lambda facts: ReadShareGroupStateRequest(
            group_id=facts.name,
            topics=[ReadStateData(topic_id=NO_TOPIC_ID, partitions=[ReadStatePartition()])],
        ),
        BY_BROKER,
        E.INVALID_REQUEST,
    ),
    newer(
        "WriteShareGroupState",
        lambda facts: WriteShareGroupStateRequest(
            group_id=facts.name,
            topics=[WriteStateData(topic_id=NO_TOPIC_ID, partitions=[WriteStatePartition()])],
        ),
        BY_BROKER,
        E.INVALID_REQUEST,
    ),
    newer(
        "DeleteShareGroupState",
        lambda facts: DeleteShareGroupStateRequest(
            group_id=facts.name,
            topics=[DeleteStateData(topic_id=NO_TOPIC_ID, partitions=[DeleteStatePartition()])],
        ),
        BY_BROKER,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    newer(
        "ReadShareGroupStateSummary",
        lambda facts: ReadShareGroupStateSummaryRequest(
            group_id=facts.name,
            topics=[ReadStateSummaryData(topic_id=NO_TOPIC_ID, partitions=[ReadStateSummaryPartition()])],
        ),
        BY_BROKER,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    newer("StreamsGroupHeartbeat", streams_heartbeat, HEARTBEAT, E.INVALID_REQUEST),
    newer(
        "StreamsGroupHeartbeat that creates",
        streams_heartbeat_that_creates,
        (*HEARTBEAT, need(HIDDEN, CREATE, CREATE_TOPIC)),
        topic_exists=False,
    ),
    newer(
        "StreamsGroupDescribe",
        lambda facts: StreamsGroupDescribeRequest(group_ids=[facts.name], include_authorized_operations=True),
        DESCRIPTION,
        group_kind="streams",
        operations_on=Type.GROUP,
    ),
    newer(
        "StreamsGroupTopologyDescriptionUpdate",
        lambda facts: StreamsGroupTopologyDescriptionUpdateRequest(group_id=facts.name, member_id=MEMBER),
        (need(NO_GROUP, READ_GROUP),),
        E.UNSUPPORTED_VERSION,
    ),
    newer(
        "DescribeConfigs of a group",
        lambda facts: describe_configs(32, facts.name),
        (need(NO_GROUP, (Op.DESCRIBE_CONFIGS, Type.GROUP)),),
    ),
    newer(
        "AlterConfigs of a group",
        lambda facts: alter_configs(32, facts.name),
        (need(NO_GROUP, (Op.ALTER_CONFIGS, Type.GROUP)),),
    ),
    newer(
        "IncrementalAlterConfigs of a group",
        lambda facts: incremental_alter_configs(32, facts.name),
        (need(NO_GROUP, (Op.ALTER_CONFIGS, Type.GROUP)),),
    ),
    newer(
        "DescribeConfigs of client metrics",
        lambda facts: describe_configs(16, facts.name),
        (need(NO_CLUSTER, (Op.DESCRIBE_CONFIGS, Type.CLUSTER)),),
    ),
    newer(
        "IncrementalAlterConfigs of client metrics",
        lambda facts: incremental_alter_configs(16, facts.name),
        (need(NO_CLUSTER, (Op.ALTER_CONFIGS, Type.CLUSTER)),),
    ),
)
"""Requests about groups whose coordinator assigns the partitions, their settings, and client metrics."""
