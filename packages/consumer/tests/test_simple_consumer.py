"""The stateless consumer against brokers that do what they are told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from ottla.client.testing import ScriptedBroker
from ottla.consumer import SimpleConsumer
from ottla.consumer.errors import ConsumerClosed
from ottla.consumer.simple import EARLIEST, LATEST, FetchFrom
from ottla.protocol.errors import MessageTooLarge, NotLeaderOrFollower, UnknownTopicOrPartition
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

OFFSETS = {EARLIEST: 3, LATEST: 9, 1_000: 5, 2_000: -1}


def fetched(**partition: Any) -> FetchResponse:
    data = PartitionData(partition_index=0, **partition)
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])


def listed(request: ListOffsetsRequest, segments: list[int] | None = None) -> ListOffsetsResponse:
    asked = request.topics[0].partitions[0]
    given = ListOffsetsPartitionResponse(partition_index=0)
    if segments is None:
        given.offset = OFFSETS[asked.timestamp]
    else:
        given.old_style_offsets = segments[: asked.max_num_offsets]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[given])])


async def test_a_connection_that_broke_is_made_anew_within_a_call() -> None:
    async with ScriptedBroker() as broker:
        answers = iter([None, fetched(high_watermark=7)])
        broker.on(FetchRequest, lambda _: next(answers))
        async with SimpleConsumer(broker.bootstrap_servers) as consumer:
            empty = await consumer.fetch("t", 0, 7)

    assert (len(empty), empty.next_offset, empty.high_watermark) == (0, 7, 7)
    assert broker.connections == 2


async def test_a_broker_that_does_not_lead_is_no_leader_and_one_that_says_nothing_does_not_know() -> None:
    async with ScriptedBroker() as broker:
        broker.on(FetchRequest, lambda _: fetched(error_code=NotLeaderOrFollower.code))
        async with SimpleConsumer(broker.bootstrap_servers) as consumer:
            with pytest.raises(NotLeaderOrFollower):
                await consumer.fetch("t", 0, 0)
            refused, unanswered = await consumer.multi_fetch([FetchFrom("t", 0, 0), FetchFrom("u", 0, 0)])

    assert isinstance(refused.error, NotLeaderOrFollower)
    assert isinstance(unanswered.error, UnknownTopicOrPartition)


async def test_a_record_that_an_old_broker_cuts_off_is_too_large() -> None:
    async with ScriptedBroker() as broker:
        broker.on(FetchRequest, lambda _: fetched(records=b"\x00" * 8 + b"\x00\x00\x01\x00" + b"\x00" * 48))
        async with SimpleConsumer(broker.bootstrap_servers) as consumer:
            with pytest.raises(MessageTooLarge, match="raise max_bytes"):
                await consumer.fetch("t", 0, 0, max_bytes=60)


async def test_brokers_that_list_segments_are_asked_for_them() -> None:
    async with ScriptedBroker() as broker:
        broker.on(ListOffsetsRequest, lambda request: listed(request, [9, 6, 3]))
        async with SimpleConsumer(broker.bootstrap_servers) as consumer:
            assert await consumer.offsets_before("t", 0, LATEST, 2) == [9, 6]

    assert broker.requests[-1][1] == 0


@pytest.mark.parametrize(
    ("time_ms", "most", "expected"),
    [(LATEST, 1, [9]), (LATEST, 5, [9, 3]), (EARLIEST, 5, [3]), (1_000, 2, [5, 3]), (2_000, 2, [3])],
)
async def test_brokers_that_do_not_list_segments_say_where_a_partition_begins_and_ends(
    time_ms: int, most: int, expected: list[int]
) -> None:
    async with ScriptedBroker({ListOffsetsRequest.API_KEY: (1, 9)}) as broker:
        broker.on(ListOffsetsRequest, listed)
        async with SimpleConsumer(broker.bootstrap_servers) as consumer:
            assert await consumer.offsets_before("t", 0, time_ms, most) == expected


async def test_every_request_of_a_consumer_that_is_not_open_raises() -> None:
    async with ScriptedBroker() as broker:
        closed = SimpleConsumer(broker.bootstrap_servers)
        async with closed:
            connections = broker.connections
        for consumer in (SimpleConsumer(broker.bootstrap_servers), closed):
            requests: list[Coroutine[Any, Any, Any]] = [
                consumer.fetch("t", 0, 0),
                consumer.multi_fetch([]),
                consumer.offsets_before("t", 0),
                consumer.topic_metadata("t"),
                consumer.find_leader("t", 0),
            ]
            for request in requests:
                with pytest.raises(ConsumerClosed, match="async with"):
                    await request
        assert broker.connections == connections


def test_importing_the_consumer_imports_neither_kazoo_nor_the_old_consumers() -> None:
    code = (
        "import sys, ottla.consumer; old = [n for n in sys.modules if 'kazoo' in n or 'consumer.z' in n]; "
        "from ottla.consumer import ZookeeperConsumerConnector; assert not old, old; "
        "assert not [n for n in sys.modules if n.startswith('kazoo')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
