"""Elections, reassignments and quotas, as the controller is asked for them."""

from __future__ import annotations

import pytest

from ottla.admin import CLIENT_ID, USER, Admin, Quota, Reassignment
from ottla.client.errors import UnsupportedByBroker
from ottla.client.testing import ScriptedBroker
from ottla.protocol.errors import ErrorCode, InvalidRequest, PreferredLeaderNotAvailable
from ottla.protocol.messages import client_quotas
from ottla.protocol.messages import elect_leaders as electing
from ottla.protocol.messages import partition_reassignments as listing
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.topics import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_an_election_returns_the_outcome_of_each_partition() -> None:
    results = [
        electing.PartitionResult(partition_id=0, error_code=ErrorCode.ELECTION_NOT_NEEDED),
        electing.PartitionResult(partition_id=1, error_code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
    ]
    found = [electing.ReplicaElectionResult(topic="t", partition_result=results)]
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata())
        broker.on(
            electing.ElectLeadersRequest,
            lambda _: electing.ElectLeadersResponse(replica_election_results=found),
        )
        async with Admin(broker.bootstrap_servers) as admin:
            outcomes = await admin.partitions.elect_leaders([T0, T1])
            await admin.partitions.elect_leaders(unclean=True)

    assert outcomes[T0] is None
    assert isinstance(outcomes[T1], PreferredLeaderNotAvailable)
    asked = broker.seen(electing.ElectLeadersRequest)
    assert [(each.election_type, each.topic_partitions) for each in asked] == [
        (0, [electing.TopicPartitions(topic="t", partitions=[0, 1])]),
        (1, None),
    ]


async def test_an_old_broker_is_asked_for_no_unclean_election() -> None:
    async with ScriptedBroker({electing.ElectLeadersRequest.API_KEY: (0, 0)}) as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata())
        broker.on(electing.ElectLeadersRequest, lambda _: electing.ElectLeadersResponse())
        async with Admin(broker.bootstrap_servers) as admin:
            with pytest.raises(UnsupportedByBroker):
                await admin.partitions.elect_leaders([T0], unclean=True)
            assert await admin.partitions.elect_leaders([T0]) == {}


async def test_what_moves_is_listed() -> None:
    moving = listing.OngoingPartitionReassignment(
        partition_index=1, replicas=[3, 1], adding_replicas=[3], removing_replicas=[1]
    )
    topic = listing.OngoingTopicReassignment(name="t", partitions=[moving])
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata())
        broker.on(
            listing.ListPartitionReassignmentsRequest,
            lambda _: listing.ListPartitionReassignmentsResponse(topics=[topic]),
        )
        async with Admin(broker.bootstrap_servers) as admin:
            assert await admin.partitions.reassignments() == [Reassignment(T1, (3, 1), (3,), (1,))]
            await admin.partitions.reassignments([T1])

    asked = [each.topics for each in broker.seen(listing.ListPartitionReassignmentsRequest)]
    assert asked == [None, [listing.ListPartitionReassignmentsTopics(name="t", partition_indexes=[1])]]


async def test_quotas_are_read_set_and_removed() -> None:
    entry = client_quotas.EntryData(
        entity=[client_quotas.EntityData(entity_type=USER, entity_name=None)],
        values=[client_quotas.ValueData(key="producer_byte_rate", value=10.0)],
    )
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata())
        broker.on(
            client_quotas.DescribeClientQuotasRequest,
            lambda _: client_quotas.DescribeClientQuotasResponse(entries=[entry]),
        )
        codes = iter((ErrorCode.NONE, ErrorCode.INVALID_REQUEST))
        broker.on(
            client_quotas.AlterClientQuotasRequest,
            lambda _: client_quotas.AlterClientQuotasResponse(
                entries=[client_quotas.EntryDataResponse(error_code=next(codes))]
            ),
        )
        async with Admin(broker.bootstrap_servers) as admin:
            assert await admin.quotas.describe({USER: None}) == [
                Quota({USER: None}, {"producer_byte_rate": 10.0})
            ]
            await admin.quotas.alter(
                {CLIENT_ID: "shop"}, {"producer_byte_rate": 5, "request_percentage": None}
            )
            with pytest.raises(InvalidRequest):
                await admin.quotas.alter({CLIENT_ID: "shop"}, {"no_such_key": 5})

    (asked,) = broker.seen(client_quotas.DescribeClientQuotasRequest)
    assert asked.components == [client_quotas.ComponentData(entity_type=USER, match_type=1, match=None)]
    first = broker.seen(client_quotas.AlterClientQuotasRequest)[0].entries[0]
    assert [(each.key, each.value, each.remove) for each in first.ops] == [
        ("producer_byte_rate", 5.0, False),
        ("request_percentage", 0.0, True),
    ]
