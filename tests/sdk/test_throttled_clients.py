"""Our clients beyond a quota: they send nothing while they are throttled, and show it (KIP-219)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from ottla.admin import CLIENT_ID, Admin
from ottla.broker.testing import BrokerProcess
from ottla.client.config import ClientConfig
from ottla.consumer import Consumer
from ottla.producer import Producer
from peers.apache_kafka import ApacheKafka
from peers.kraft_kafka import KraftKafka
from peers.maven import missing_tools
from sdk.conftest import chosen_kinds

VALUE: Final = b"x" * 10_000
RATE: Final = 100_000
BOUND_S: Final = 60.0
ATTEMPTS = 5
# Two windows, so that the worth of one second is free.
WINDOWS: Final = {"quota.window.num": "2", "controller.quota.window.num": "2", "num.partitions": "1"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("limiting", chosen_kinds(metafunc.config), indirect=True, scope="module")


@pytest.fixture(scope="module")
def limiting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that measures quotas over short windows."""
    folder, kind = tmp_path_factory.mktemp("quotas"), request.param
    if kind != "ottla" and (missing := missing_tools()):
        pytest.skip(missing)
    with _started(kind, folder) as running:
        yield running.bootstrap_servers


def _started(kind: str, folder: Path) -> BrokerProcess | ApacheKafka | KraftKafka:
    if kind == "ottla":
        return BrokerProcess(folder, WINDOWS)
    if kind == "kafka-3.9":
        return ApacheKafka(folder, WINDOWS, heap="512m")
    return KraftKafka(folder, WINDOWS)


@pytest.fixture
async def admin(limiting: str) -> AsyncIterator[Admin]:
    async with Admin(limiting) as admin:
        yield admin


async def limited(admin: Admin, **quotas: float) -> tuple[str, str]:
    """Return a topic, and a client id that has quotas."""
    topic, client_id = f"limited-{secrets.token_hex(4)}", f"client-{secrets.token_hex(4)}"
    await admin.topics.create(topic, partitions=1, replication_factor=1)
    await admin.quotas.alter({CLIENT_ID: client_id}, quotas)
    async with asyncio.timeout(BOUND_S):
        while not await admin.quotas.describe({CLIENT_ID: client_id}):  # noqa: ASYNC110 - no event comes
            await asyncio.sleep(0.05)
    return topic, client_id


async def test_a_producer_sends_nothing_while_it_is_throttled(limiting: str, admin: Admin) -> None:
    topic, client_id = await limited(admin, producer_byte_rate=RATE)
    async with Producer(limiting, client_id=client_id, linger_ms=0) as producer, asyncio.timeout(BOUND_S):
        metrics, waited = producer.metrics, list[float]()
        for _ in range(ATTEMPTS):
            throttle_ms = 0.0
            while throttle_ms < 500:
                before_ms = metrics.produce_throttle_time_total_ms
                await producer.send_and_wait(topic, 12 * VALUE)
                throttle_ms = metrics.produce_throttle_time_total_ms - before_ms
            began_s, latency_ms = asyncio.get_running_loop().time(), metrics.request_latency_total_ms
            await producer.send_and_wait(topic, VALUE)
            took_ms = (asyncio.get_running_loop().time() - began_s) * 1_000
            waited.append(took_ms - (metrics.request_latency_total_ms - latency_ms))
            if waited[-1] > 250:
                break

        # It waits before the request, and not for its response: it does not meet the broker's mute. On a busy
        # machine the time may be over before the request is due, but not each time.
        assert waited[-1] > 250, waited
        assert 0 < metrics.produce_throttle_time_avg <= metrics.produce_throttle_time_max


async def test_a_throttled_producer_delivers_all_in_order(limiting: str, admin: Admin) -> None:
    topic, client_id = await limited(admin, producer_byte_rate=RATE)
    values = [b"%d:" % number + VALUE for number in range(40)]
    settings: dict[str, Any] = {"client_id": client_id, "linger_ms": 0, "batch_size": 12_000}
    async with Producer(limiting, **settings) as producer, asyncio.timeout(BOUND_S):
        for value in values:
            await producer.send(topic, value, partition=0)
        await producer.flush()
        assert producer.metrics.produce_throttle_time_max > 0
        assert producer.metrics.record_retry_total == 0

    async with Consumer(topic, bootstrap_servers=limiting, auto_offset_reset="earliest") as consumer:
        read = [await anext(aiter(consumer)) for _ in values]
    assert [record.value for record in read] == values


async def test_a_consumer_fetches_nothing_while_it_is_throttled(limiting: str, admin: Admin) -> None:
    topic, client_id = await limited(admin, consumer_byte_rate=RATE)
    async with Producer(limiting) as producer:
        for _ in range(30):
            await producer.send(topic, VALUE, partition=0)
    settings: dict[str, Any] = {"client_id": client_id, "auto_offset_reset": "earliest"}
    began_s = asyncio.get_running_loop().time()
    async with Consumer(topic, bootstrap_servers=limiting, **settings) as consumer, asyncio.timeout(BOUND_S):
        async for read, _ in _numbered(consumer):
            if read == 30:
                break
        took_s = asyncio.get_running_loop().time() - began_s
        metrics = consumer.metrics

    assert took_s > 1, "300 KB, of which 100 KB are free"
    assert metrics.fetch_throttle_time_max > 0
    assert 0 < metrics.fetch_throttle_time_avg < metrics.fetch_throttle_time_max
    # A fetch that met the broker's mute would wait for its response, and the same time count twice.
    assert (metrics.fetch_throttle_time_total_ms + metrics.fetch_latency_total_ms) / 1_000 <= took_s + 0.1


async def _numbered(consumer: Consumer) -> AsyncIterator[tuple[int, Any]]:
    count = 0
    async for record in consumer:
        count += 1
        yield count, record


async def test_an_admin_client_waits_and_then_creates_what_the_quota_refused(
    limiting: str, admin: Admin
) -> None:
    _, client_id = await limited(admin, controller_mutation_rate=1)
    names = [f"made-{secrets.token_hex(4)}" for _ in range(4)]
    async with Admin(limiting, ClientConfig(client_id=client_id)) as throttled, asyncio.timeout(BOUND_S):
        for name in names:
            await throttled.topics.create(name, partitions=2, replication_factor=1)

    assert set(names) <= {topic.name for topic in await admin.topics.list()}
