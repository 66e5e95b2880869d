"""A cluster that lets nobody use transactions, as one with ACLs may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from ottla.client.cluster import TRANSACTION
from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse


@asynccontextmanager
async def denied_transactions() -> AsyncIterator[str]:
    """Run it, with whatever topics are asked for, empty and compacted; give its bootstrap servers."""
    async with ScriptedBroker() as broker:

        def metadata(request: MetadataRequest) -> MetadataResponse:
            return broker.metadata(*[each.name or "" for each in request.topics or []])

        broker.on(MetadataRequest, metadata)
        broker.on(FindCoordinatorRequest, partial(_coordinator, broker))
        broker.on(DescribeConfigsRequest, _configs)
        broker.on(ListOffsetsRequest, _offsets)
        yield broker.bootstrap_servers


def _coordinator(broker: ScriptedBroker, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if request.key_type == TRANSACTION:
        return FindCoordinatorResponse(
            error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, node_id=-1, host="", port=-1
        )
    return FindCoordinatorResponse(node_id=NODE_ID, host=broker.host, port=broker.port)


def _configs(request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    policy = DescribeConfigsResourceResult(name="cleanup.policy", value="compact")
    results = [
        DescribeConfigsResult(
            resource_type=each.resource_type, resource_name=each.resource_name, configs=[policy]
        )
        for each in request.resources
    ]
    return DescribeConfigsResponse(results=results)


def _offsets(request: ListOffsetsRequest) -> ListOffsetsResponse:
    topics = [
        ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                ListOffsetsPartitionResponse(partition_index=each.partition_index, offset=0)
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return ListOffsetsResponse(topics=topics)
