from __future__ import annotations

import asyncio
import itertools
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ottla.broker.metrics import Metrics
from ottla.broker.metrics.prometheus import SAMPLES_PER_SLICE, Pages, prometheus_endpoint, render
from ottla.broker.metrics.snapshot import (
    Snapshot,
    SnapshotNotTaken,
    take_snapshot,
)
from ottla.broker.runtime.loop_budget import METRICS_MS, LoopBudget, Turn

FAMILY = ("kafka.server", "ReplicaManager")


@asynccontextmanager
async def running(metrics: Metrics) -> AsyncIterator[Pages]:
    pages = Pages(metrics, LoopBudget(), asyncio.get_running_loop())
    task = asyncio.create_task(pages.run())
    try:
        yield pages
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def rendered(snapshot: Snapshot) -> str:
    return (await render(snapshot, turn_by(no_time))).decode()


def no_time() -> float:
    return 0.0


def turn_by(now_ms: Callable[[], float]) -> Turn:
    return Turn(LoopBudget(now_ms).metrics)


async def test_prometheus_serves_the_names_that_kafka_dashboards_ask_for() -> None:
    metrics = Metrics()
    metrics.meter("kafka.server", "BrokerTopicMetrics", "MessagesInPerSec", topic="a.b").mark(7)
    metrics.gauge("kafka.controller", "KafkaController", "ActiveControllerCount", lambda: 1)
    metrics.histogram("kafka.network", "RequestMetrics", "TotalTimeMs", request="Produce").update(2.0)

    async with running(metrics) as pages, prometheus_endpoint(pages, "127.0.0.1", 0) as port:
        text = await asyncio.to_thread(scrape, port)

    assert 'kafka_server_brokertopicmetrics_messagesin_total{topic="a.b"} 7.0' in text
    assert "kafka_controller_kafkacontroller_activecontrollercount 1.0" in text
    assert 'kafka_network_requestmetrics_totaltimems{quantile="0.99",request="Produce"} 2.0' in text
    assert 'kafka_network_requestmetrics_totaltimems_count{request="Produce"} 1.0' in text


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


async def test_a_change_after_the_snapshot_is_not_seen() -> None:
    metrics, leaders = Metrics(), [3]
    meter = metrics.meter(*FAMILY, "IsrShrinksPerSec")
    times = metrics.histogram(*FAMILY, "FetchTimeMs")
    metrics.gauge(*FAMILY, "LeaderCount", lambda: leaders[0])
    meter.mark(2)
    times.update(8.0)
    snapshot = await take_snapshot(metrics, turn_by(no_time))

    meter.mark(40)
    times.update(800.0)
    leaders[0] = 99
    metrics.gauge(*FAMILY, "PartitionCount", lambda: 1)

    text = await rendered(snapshot)
    assert "kafka_server_replicamanager_isrshrinks_total 2.0" in text
    assert "kafka_server_replicamanager_leadercount 3.0" in text
    assert 'kafka_server_replicamanager_fetchtimems{quantile="0.999"} 8.0' in text
    assert "kafka_server_replicamanager_fetchtimems_count 1.0" in text
    assert "partitioncount" not in text


async def test_gauges_are_read_on_the_loop_while_the_broker_changes_what_they_read() -> None:
    metrics, partitions = Metrics(), dict.fromkeys(range(1_000), 0)
    metrics.gauge(*FAMILY, "PartitionCount", lambda: sum(1 for _ in partitions))
    for number in range(300):
        metrics.gauge("kafka.log", "Log", "Size", lambda: len(partitions), topic=f"t{number}", partition="0")
    stop = asyncio.Event()

    async def change() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            partitions[1_000 + turn % 50] = partitions.pop(1_000 + (turn - 1) % 50, 0)
            metrics.gauge("kafka.log", "Log", "Size", lambda: 1, topic=f"new{turn % 20}", partition="0")
            metrics.remove("kafka.log", "Log", "Size", topic=f"new{(turn - 7) % 20}", partition="0")
            await asyncio.sleep(0)

    async with running(metrics) as pages, prometheus_endpoint(pages, "127.0.0.1", 0) as port:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(change())
            texts = [await asyncio.to_thread(scrape, port) for _ in range(20)]
            stop.set()

    assert all('kafka_log_log_size{partition="0",topic="t299"}' in text for text in texts)


async def test_a_snapshot_of_thousands_of_metrics_never_keeps_the_loop_for_long() -> None:
    metrics, clock = Metrics(), [0.0]
    slices: list[float] = []

    def slow_gauge() -> float:
        clock[0] += 0.5
        return 1.0

    for number in range(4_000):
        metrics.gauge("kafka.log", "Log", "Size", slow_gauge, partition=str(number))

    async def watch() -> None:
        before = clock[0]
        while True:
            await asyncio.sleep(0)
            slices.append(clock[0] - before)
            before = clock[0]

    watching = asyncio.create_task(watch())
    snapshot = await take_snapshot(metrics, turn_by(lambda: clock[0]))
    watching.cancel()

    assert len(snapshot) == 4_000
    assert max(slices) <= METRICS_MS + 0.5
    assert sum(slices) > 1_900


async def test_a_metric_that_is_removed_between_two_slices_is_left_out() -> None:
    metrics = Metrics()
    ticks: Iterator[float] = iter(range(0, 10_000, 10))

    def closed() -> float:
        raise AssertionError("the log of a deleted topic was read")

    metrics.gauge("kafka.log", "Log", "Size", lambda: 1, topic="stays")
    metrics.gauge("kafka.log", "Log", "Size", closed, topic="goes")
    asyncio.get_running_loop().call_soon(lambda: metrics.remove("kafka.log", "Log", "Size", topic="goes"))

    snapshot = await take_snapshot(metrics, turn_by(lambda: next(ticks)))

    assert [dict(sample.name.tags)["topic"] for sample in snapshot] == ["stays"]


async def test_a_gauge_that_fails_fails_its_scrape_and_not_the_next_one() -> None:
    metrics, broken = Metrics(), [True]

    def fragile() -> float:
        if broken[0]:
            raise ValueError("no value")
        return 5.0

    metrics.gauge(*FAMILY, "LeaderCount", fragile)
    async with running(metrics) as pages:
        with pytest.raises(ValueError, match="no value"):
            await asyncio.to_thread(pages.take)
        broken[0] = False

        assert b"leadercount 5.0" in await asyncio.to_thread(pages.take)


async def test_a_loop_that_does_not_answer_fails_the_scrape() -> None:
    pages = Pages(Metrics(), LoopBudget(), asyncio.get_running_loop())

    with pytest.raises(SnapshotNotTaken, match="no snapshot within"):
        await asyncio.to_thread(pages.take, 0.05)


async def test_a_scrape_that_waits_ends_with_the_broker() -> None:
    metrics, scraped = Metrics(), asyncio.Event()

    def slow() -> float:
        scraped.set()
        return 1.0

    for number in range(2_000):
        metrics.gauge("kafka.log", "Log", "Size", slow, partition=str(number))
    async with running(metrics) as pages:
        scrapes = [asyncio.ensure_future(asyncio.to_thread(pages.take)) for _ in range(3)]
        await scraped.wait()

    results = await asyncio.gather(*scrapes, return_exceptions=True)
    assert all(isinstance(one, SnapshotNotTaken | bytes) for one in results)
    with pytest.raises(SnapshotNotTaken, match="the broker stops"):
        await asyncio.to_thread(pages.take)


async def test_a_page_of_thousands_of_metrics_never_keeps_the_loop_for_long() -> None:
    metrics, ticks = Metrics(), itertools.count()
    for number in range(4_000):
        metrics.gauge("kafka.log", "Log", "Size", lambda: 1, topic="t", partition=str(number))
    snapshot = await take_snapshot(metrics, turn_by(no_time))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    page = await render(
        snapshot, turn_by(lambda: next(ticks) * METRICS_MS)
    )  # each slice takes its whole time
    counting.cancel()

    assert turns >= 2 * 4_000 / SAMPLES_PER_SLICE, "they are put together, and written"
    (family,) = text_string_to_metric_families(page.decode())
    assert len(family.samples) == 4_000
    assert page.count(b"# TYPE") == page.count(b"# HELP") == 1
