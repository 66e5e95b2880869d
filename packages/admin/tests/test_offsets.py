from __future__ import annotations

from ottla.admin.offsets import LATEST, Offsets
from ottla.client.cluster import Cluster
from ottla.client.config import ClientConfig
from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
)
from ottla.protocol.topics import TopicPartition

IMPATIENT = ClientConfig(default_api_timeout_ms=300, retry_backoff_ms=5, retry_backoff_max_ms=20)


async def test_a_leader_that_left_while_others_were_looked_up_is_looked_up_again() -> None:
    async with ScriptedBroker() as broker:
        gone = 7

        def metadata(request: MetadataRequest) -> MetadataResponse:
            names = [each.name or "" for each in request.topics or ()]
            is_first = names == ["a"] and len(broker.seen(MetadataRequest)) == 2
            answer = broker.metadata(*names, leader=gone if is_first else NODE_ID)
            if is_first:
                answer.brokers[0].node_id = gone
            return answer

        def offsets(request: ListOffsetsRequest) -> ListOffsetsResponse:
            found = [
                ListOffsetsTopicResponse(name=each.name, partitions=[ListOffsetsPartitionResponse(offset=5)])
                for each in request.topics
            ]
            return ListOffsetsResponse(topics=found)

        broker.on(MetadataRequest, metadata)
        broker.on(ListOffsetsRequest, offsets)
        async with Cluster(broker.bootstrap_servers, IMPATIENT) as cluster:
            wanted = {TopicPartition("a", 0): LATEST, TopicPartition("b", 0): LATEST}
            assert await Offsets(cluster).find(wanted) == dict.fromkeys(wanted, 5)


async def test_a_leader_is_asked_for_a_thousand_ends_at_a_time_and_those_that_it_gave_stay() -> None:
    async with ScriptedBroker() as broker:
        counts: list[int] = []

        def offsets(request: ListOffsetsRequest) -> ListOffsetsResponse:
            counts.append(sum(len(topic.partitions) for topic in request.topics))
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER if len(counts) == 3 else ErrorCode.NONE
            return ListOffsetsResponse(
                topics=[
                    ListOffsetsTopicResponse(
                        name=topic.name,
                        partitions=[
                            ListOffsetsPartitionResponse(
                                partition_index=partition.partition_index, offset=5, error_code=error
                            )
                            for partition in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ]
            )

        broker.on(MetadataRequest, lambda _: broker.metadata("wide", partitions=2_500))
        broker.on(ListOffsetsRequest, offsets)
        async with Cluster(broker.bootstrap_servers, IMPATIENT) as cluster:
            await cluster.topic("wide")
            wanted = [TopicPartition("wide", index) for index in range(2_500)]
            found = await Offsets(cluster).find_reachable(dict.fromkeys(wanted, LATEST))

    assert counts == [1_000, 1_000, 500]
    assert found == dict.fromkeys(wanted[:2_000], 5)
