"""Answers that Kafka's clients and test suites look at closely, from a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.broker.testing import BrokerThread
from ottla.client.cluster import Cluster
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

WRITE = 1 << 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("answers")) as broker:
        yield broker


async def created(cluster: Cluster, name: str) -> CreateTopicsResponse:
    topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1)
    return await cluster.send_to_controller(
        CreateTopicsRequest(topics=[topic], timeout_ms=30_000), CreateTopicsResponse
    )


async def test_a_topic_that_was_created_has_no_error_message(broker: BrokerThread) -> None:
    async with Cluster(broker.bootstrap_servers) as cluster:
        answer = (await created(cluster, "made")).topics[0]

    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)


async def test_a_cluster_is_not_written_to(broker: BrokerThread) -> None:
    async with Cluster(broker.bootstrap_servers) as cluster:
        asked = MetadataRequest(topics=[], include_cluster_authorized_operations=True)
        metadata = await cluster.send(cluster.controller_id, asked, MetadataResponse, max_version=10)
        described = await cluster.send_to_any(
            DescribeClusterRequest(include_cluster_authorized_operations=True), DescribeClusterResponse
        )

    assert metadata.cluster_authorized_operations == described.cluster_authorized_operations
    assert described.cluster_authorized_operations > 0
    assert not described.cluster_authorized_operations & WRITE


async def test_an_election_without_time_to_wait_tells_the_outcome_of_each_partition(
    broker: BrokerThread,
) -> None:
    async with Cluster(broker.bootstrap_servers) as cluster:
        await created(cluster, "elected")
        request = ElectLeadersRequest(
            topic_partitions=[TopicPartitions(topic="elected", partitions=[0, 1, 7])], timeout_ms=0
        )
        answer = await cluster.send_to_controller(request, ElectLeadersResponse)

    assert answer.error_code == ErrorCode.NONE
    outcomes = {
        one.partition_id: one.error_code
        for topic in answer.replica_election_results
        for one in topic.partition_result
    }
    assert outcomes == {
        0: ErrorCode.ELECTION_NOT_NEEDED,
        1: ErrorCode.ELECTION_NOT_NEEDED,
        7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
