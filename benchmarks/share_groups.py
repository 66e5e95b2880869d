"""Records per second and the latency of a share group with many members on one partition, beside Kafka 4.4.

`python benchmarks/share_groups.py --members 100` starts a broker of each kind in turn, `--rounds` times, with
the same client: one process in which each member has its own connection and acknowledges what it got with its
next fetch. A first part produces as fast as it can, a second one at a steady rate.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from ottla.broker.testing import BrokerProcess
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from ottla.protocol.messages.share_sessions import (
    AcknowledgementBatch,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
)
from ottla.protocol.records import iter_records, split_batches
from peers.kraft_kafka import KraftKafka

ACCEPT: Final = [1]
ABSENT: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
VALUE: Final = b"x" * 100
SETTINGS: Final = {"group.share.heartbeat.interval.ms": "500", "group.share.min.heartbeat.interval.ms": "500"}


@dataclass
class Measured:
    """What members got."""

    records: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    wanted: int = 0
    are_there: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, records: int) -> None:
        """Count records that a member got."""
        self.records += records
        if self.records >= self.wanted:
            self.are_there.set()

    async def until(self, records: int) -> None:
        """Wait for so many records."""
        self.wanted = records
        self.are_there.clear()
        self.count(0)
        await self.are_there.wait()


class Member:
    """One member of the group, with its own connection."""

    def __init__(self, connection: Connection, measured: Measured) -> None:
        self.connection = connection
        self.member_id = str(uuid.uuid4())
        self.measured = measured

    async def join(self) -> uuid.UUID:
        """Join, and return the topic once the partition is assigned."""
        epoch = 0
        while True:
            request = ShareGroupHeartbeatRequest(
                group_id="g", member_id=self.member_id, member_epoch=epoch, subscribed_topic_names=["t"]
            )
            response = await self.connection.send(request, ShareGroupHeartbeatResponse)
            if response.error_code in ABSENT:
                await self._find_coordinator()
                continue
            assert not response.error_code, response
            epoch = response.member_epoch
            if response.assignment is not None and response.assignment.topic_partitions:
                return response.assignment.topic_partitions[0].topic_id
            await asyncio.sleep(0.3)

    async def _find_coordinator(self) -> None:
        """Ask for the coordinator, which makes the topic of groups."""
        request = FindCoordinatorRequest(key="g")
        await self.connection.send(request, FindCoordinatorResponse)
        await asyncio.sleep(0.1)

    async def read(self, topic_id: uuid.UUID, is_over: asyncio.Event) -> None:
        """Fetch and acknowledge until it is over."""
        epoch, taken = 0, list[AcknowledgementBatch]()
        while not is_over.is_set():
            partition = ShareFetchPartition(partition_index=0, acknowledgement_batches=taken)
            request = ShareFetchRequest(
                group_id="g", member_id=self.member_id, share_session_epoch=epoch,
                max_wait_ms=500, min_bytes=1,
                max_bytes=50_000_000, max_records=500, batch_size=500,
                topics=[ShareFetchTopic(topic_id=topic_id, partitions=[partition])],
            )  # fmt: skip
            response = await self.connection.send(request, ShareFetchResponse)
            assert not response.error_code, response
            epoch, taken = epoch + 1, []
            for found in (partition for topic in response.responses for partition in topic.partitions):
                assert not found.acknowledge_error_code, found
                taken = [
                    AcknowledgementBatch(
                        first_offset=one.first_offset, last_offset=one.last_offset, acknowledge_types=ACCEPT
                    )
                    for one in found.acquired_records
                ]
                self._count(found.records or b"", found.acquired_records)

    def _count(self, records: bytes | memoryview, acquired: list) -> None:  # type: ignore[type-arg]
        now_ms, measured = time.time() * 1000, self.measured
        ranges = [(one.first_offset, one.last_offset) for one in acquired]
        measured.count(sum(last - first + 1 for first, last in ranges))
        if (len(measured.latencies_ms) < 200_000 and measured.records % 7 == 0) or len(records) < 20_000:
            for batch in split_batches(records):
                measured.latencies_ms += [now_ms - record.timestamp_ms for record in iter_records(batch)]


def _produce(servers: str, count: int, rate: int) -> None:
    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    )
    began = time.monotonic()
    for number in range(count):
        if rate and number % 10 == 0:
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
        producer.produce("t", VALUE)
        producer.poll(0)
    producer.flush(120)


async def _measure(servers: str, members: int, records: int, rate: int) -> tuple[float, float, float]:
    measured, is_over = Measured(), asyncio.Event()
    host, port = servers.split(":")
    async with AsyncExitStack() as stack:
        joined: list[Member] = []
        for _ in range(members):
            connection = Connection(Address(host, int(port)), ClientConfig(client_id="bench"))
            await connection.connect()
            stack.push_async_callback(connection.close)
            joined.append(Member(connection, measured))
        topics = await asyncio.gather(*[member.join() for member in joined])
        async with asyncio.TaskGroup() as group:
            for member, topic in zip(joined, topics, strict=True):
                group.create_task(member.read(topic, is_over))
            await asyncio.sleep(3)
            began = time.monotonic()
            await asyncio.to_thread(_produce, servers, records, 0)
            async with asyncio.timeout(300):
                await measured.until(records)
            per_second = measured.records / (time.monotonic() - began)
            measured.latencies_ms.clear()
            await asyncio.to_thread(_produce, servers, rate * 15, rate)
            await asyncio.sleep(1)
            is_over.set()
    latencies = sorted(measured.latencies_ms)
    return per_second, statistics.median(latencies), latencies[int(len(latencies) * 0.99)]


def _round(kind: str, members: int, records: int, rate: int) -> tuple[float, float, float, float]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if kind == "kafka":
            running: KraftKafka | BrokerProcess = stack.enter_context(KraftKafka(folder / "kafka", SETTINGS))
        else:
            settings = {key: value for key, value in SETTINGS.items() if ".min." not in key}
            running = stack.enter_context(BrokerProcess(folder / "ottla", settings))
        servers, process = running.bootstrap_servers, psutil.Process(running.pid)
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        before = process.cpu_times()
        measured = asyncio.run(_measure(servers, members, records, rate))
        after = process.cpu_times()
        return *measured, after.user + after.system - before.user - before.system


def main() -> None:
    """Run the rounds, and print each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--brokers", nargs="+", default=["ottla", "kafka"], choices=["ottla", "kafka"])
    chosen = parser.parse_args()
    for number in range(1, chosen.rounds + 1):
        for kind in chosen.brokers:
            per_second, median_ms, p99_ms, cpu_s = _round(kind, chosen.members, chosen.records, chosen.rate)
            print(
                f"round {number}: {kind:5} {per_second:9,.0f} records/s, "
                f"latency median {median_ms:.1f} ms, p99 {p99_ms:.1f} ms, broker {cpu_s:.1f} s CPU",
                flush=True,
            )


if __name__ == "__main__":
    main()
