"""With any corrupted response, clients neither hang nor crash nor grow; they raise errors of their own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ottla.broker.testing import BrokerThread, free_port
from ottla.client.errors import ClientError
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition
from peers.corrupting_proxy import CorruptingProxy

PATIENCE: dict[str, Any] = {
    "request_timeout_ms": 300,
    "socket_connection_setup_timeout_ms": 300,
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 20,
    "bootstrap_timeout_ms": 20_000,
    "default_api_timeout_ms": 1_000,
}
CLOSE_BOUND_S = 60.0
ALLOWED_GROWTH_MIB = 100
SEEDS = range(1, 9)
TOPIC = "lies"


class Lies:
    """A broker behind the proxy, and the complaints of the event loop."""

    def __init__(self, proxy: CorruptingProxy) -> None:
        self.proxy = proxy
        self.servers = f"127.0.0.1:{proxy.port}"
        self.unhandled: list[str] = []

    def complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.unhandled.append(f"{context.get('message')}: {context.get('exception')!r}")

    async def fill(self, count: int) -> None:
        async with Producer(bootstrap_servers=self.servers) as producer:
            for number in range(count):
                await producer.send(TOPIC, b"%d" % number, partition=0)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    port = free_port()
    settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    folder: Path = tmp_path_factory.mktemp("lies")
    with BrokerThread(folder, settings) as broker:
        yield port, broker.port


@pytest.fixture
async def lies(ports: tuple[int, int]) -> AsyncIterator[Lies]:
    async with CorruptingProxy(*ports) as proxy:
        lies = Lies(proxy)
        asyncio.get_running_loop().set_exception_handler(lies.complain)
        await lies.fill(100)
        before = psutil.Process().memory_info().rss
        yield lies
        gc.collect()
        assert (psutil.Process().memory_info().rss - before) / 2**20 < ALLOWED_GROWTH_MIB
        assert lies.unhandled == []


async def settled(acknowledgement: Awaitable[Any]) -> None:
    with contextlib.suppress(ClientError, KafkaError):
        await acknowledgement


async def bounded(closing: Awaitable[Any]) -> None:
    begun = time.monotonic()
    with contextlib.suppress(ClientError, KafkaError):
        await closing
    assert time.monotonic() - begun < CLOSE_BOUND_S


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_producer_settles_every_acknowledgement(lies: Lies, seed: int) -> None:
    producer = Producer(bootstrap_servers=lies.servers, delivery_timeout_ms=1_500, linger_ms=0, **PATIENCE)
    await producer.start()
    lies.proxy.lie(seed, share=0.5)
    sent = []
    for number in range(60):
        with contextlib.suppress(ClientError, KafkaError):
            sent.append(await producer.send(TOPIC, b"%d" % number, partition=0))
        await asyncio.sleep(random.Random(seed + number).choice((0, 0.01)))

    async with asyncio.timeout(60):
        await asyncio.gather(*map(settled, sent))
    await bounded(producer.stop())

    assert lies.proxy.lies > 0


@pytest.mark.parametrize("group", [None, "readers"], ids=["alone", "in a group"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_consumer_reads_on_or_raises(lies: Lies, seed: int, group: str | None) -> None:
    consumer = Consumer(
        bootstrap_servers=lies.servers,
        group_id=group and f"{group}-{seed}",
        auto_offset_reset="earliest",
        fetch_max_wait_ms=20,
        **PATIENCE,
    )
    await consumer.start()
    if group is None:
        consumer.assign([TopicPartition(TOPIC, 0)])
    else:
        consumer.subscribe([TOPIC])
    lies.proxy.lie(seed, share=0.4)
    ends = time.monotonic() + 1.5
    while time.monotonic() < ends:
        with contextlib.suppress(ClientError, KafkaError):
            async with asyncio.timeout(60):
                for records in (await consumer.getmany(timeout_ms=100, max_records=10)).values():
                    assert all(record.value is not None for record in records)
        await asyncio.sleep(0)

    await bounded(consumer.stop())

    assert lies.proxy.lies > 0


async def test_who_was_lied_to_goes_on_with_an_honest_broker(lies: Lies) -> None:
    producer = Producer(bootstrap_servers=lies.servers, linger_ms=0, **PATIENCE)
    await producer.start()
    lies.proxy.lie(99, share=0.3)
    sent = await producer.send(TOPIC, b"in bad times", partition=0)
    await asyncio.sleep(0.3)
    lies.proxy.share = 0.0

    async with asyncio.timeout(60):
        await settled(sent)
        await producer.send_and_wait(TOPIC, b"in good times", partition=0)
    await bounded(producer.stop())
