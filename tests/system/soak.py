"""Fifteen minutes of load while topics come and go: memory, latency and metrics must stay as they are.

Producers append to a topic that stays. Beside them 93 topics a minute are made, written, read, and deleted.
Each minute prints the broker's memory, the 99th percentile of the acknowledgements and the samples on the
metrics page. After the third minute memory may grow by 0.2 MiB a minute; the last third of the minutes may be
half slower than the first, and no sample may name a topic that is gone.

python tests/system/soak.py --minutes 15
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from connections import PARTITIONS, Client, create_topic, produce, resident_bytes
from fuzz_clients import troubles

from ottla.broker.testing import BrokerProcess, free_port
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.protocol.records import BatchBuilder

TOPICS_PER_MINUTE = 93
LIVING_TOPICS = 10
WARM_UP_MINUTES = 3
ALLOWED_SLOPE_MIB = 0.2
ALLOWED_SLOWING = 1.5
PRODUCERS = 4
INTERVAL_S = 0.005
SETTINGS = {
    "log.segment.delete.delay.ms": "1000",
    "log.segment.bytes": "16777216",
    "log.retention.bytes": "33554432",
    "log.retention.check.interval.ms": "10000",
}
_CHURNED = re.compile(r'topic="(churn-\d+)"')


@dataclass
class Load:
    """The state that the tasks of the load share."""

    port: int
    times_ms: list[float] = field(default_factory=list)
    made: int = 0
    living: list[str] = field(default_factory=list)

    def take_times(self) -> list[float]:
        """Return the times since the last call."""
        taken, self.times_ms = sorted(self.times_ms), []
        return taken


async def produce_steadily(load: Load, number: int) -> None:
    client = Client(load.port)
    await client.open()
    while True:
        begun = time.perf_counter()
        await produce(client, number % PARTITIONS)
        load.times_ms.append((time.perf_counter() - begun) * 1_000)
        await asyncio.sleep(INTERVAL_S)


async def make_and_delete(load: Load) -> None:
    client = Client(load.port)
    await client.open()
    while True:
        begun = time.monotonic()
        name = f"churn-{load.made:06d}"
        await _make(client, name)
        load.made += 1
        load.living.append(name)
        await _use(client, name)
        if len(load.living) > LIVING_TOPICS:
            await _delete(client, load.living.pop(0))
        await asyncio.sleep(max(0.0, begun + 60 / TOPICS_PER_MINUTE - time.monotonic()))


async def _make(client: Client, name: str) -> None:
    topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    answer = await client.ask(ApiKey.CREATE_TOPICS, 2, request.encode(2), False)
    if code := CreateTopicsResponse.decode(answer, 2).topics[0].error_code:
        raise AssertionError(f"making {name} was answered with {code}")


async def _use(client: Client, name: str) -> None:
    builder = BatchBuilder()
    builder.append(None, b"x" * 100, int(time.time() * 1_000))
    records = builder.build()
    data = [PartitionProduceData(index=index, records=records) for index in range(2)]
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=name, partition_data=data)]
    )
    for _ in range(5):
        await client.ask(ApiKey.PRODUCE, 7, request.encode(7), False)
    parts = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in range(2)
    ]
    fetch = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=name, partitions=parts)])
    await client.ask(ApiKey.FETCH, 4, fetch.encode(4), False)


async def _delete(client: Client, name: str) -> None:
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000)
    answer = await client.ask(ApiKey.DELETE_TOPICS, 1, request.encode(1), False)
    if code := DeleteTopicsResponse.decode(answer, 1).responses[0].error_code:
        raise AssertionError(f"deleting {name} was answered with {code}")


def scraped(metrics_port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=60) as page:
        text: str = page.read().decode()
    return text


@dataclass(frozen=True)
class Minute:
    """The measurements of one minute."""

    rss_mib: float
    p99_ms: float
    samples: int
    gone: int


async def watched(broker: BrokerProcess, load: Load, metrics_port: int, minutes: int) -> list[Minute]:
    seen: list[Minute] = []
    print(
        f"  {'minute':>6} {'topics made':>12} {'memory':>10} {'p99':>9} {'samples':>8} {'of gone topics':>15}"
    )
    for number in range(1, minutes + 1):
        await asyncio.sleep(60)
        times, living = load.take_times(), set(load.living)
        page = await asyncio.to_thread(scraped, metrics_port)
        living |= set(load.living)
        named = set(_CHURNED.findall(page))
        minute = Minute(
            resident_bytes(broker.pid) / 2**20,
            times[int(len(times) * 0.99)] if times else float("inf"),
            sum(not line.startswith("#") for line in page.splitlines()),
            len(named - living),
        )
        seen.append(minute)
        print(
            f"  {number:>6} {load.made:>12,} {minute.rss_mib:>6.1f} MiB {minute.p99_ms:>6.1f} ms"
            f" {minute.samples:>8,} {minute.gone:>15,}",
            flush=True,
        )
    return seen


def verdict(minutes: list[Minute]) -> list[str]:
    """Return the goals that were missed."""
    wrong: list[str] = []
    steady = minutes[WARM_UP_MINUTES:]
    if len(steady) > 1:
        slope = statistics.linear_regression(range(len(steady)), [each.rss_mib for each in steady]).slope
        print(f"  memory grows by {slope:.2f} MiB a minute after minute {WARM_UP_MINUTES}")
        if slope > ALLOWED_SLOPE_MIB:
            wrong.append(f"memory grows by {slope:.2f} MiB a minute")
    third = max(1, len(minutes) // 3)
    first, last = (
        statistics.median(each.p99_ms for each in part) for part in (minutes[:third], minutes[-third:])
    )
    if last > ALLOWED_SLOWING * first:
        wrong.append(f"p99 went from {first:.1f} to {last:.1f} ms")
    if gone := max(each.gone for each in minutes):
        wrong.append(f"{gone} topics that are gone have samples")
    return wrong


async def soak(folder: Path, minutes: int) -> list[str]:
    metrics_port = free_port()
    with BrokerProcess(folder, {**SETTINGS, "metrics.port": str(metrics_port)}) as broker:
        await create_topic(broker.port)
        load = Load(broker.port)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(produce_steadily(load, number)) for number in range(PRODUCERS)]
            running.append(tasks.create_task(make_and_delete(load)))
            seen = await watched(broker, load, metrics_port, minutes)
            for task in running:
                task.cancel()
        return verdict(seen) + troubles(broker.log_file.read_text(errors="replace"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-soak-") as folder:
        wrong = asyncio.run(soak(Path(folder), options.minutes))
    for line in wrong[:20]:
        print(f"  WRONG {line}")
    print(
        "ok: memory and latency stay, and nothing is kept of what is gone"
        if not wrong
        else f"{len(wrong)} problems"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
