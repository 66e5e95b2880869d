"""How batches find their way: numbers, leaders, and what happens when neither is to be had."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.testing import free_port
from ottla.client.config import ClientConfig
from ottla.client.errors import RequestTimeout
from ottla.client.testing import ScriptedBroker
from ottla.producer import DeliveryTimeout, Producer, ProducerConfig
from ottla.protocol.errors import ErrorCode, MessageTooLarge
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.records import decode_records, read_header
from peers.accepting_broker import acknowledged, batches, serving

FAST = ClientConfig(retry_backoff_ms=5, retry_backoff_max_ms=20)
ONE_EACH: dict[str, Any] = {"batch_size": 1, "linger_ms": 0}


async def test_nothing_follows_the_first_batch_before_it_is_acknowledged() -> None:
    """A broker that knows nothing of a producer takes any number: the second batch would be first."""
    errors = [0, 0, 0, ErrorCode.NOT_ENOUGH_REPLICAS]
    async with serving(ScriptedBroker(), lambda: errors.pop()) as broker:
        async with Producer(broker.bootstrap_servers, ProducerConfig(client=FAST, **ONE_EACH)) as producer:
            for value in (b"a", b"b", b"c"):
                producer.send_nowait("t", value, partition=0)

    assert [decode_records(batch)[0].value for batch in batches(broker)] == [b"a", b"a", b"b", b"c"]
    assert [read_header(batch).base_sequence for batch in batches(broker)] == [0, 0, 1, 2]


async def test_at_most_five_batches_of_a_partition_are_in_flight() -> None:
    async with serving(ScriptedBroker()) as broker, asyncio.timeout(30):
        config = ProducerConfig(client=ClientConfig(max_in_flight_requests_per_connection=50), **ONE_EACH)
        async with Producer(broker.bootstrap_servers, config) as producer:
            await producer.send_and_wait("t", b"x", partition=0)
            broker.ignore(ProduceRequest)
            for _ in range(60):
                producer.send_nowait("t", b"x", partition=0)
            for _ in range(100):  # a pass takes one turn of the loop
                await asyncio.sleep(0)
            in_flight = producer.metrics.in_flight()
            broker.on(ProduceRequest, lambda request: acknowledged(request, 0))
            broker.drop_connections()

    assert in_flight == 5


async def test_a_batch_that_is_packed_while_the_producer_id_is_dropped_is_numbered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(ScriptedBroker(), partitions=2) as broker:
        async with Producer(broker.bootstrap_servers, compression_type="gzip", linger_ms=0) as producer:
            failing = producer.send_nowait("t", b"x", partition=1)

            async def late(pack: Callable[..., Any], *how: Any) -> None:
                await asyncio.wait([failing.future()])
                pack(*how)

            def refuse(request: ProduceRequest) -> ProduceResponse:
                broker.on(ProduceRequest, lambda later: acknowledged(later, 0))
                producer.send_nowait("t", os.urandom(200_000), partition=0)
                return acknowledged(request, ErrorCode.MESSAGE_TOO_LARGE)

            monkeypatch.setattr(asyncio, "to_thread", late)
            broker.on(ProduceRequest, refuse)
            with pytest.raises(MessageTooLarge):
                await failing

    assert [read_header(batch).producer_id for batch in batches(broker)] == [9, 9]


async def test_the_metadata_of_a_partition_without_a_leader_is_refreshed_with_pauses() -> None:
    async with serving(ScriptedBroker()) as broker:

        def half_led(_: MetadataRequest) -> MetadataResponse:
            answer = broker.metadata("t", partitions=2)
            answer.topics[0].partitions[1].leader_id = -1
            return answer

        broker.on(MetadataRequest, half_led)
        async with Producer(broker.bootstrap_servers, delivery_timeout_ms=500) as producer:
            waiting = await producer.send("t", b"x", partition=1)
            assert (await producer.send_and_wait("t", b"x", partition=0)).offset == 100
            with pytest.raises(DeliveryTimeout):
                await waiting

    # One each 100 ms or so, where a loop without pauses asks a thousand times and more.
    assert len(broker.seen(MetadataRequest)) < 20


async def test_with_acks_0_records_wait_for_a_broker_that_is_down() -> None:
    async with serving(ScriptedBroker()) as broker:
        ports = [free_port(), free_port(), broker.port]  # where it says it is, the first time for starting

        def moving(_: MetadataRequest) -> MetadataResponse:
            answer = broker.metadata("t")
            answer.brokers[0].port = ports.pop(0) if len(ports) > 1 else ports[0]
            return answer

        broker.on(MetadataRequest, moving)
        config = ProducerConfig(client=FAST, acks=0)
        async with Producer(broker.bootstrap_servers, config) as producer:
            assert (await producer.send_and_wait("t", b"x")).offset == -1
            await producer.flush()

    assert ports == [broker.port]


async def test_a_broker_that_does_not_answer_does_not_prolong_the_delivery_timeout() -> None:
    async with serving(ScriptedBroker()) as broker:
        broker.ignore(ProduceRequest)
        config = ProducerConfig(delivery_timeout_ms=100)
        producer = Producer(broker.bootstrap_servers, config)
        await producer.start()
        waiting = producer.send_nowait("t", b"x")
        with pytest.raises(DeliveryTimeout):
            await waiting
        assert producer.metrics.in_flight() == 1
        assert producer._accumulator.size_bytes == 0
        broker.drop_connections()
        await producer.stop()


@pytest.mark.parametrize("address", [("a" * 70, 9092), ("127.0.0.1", 70_000)], ids=["host", "port"])
async def test_a_broker_at_an_impossible_address_does_not_end_the_producer(address: tuple[str, int]) -> None:
    async with serving(ScriptedBroker()) as broker:
        lies = [address]

        def lying(_: MetadataRequest) -> MetadataResponse:
            answer = broker.metadata("t")
            if lies:
                answer.brokers[0].host, answer.brokers[0].port = lies.pop()
            return answer

        broker.on(MetadataRequest, lying)
        async with Producer(broker.bootstrap_servers, ProducerConfig(client=FAST)) as producer:
            assert (await producer.send_and_wait("t", b"x")).offset == 100


async def test_a_broker_that_stops_reading_does_not_stop_a_producer_with_acks_0() -> None:
    async with serving(ScriptedBroker()) as broker:
        config = ProducerConfig(
            client=ClientConfig(request_timeout_ms=200, retry_backoff_ms=5),
            acks=0,
            delivery_timeout_ms=60_000,
        )
        async with Producer(broker.bootstrap_servers, config) as producer:
            await producer.partitions_for("t")
            connection = await producer._cluster.connection(1)
            for writer in broker._writers:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
            sent = await producer.send_many("t", [bytes(900_000)] * 20)
            with pytest.raises(RequestTimeout):
                await sent
            assert not connection.is_open


async def test_a_batch_that_was_too_large_is_split_on_a_thread_and_keeps_its_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = [0, 0, 0, ErrorCode.MESSAGE_TOO_LARGE, 0]
    threads: list[threading.Thread] = []
    async with serving(ScriptedBroker(), lambda: errors.pop()) as broker:
        async with Producer(broker.bootstrap_servers, compression_type="gzip", linger_ms=0) as producer:
            await producer.send_and_wait("t", b"first")
            halves = producer._accumulator.halves

            def noting(*what: Any) -> Any:
                threads.append(threading.current_thread())
                return halves(*what)

            class Noting:
                def __getattr__(self, name: str) -> Any:
                    return noting if name == "halves" else getattr(producer._accumulator, name)

            monkeypatch.setattr(producer._sender._completion, "_accumulator", Noting())
            sent = await producer.send_many("t", [b"%d" % n for n in range(10)])
            producer._accumulator.close_open_batches()
            await sent
            await producer.send_and_wait("t", b"last")

    assert threads
    assert threads[0] is not threading.main_thread()
    written = [[record.value for record in decode_records(batch)] for batch in batches(broker)]
    numbers = [b"%d" % n for n in range(10)]
    assert written == [[b"first"], numbers, numbers[:5], numbers[5:], [b"last"]]
    assert [read_header(batch).base_sequence for batch in batches(broker)] == [0, 1, 1, 6, 11]


async def test_each_pass_of_the_sender_scans_the_partitions_once() -> None:
    looks: list[int] = []
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, linger_ms=0) as producer:
            await producer.send_and_wait("t", b"x")
            sender, ready = producer._sender, producer._accumulator.ready

            class Counting:
                def __getattr__(self, name: str) -> Any:
                    return getattr(producer._accumulator, name)

                def ready(self, *when: Any) -> Any:
                    looks.append(1)
                    return ready(*when)

            sender._accumulator = Counting()  # type: ignore[assignment]
            producer.send_nowait("t", b"y")
            sender._pass()
            sender._accumulator = producer._accumulator
            assert (sender.requests_in_flight, len(looks)) == (1, 1)


def test_a_producer_may_be_started_again_on_another_event_loop() -> None:
    producers: list[Producer] = []

    async def once(value: bytes) -> list[bytes]:
        async with serving(ScriptedBroker()) as broker:
            if not producers:
                producers.append(Producer(broker.bootstrap_servers, linger_ms=1))
            producer = producers[0]
            producer._cluster.bootstrap = Producer(broker.bootstrap_servers)._cluster.bootstrap
            producer._cluster.nodes.clear()
            async with asyncio.timeout(60), producer:
                for _ in range(2):
                    await producer.send_and_wait("t", value)
                    await asyncio.sleep(0.02)  # the sender waits for something to do
            return [record.value or b"" for batch in batches(broker) for record in decode_records(batch)]

    assert asyncio.run(once(b"x")) == [b"x", b"x"]
    assert asyncio.run(once(b"y")) == [b"y", b"y"]
