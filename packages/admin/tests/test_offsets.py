from __future__ import annotations

from ottla.admin.offsets import LATEST, Offsets
from ottla.client.cluster import Cluster
from ottla.client.config import ClientConfig
from ottla.client.testing import NODE_ID, ScriptedBroker
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
