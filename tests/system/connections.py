"""Five thousand idle connections and five hundred active clients on one broker at once.

Opens the idle ones first (each sends ApiVersions once), then lets the active ones produce and fetch for a
while; all must be served. Prints the broker's memory per idle connection.

python tests/system/connections.py --idle 5000 --active 500
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import struct
import sys
import tempfile
import time
from pathlib import Path

from ottla.broker.testing import BrokerProcess
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.records import BatchBuilder

TOPIC = "crowd"
PARTITIONS = 50


class Client:
    """One raw connection that sends a request and awaits its answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._correlation_id = 0

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def ask(self, key: ApiKey, version: int, body: bytes, flexible: bool) -> bytes:
        self._correlation_id += 1
        head = struct.pack(">hhi", key, version, self._correlation_id) + struct.pack(">h", 5) + b"crowd"
        frame = head + (b"\0" if flexible else b"") + body
        self._writer.write(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        answer = await self._reader.readexactly(size)
        if struct.unpack_from(">i", answer)[0] != self._correlation_id:
            raise AssertionError("an answer to another request")
        return answer[4:]

    def close(self) -> None:
        self._writer.close()


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


async def open_idle(port: int, count: int) -> list[Client]:
    """Open connections in small groups; each sends ApiVersions once."""
    clients: list[Client] = []
    for start in range(0, count, 100):
        some = [Client(port) for _ in range(min(100, count - start))]
        await asyncio.gather(*(client.open() for client in some))
        body = ApiVersionsRequest().encode(0)
        await asyncio.gather(*(client.ask(ApiKey.API_VERSIONS, 0, body, False) for client in some))
        clients += some
    return clients


async def active_client(port: int, number: int, requests: int) -> list[float]:
    """Produce one record and fetch it back, again and again; return the round trips in ms."""
    client = Client(port)
    await client.open()
    times: list[float] = []
    partition = number % PARTITIONS
    for _ in range(requests):
        begun = time.perf_counter()
        offset = await produce(client, partition)
        await fetch(client, partition, offset)
        times.append((time.perf_counter() - begun) * 1000)
        await asyncio.sleep(0.2)
    client.close()
    return times


async def produce(client: Client, partition: int) -> int:
    builder = BatchBuilder()
    builder.append(None, b"x" * 100, int(time.time() * 1000))
    data = PartitionProduceData(index=partition, records=builder.build())
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
    )
    answer = ProduceResponse.decode(await client.ask(ApiKey.PRODUCE, 7, request.encode(7), False), 7)
    result = answer.responses[0].partition_responses[0]
    if result.error_code:
        raise AssertionError(f"produce was answered with {result.error_code}")
    return result.base_offset


async def fetch(client: Client, partition: int, offset: int) -> None:
    part = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1000)
    request = FetchRequest(
        max_wait_ms=1000, min_bytes=1, max_bytes=1000, topics=[FetchTopic(topic=TOPIC, partitions=[part])]
    )
    answer = FetchResponse.decode(await client.ask(ApiKey.FETCH, 4, request.encode(4), False), 4)
    result = answer.responses[0].partitions[0]
    if result.error_code or not result.records:
        raise AssertionError(f"fetch was answered with {result.error_code}, {result.records!r}")


async def create_topic(port: int) -> None:
    client = Client(port)
    await client.open()
    topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    answer = CreateTopicsResponse.decode(
        await client.ask(ApiKey.CREATE_TOPICS, 2, request.encode(2), False), 2
    )
    if answer.topics[0].error_code:
        raise AssertionError(f"the topic was answered with {answer.topics[0].error_code}")
    client.close()


async def crowd(broker: BrokerProcess, idle: int, active: int, requests: int) -> None:
    await create_topic(broker.port)
    await asyncio.sleep(0.5)
    before = resident_bytes(broker.pid)
    begun = time.perf_counter()
    sleepers = await open_idle(broker.port, idle)
    opened = time.perf_counter() - begun
    after = resident_bytes(broker.pid)
    print(f"  {idle:,} idle connections opened in {opened:.1f} s ({idle / opened:,.0f}/s)")
    print(f"  memory per idle connection: {(after - before) / max(1, idle) / 1024:.1f} KiB")
    rounds = await asyncio.gather(*(active_client(broker.port, number, requests) for number in range(active)))
    times = sorted(time for one in rounds for time in one)
    print(
        f"  {active:,} active clients made {len(times):,} produce+fetch round trips: "
        f"p50 {times[len(times) // 2]:.1f} ms, p99 {times[len(times) * 99 // 100]:.1f} ms"
    )
    body = ApiVersionsRequest().encode(0)
    await asyncio.gather(*(client.ask(ApiKey.API_VERSIONS, 0, body, False) for client in sleepers))
    print(f"  all {idle:,} still answer; broker at {resident_bytes(broker.pid) / 2**20:.0f} MiB")
    for client in sleepers:
        client.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--idle", type=int, default=5000)
    parser.add_argument("--active", type=int, default=500)
    parser.add_argument("--requests", type=int, default=20)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    with (
        tempfile.TemporaryDirectory(prefix="ottla-crowd-") as folder,
        BrokerProcess(Path(folder)) as broker,
    ):
        asyncio.run(crowd(broker, options.idle, options.active, options.requests))
    print("ok: all were served")
    return 0


if __name__ == "__main__":
    sys.exit(main())
