"""The marker topic at a broker that lost part of it."""

from __future__ import annotations

import pytest

from ottla.client.cluster import Cluster
from ottla.client.config import ClientConfig
from ottla.client.errors import DeadlineExceeded
from ottla.client.testing import ScriptedBroker
from ottla.pipeline.sink.errors import MarkersUnreadable
from ottla.pipeline.sink.markers import MarkerTopic
from ottla.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest


def serving(broker: ScriptedBroker, end: int, high_watermark: int) -> ScriptedBroker:
    """Make a broker report an end offset for a topic, and return no records."""
    policy = DescribeConfigsResourceResult(name="cleanup.policy", value="compact")
    configs = DescribeConfigsResult(resource_type=2, resource_name="m", configs=[policy])
    listed = ListOffsetsPartitionResponse(partition_index=0, offset=end)
    fetched = PartitionData(partition_index=0, high_watermark=high_watermark)
    broker.on(MetadataRequest, lambda _: broker.metadata("m"))
    broker.on(DescribeConfigsRequest, lambda _: DescribeConfigsResponse(results=[configs]))
    broker.on(
        ListOffsetsRequest,
        lambda _: ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="m", partitions=[listed])]),
    )
    broker.on(
        FetchRequest,
        lambda _: FetchResponse(responses=[FetchableTopicResponse(topic="m", partitions=[fetched])]),
    )
    return broker


async def test_markers_that_are_gone_are_not_waited_for_without_an_end() -> None:
    config = ClientConfig(default_api_timeout_ms=4_000)
    async with ScriptedBroker() as broker:
        serving(broker, end=10, high_watermark=5)
        async with Cluster(broker.bootstrap_servers, config) as cluster:
            with pytest.raises(MarkersUnreadable, match="up to offset 10, but for 4000 ms it ended at 5"):
                await MarkerTopic(cluster, "m").of("q")


async def test_a_leader_that_does_not_answer_has_lost_nothing() -> None:
    config = ClientConfig(default_api_timeout_ms=300)
    async with ScriptedBroker() as broker:
        serving(broker, end=10, high_watermark=10).ignore(FetchRequest)
        async with Cluster(broker.bootstrap_servers, config) as cluster:
            with pytest.raises(DeadlineExceeded, match=r"reading markers did not succeed within 0\.3 s"):
                await MarkerTopic(cluster, "m").of("q")


async def test_offsets_that_compaction_emptied_are_read() -> None:
    async with ScriptedBroker() as broker:
        serving(broker, end=10, high_watermark=10)
        async with Cluster(broker.bootstrap_servers) as cluster:
            assert await MarkerTopic(cluster, "m").of("q") == {}
