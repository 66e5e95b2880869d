"""Questions to leaders, and what becomes of them where leaders leave."""

from __future__ import annotations

import asyncio

from ottla.client.cluster import Cluster
from ottla.client.retry import is_retriable
from ottla.client.testing import ScriptedBroker
from ottla.consumer.fetch.offset_lookups import EARLIEST, OffsetLookups
from ottla.protocol.messages.log_offsets import ListOffsetsRequest, ListOffsetsResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.topics import TopicPartition

PLACE = TopicPartition("t", 0)


async def test_a_leader_that_left_before_it_was_asked_is_no_error_that_lasts() -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(60):
        broker.on(MetadataRequest, lambda _: broker.metadata("t"))
        broker.on(ListOffsetsRequest, lambda _: ListOffsetsResponse())
        async with Cluster(broker.bootstrap_servers) as cluster:
            await cluster.topic("t")
            lookups = OffsetLookups(cluster, read_committed=False)
            asking = asyncio.create_task(lookups.once_by_time({PLACE: EARLIEST}))
            await asyncio.sleep(0)  # whom to ask is settled, and nobody was asked
            cluster.nodes = {}

            answers = await asking

    assert not answers.found
    assert is_retriable(answers.failed[PLACE])
