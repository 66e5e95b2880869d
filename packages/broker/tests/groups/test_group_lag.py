"""Offsets, lag and owners of groups on the metrics page."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ottla.broker.cluster.topics import NewTopic
from ottla.broker.config import broker_config_from
from ottla.broker.server.broker import Broker
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.zookeeper.embedded import EmbeddedCoordinator

BOUND_S = 60.0
LINE = re.compile(r"kafka_consumergroup_(\w+)\{(.*)\} (\S+)")
Samples = dict[tuple[str, str, str], float]


@pytest.fixture
async def coordinator() -> AsyncIterator[EmbeddedCoordinator]:
    async with EmbeddedCoordinator() as coordinator:
        yield coordinator


def broker_on(coordinator: EmbeddedCoordinator, directory: Path, broker_id: int, **more: str) -> Broker:
    settings = {
        "broker.id": str(broker_id),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory / str(broker_id)),
        "zookeeper.connect": coordinator.connect_string,
        "metrics.port": "0",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    return Broker(
        broker_config_from({**settings, **{name.replace("_", "."): value for name, value in more.items()}})
    )


async def page_of(broker: Broker) -> str:
    url = f"http://127.0.0.1:{broker.metrics_port}/metrics"
    read = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=BOUND_S).read())
    return str(read.decode())


async def samples_of(broker: Broker, group: str = "readers") -> Samples:
    """Return a group's samples by metric, partition and owner."""
    found: Samples = {}
    for name, labels, value in LINE.findall(await page_of(broker)):
        tags = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if tags["consumergroup"] == group:
            found[name, tags.get("partition", ""), tags.get("client_id", "")] = float(value)
    return found


async def until(broker: Broker, condition: Callable[[Samples], bool]) -> Samples:
    async with asyncio.timeout(BOUND_S):
        while not condition(samples := await samples_of(broker)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return samples


async def write(broker: Broker, *partitions: int) -> None:
    async with Producer(f"127.0.0.1:{broker.port}") as producer:
        for partition in partitions:
            await producer.send_and_wait("orders", b"x", partition=partition)


async def read_all(consumer: Consumer, count: int) -> None:
    seen = 0
    async with asyncio.timeout(BOUND_S):
        while seen < count:
            seen += sum(map(len, (await consumer.getmany(timeout_ms=500)).values()))
    await consumer.commit()


async def test_the_page_shows_the_lag_and_the_owner_of_every_partition_of_a_group(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as broker:
        await broker.services.topics.create(NewTopic("orders", assignments={0: [1], 1: [1]}))
        await write(broker, 0, 0, 1)
        async with Consumer(
            "orders",
            bootstrap_servers=f"127.0.0.1:{broker.port}",
            group_id="readers",
            client_id="reader-1",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            await read_all(consumer, 3)
            await write(broker, 0, 0, 0, 0)

            assert await samples_of(broker) == {
                ("members", "", ""): 1,
                ("current_offset", "0", ""): 2,
                ("current_offset", "1", ""): 1,
                ("lag", "0", ""): 4,
                ("lag", "1", ""): 0,
                ("owner", "0", "reader-1"): 1,
                ("owner", "1", "reader-1"): 1,
            }

        left = await until(broker, lambda samples: samples["members", "", ""] == 0)
        assert left["owner", "0", ""] == left["owner", "1", ""] == 0
        assert left["lag", "0", ""] == 4


async def test_a_coordinator_asks_the_leaders_of_partitions_that_it_does_not_hold(
    coordinator: EmbeddedCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.broker.groups.hosting.group_lag.ENDS_EVERY_MS", 100)
    async with broker_on(coordinator, tmp_path, 1) as one, broker_on(coordinator, tmp_path, 2) as two:
        await one.services.topics.create(NewTopic("__consumer_offsets", assignments={0: [1]}))
        await one.services.topics.create(NewTopic("orders", assignments={0: [2]}))
        await write(one, 0, 0)
        async with Consumer(
            "orders",
            bootstrap_servers=f"127.0.0.1:{one.port}",
            group_id="readers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            await read_all(consumer, 2)
        await write(one, 0, 0, 0)

        samples = await until(one, lambda samples: samples.get(("lag", "0", "")) == 3)

        assert samples["current_offset", "0", ""] == 2
        assert await samples_of(two) == {}


async def test_groups_beyond_the_limit_are_left_out_whole_and_counted(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1, metrics_group_partitions_max="3") as broker:
        await broker.services.topics.create(NewTopic("orders", assignments={0: [1], 1: [1]}))
        await write(broker, 0, 1)
        for group in ("readers", "others"):
            async with Consumer(
                "orders",
                bootstrap_servers=f"127.0.0.1:{broker.port}",
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer:
                await read_all(consumer, 2)

        page = await page_of(broker)

        shown = {group for group in ("readers", "others") if f'consumergroup="{group}"' in page}
        assert len(shown) == 1
        assert "ottla_broker_consumergroups_partitionsnotshown 2.0" in page.splitlines()


async def test_names_that_clients_make_long_do_not_make_the_page_long(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as broker:
        await broker.services.topics.create(NewTopic("orders", assignments={0: [1]}))
        await write(broker, 0)
        servers = f"127.0.0.1:{broker.port}"
        async with (
            reader(servers, "g" * 300, "c") as nameless,
            reader(servers, "readers", "c" * 20_000) as named,
        ):
            await read_all(nameless, 1)
            await read_all(named, 1)
            page = await page_of(broker)

        assert "ggg" not in page
        assert "ottla_broker_consumergroups_partitionsnotshown 1.0" in page.splitlines()
        assert max(map(len, page.splitlines())) < 500


def reader(servers: str, group: str, client_id: str) -> Consumer:
    return Consumer(
        "orders",
        bootstrap_servers=servers,
        group_id=group,
        client_id=client_id,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
