from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.client.config import ClientConfig
from ottla.client.errors import ClientClosed, UnsupportedByBroker
from ottla.client.testing import ScriptedBroker
from ottla.producer import (
    DeliveryTimeout,
    Producer,
    ProducerClosed,
    ProducerConfig,
    ProducerInterceptor,
    RecordTooLarge,
)
from ottla.producer.cli import Partitions
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode, MessageTooLarge
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import (
    ProduceRequest,
)
from ottla.protocol.messages.producer_ids import InitProducerIdRequest
from ottla.protocol.records import decode_records, magic_at, read_header
from ottla.protocol.topics import TopicPartition
from peers.accepting_broker import acknowledged, batches, serving

FAST = ClientConfig(retry_backoff_ms=5, retry_backoff_max_ms=20)


async def test_records_are_gathered_into_one_batch_and_acknowledged_each() -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, linger_ms=20) as producer:
            sent = [await producer.send("t", b"%d" % n, headers=[("h", b"x")]) for n in range(3)]
            done = await asyncio.gather(*sent)

    (batch,) = batches(broker)
    assert [each.offset for each in done] == [100, 101, 102]
    assert [record.value for record in decode_records(batch)] == [b"0", b"1", b"2"]
    assert (read_header(batch).producer_id, read_header(batch).base_sequence) == (9, 0)


async def test_a_repeated_batch_keeps_its_sequence() -> None:
    errors = [0, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS]
    async with serving(ScriptedBroker(), lambda: errors.pop() if errors else 0) as broker:
        async with Producer(broker.bootstrap_servers, ProducerConfig(client=FAST)) as producer:
            await producer.send_and_wait("t", b"once")
            await producer.send_and_wait("t", b"then")

    assert [read_header(batch).base_sequence for batch in batches(broker)] == [0, 0, 0, 1]


async def test_an_error_that_stays_fails_the_records_and_starts_a_new_producer_id() -> None:
    errors = [0, ErrorCode.MESSAGE_TOO_LARGE]
    async with serving(ScriptedBroker(), lambda: errors.pop()) as broker:
        async with Producer(broker.bootstrap_servers, ProducerConfig(client=FAST)) as producer:
            with pytest.raises(MessageTooLarge):
                await producer.send_and_wait("t", b"too much")
            await producer.send_and_wait("t", b"less")

    assert len(broker.seen(InitProducerIdRequest)) == 2
    assert [read_header(batch).base_sequence for batch in batches(broker)] == [0, 0]


async def test_a_batch_is_sent_again_after_its_connection_broke() -> None:
    async with serving(ScriptedBroker()) as broker:
        hang_up = [True]
        broker.on(ProduceRequest, lambda request: None if hang_up.pop() else acknowledged(request, 0))
        hang_up.insert(0, False)
        async with Producer(broker.bootstrap_servers, ProducerConfig(client=FAST)) as producer:
            assert (await producer.send_and_wait("t", b"x")).offset == 100

    assert len(batches(broker)) == 2


async def test_a_record_without_acknowledgement_fails_after_the_delivery_timeout() -> None:
    async with serving(ScriptedBroker(), lambda: ErrorCode.NOT_LEADER_OR_FOLLOWER) as broker:
        config = ProducerConfig(client=FAST, delivery_timeout_ms=100)
        async with Producer(broker.bootstrap_servers, config) as producer:
            with pytest.raises(DeliveryTimeout, match="t-0"):
                await producer.send_and_wait("t", b"x")


async def test_leaving_the_block_sends_the_records_that_wait() -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, linger_ms=60_000) as producer:
            waiting = await producer.send("t", b"x")

    assert waiting.result().offset == 100


async def test_leaving_the_block_sends_records_that_wait_for_metadata() -> None:
    async with ScriptedBroker() as broker:
        async with Producer(serving(broker).bootstrap_servers) as producer:
            producer._cluster.forget("t")
            waiting = producer.send_nowait("t", b"x")

    assert waiting.result().offset == 100


async def test_closing_can_be_cancelled_while_a_broker_does_not_answer() -> None:
    async with serving(ScriptedBroker()) as broker:
        broker.ignore(ProduceRequest)
        producer = Producer(broker.bootstrap_servers)
        await producer.start()
        waiting = await producer.send("t", b"x")
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await producer.stop()

        with pytest.raises(ProducerClosed):
            await waiting


async def test_a_send_that_waits_for_metadata_fails_when_the_producer_closes() -> None:
    async with serving(ScriptedBroker()) as broker, asyncio.timeout(60):
        producer = Producer(broker.bootstrap_servers, max_block_ms=-1)
        await producer.start()
        sending = asyncio.create_task(producer.send("nowhere", b"x"))
        while not any(each.topics for each in broker.seen(MetadataRequest)):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

        await producer.stop()

        with pytest.raises(ClientClosed):
            await sending


async def test_a_producer_that_could_not_be_started_can_be_started_again() -> None:
    async with ScriptedBroker() as broker:  # it serves no Metadata yet
        producer = Producer(broker.bootstrap_servers, ProducerConfig(client=FAST))
        with pytest.raises(UnsupportedByBroker):
            await producer.start()

        serving(broker)
        await producer.start()
        await producer.send_and_wait("t", b"x")
        await producer.stop()
        async with producer:
            await producer.send_and_wait("t", b"y")

    assert [read_header(batch).base_sequence for batch in batches(broker)] == [0, 1]


class CancelsAtFirst(ProducerInterceptor):
    """Cancels a task when the first batch leaves."""

    task: asyncio.Task[None] | None = None

    def on_batch(self, partition: TopicPartition, record_count: int, size_bytes: int) -> None:
        task, self.task = self.task, None
        if task is not None:
            task.cancel()


async def test_a_request_that_was_cancelled_before_its_first_step_is_not_in_flight_after_a_restart() -> None:
    canceller = CancelsAtFirst()
    async with serving(ScriptedBroker()) as broker, asyncio.timeout(60):
        producer = Producer(
            broker.bootstrap_servers,
            linger_ms=60_000,  # so that the batch leaves as the block is left, where nothing is waited for
            acks=0,  # its requests are tasks
            max_in_flight_requests_per_connection=1,
            interceptors=[canceller],
        )

        async def use() -> None:
            async with producer:
                await producer.send("t", b"x")

        canceller.task = asyncio.create_task(use())
        with pytest.raises(asyncio.CancelledError):
            await canceller.task
        assert not batches(broker)

        await use()

    assert len(batches(broker)) == 1


class ForgetsItsBrokers(ProducerInterceptor):
    """Forgets the brokers as the first batch is sent, as if another task had refreshed them."""

    nodes: dict[int, Any] | None = None

    def on_batch(self, partition: TopicPartition, record_count: int, size_bytes: int) -> None:
        nodes, self.nodes = self.nodes, None
        if nodes is not None:
            nodes.clear()


async def test_a_batch_is_sent_to_the_next_leader_when_its_leader_left_the_cluster() -> None:
    forgetting = ForgetsItsBrokers()
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, interceptors=[forgetting]) as producer:
            await producer.partitions_for("t")
            forgetting.nodes = producer._cluster.nodes

            assert (await producer.send_and_wait("t", b"x")).offset == 100

    assert len(batches(broker)) == 1


async def test_an_old_broker_gets_the_old_format() -> None:
    async with serving(ScriptedBroker({ApiKey.PRODUCE: (0, 2)})) as broker:
        async with Producer(broker.bootstrap_servers, enable_idempotence=False) as producer:
            await producer.send_and_wait("t", b"x", key=b"k")

    assert magic_at(batches(broker)[0]) == 1


async def test_buffer_memory_bounds_the_records_that_wait() -> None:
    async with serving(ScriptedBroker()) as broker:
        config = ProducerConfig(buffer_memory=2_000, batch_size=500, linger_ms=0)
        async with Producer(broker.bootstrap_servers, config) as producer:
            for number in range(100):
                await producer.send("t", b"x" * 200)
                assert producer._accumulator.size_bytes <= 2_000 + 300, number

    assert sum(read_header(batch).record_count for batch in batches(broker)) == 100


async def test_a_record_that_cannot_be_sent_is_rejected_at_once() -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, max_request_size=1_000) as producer:
            with pytest.raises(RecordTooLarge):
                await producer.send("t", b"x" * 1_000)
        with pytest.raises(ProducerClosed):
            await producer.send("t", b"x")


@pytest.mark.parametrize(
    "wrong", [{"acks": 2}, {"compression_type": "rar"}, {"linger_ms": -1}, {"batch_size": 0}]
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Producer("127.0.0.1:9092", **wrong)


async def test_lines_for_an_unknown_partition_are_rejected_at_once() -> None:
    async with (
        ScriptedBroker() as broker,
        Producer(bootstrap_servers=serving(broker, partitions=2).bootstrap_servers) as producer,
    ):
        with pytest.raises(ValueError, match="topic 't' has no partition 7, only 0 to 1"):
            await Partitions(producer, "t").check(7)

    assert not broker.seen(ProduceRequest)
