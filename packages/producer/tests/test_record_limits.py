"""The limits in records, of the queue and of batches, and metadata that are refreshed at each send."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pyarrow as pa
import pytest

from ottla.client.testing import ScriptedBroker
from ottla.producer import BufferFull, Producer, ProducerConfig, SyncProducer
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records import decode_records
from peers.accepting_broker import acknowledged, batches, serving

NEVER_MS = 3_600_000


def sizes(broker: ScriptedBroker) -> list[int]:
    return [len(decode_records(batch)) for batch in batches(broker)]


def configured(**properties: Any) -> ProducerConfig:
    return ProducerConfig.from_properties(
        {name.replace("_", "."): value for name, value in properties.items()}
    )


async def test_a_batch_is_full_and_sent_once_it_has_batch_num_messages() -> None:
    config = configured(batch_num_messages="3", linger_ms=str(NEVER_MS))
    async with serving(ScriptedBroker()) as broker, asyncio.timeout(60):
        async with Producer(broker.bootstrap_servers, config) as producer:
            sent = [await producer.send("t", b"%d" % number) for number in range(6)]
            await asyncio.wait([record.future() for record in sent])
            many = await producer.send_many("t", [b"x"] * 6)
            await many
            await (await producer.send_arrow("t", pa.table({"value": [b"x"] * 6})))
            batch = producer.create_batch()
            taken = [batch.append(value=b"x") is not None for _ in range(5)]
            await (await producer.send_batch(batch, "t", partition=0))

    assert sizes(broker) == [3] * 7
    assert taken == [True] * 3 + [False] * 2


async def test_a_full_queue_of_messages_holds_up_every_call_for_max_block_ms() -> None:
    config = configured(queue_buffering_max_messages="4", max_block_ms="30", linger_ms=str(NEVER_MS))
    words = "4 records wait to be sent after 30 ms; queue_buffering_max_messages allows 4"
    async with serving(ScriptedBroker()) as broker, asyncio.timeout(60):
        async with Producer(broker.bootstrap_servers, config) as producer:
            await producer.partitions_for("t")
            broker.ignore(ProduceRequest)
            for _ in range(4):
                await producer.send("t", b"x")
            with pytest.raises(BufferFull, match=words):
                await producer.send("t", b"x")
            with pytest.raises(BufferFull, match="queue_buffering_max_messages allows 4"):
                producer.send_nowait("t", b"x")
            with pytest.raises(BufferFull, match=words):
                await producer.send_many("t", [b"x"] * 2)
            with pytest.raises(BufferFull, match=words):
                await producer.send_arrow("t", pa.table({"value": [b"x"]}))
            broker.on(ProduceRequest, lambda request: acknowledged(request, 0))
            broker.drop_connections()
            await producer.flush()
            await (await producer.send_many("t", [b"x"] * 4, partition=0))

    assert sum(sizes(broker)) >= 8


async def test_records_that_wait_for_metadata_count_in_the_queue() -> None:
    async with serving(ScriptedBroker()) as broker, asyncio.timeout(60):
        async with Producer(broker.bootstrap_servers, queue_buffering_max_messages=2) as producer:
            broker.ignore(MetadataRequest)
            for _ in range(2):
                producer.send_nowait("other", b"x")
            with pytest.raises(BufferFull, match="2 records wait to be sent; queue_buffering_max_messages"):
                producer.send_nowait("other", b"x")
            broker.on(MetadataRequest, lambda _: broker.metadata("t", "other"))
            broker.drop_connections()


async def test_the_queue_of_a_synchronous_producer_has_the_limit_too() -> None:
    def use(servers: str) -> None:
        producer = SyncProducer(servers, queue_buffering_max_messages=5, max_block_ms=20).start()
        goes_on = threading.Event()
        producer._thread.post(goes_on.wait)  # nothing leaves the queue meanwhile
        try:
            sent = [producer.send("t", b"x") for _ in range(5)]
            with pytest.raises(BufferFull, match=r"5 records wait .*; queue_buffering_max_messages allows 5"):
                producer.send("t", b"x")
        finally:
            goes_on.set()
        for record in sent:
            record.result(30)
        producer.stop(30)

    async with serving(ScriptedBroker()) as broker, asyncio.timeout(60):
        await asyncio.to_thread(use, broker.bootstrap_servers)


class GrowingTopic:
    """The topic `t`, which has one more partition at each request."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = serving(broker)
        self.partitions = 0
        broker.on(MetadataRequest, self._metadata)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        if not request.topics:
            return self._broker.metadata()
        self.partitions += 1
        return self._broker.metadata("t", partitions=self.partitions)


async def test_a_refresh_interval_of_0_refreshes_metadata_at_each_send() -> None:
    properties = {"topic.metadata.refresh.interval.ms": "0", "linger.ms": "0"}
    async with ScriptedBroker() as broker, asyncio.timeout(60):
        topic = GrowingTopic(broker)
        config = ProducerConfig.from_properties(properties)
        async with Producer(broker.bootstrap_servers, config) as producer:
            seen = []
            for _ in range(3):
                await producer.send("t", b"x")
                seen.append(topic.partitions)
            await producer.send_nowait("t", b"x")
            seen.append(topic.partitions)
            await (await producer.send_many("t", [b"x"] * 3))
            seen.append(topic.partitions)

    assert seen == [1, 2, 3, 4, 5]


async def test_a_refresh_that_fails_at_a_send_leaves_the_metadata_that_are_known() -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(60):
        GrowingTopic(broker)
        config = ProducerConfig(metadata_refresh_at_each_send=True, max_block_ms=50)
        async with Producer(broker.bootstrap_servers, config) as producer:
            await producer.send_and_wait("t", b"x", partition=0)
            broker.on(MetadataRequest, lambda _: None)  # closes the connection
            assert (await producer.send_and_wait("t", b"x", partition=0)).partition == 0
            assert (await producer.send_nowait("t", b"x", partition=0)).partition == 0


async def test_without_it_metadata_are_not_refreshed_at_each_send() -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(60):
        topic = GrowingTopic(broker)
        async with Producer(broker.bootstrap_servers) as producer:
            for _ in range(3):
                await producer.send_and_wait("t", b"x")

    assert topic.partitions == 1
