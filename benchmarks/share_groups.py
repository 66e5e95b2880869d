"""A share group with many members on one partition: records a second, and how late they are accepted.

`new_protocols.py` runs this beside Apache Kafka, with the same members: bare requests, each member on
connections of its own. What is there already is read as fast as they can, each fetch with the
acknowledgements of the one before. Then another process writes at a steady rate, a member accepts at once
what it got, and a record counts from its timestamp until the broker has confirmed that it is accepted.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
import uuid
from contextlib import AsyncExitStack
from typing import Final

from confluent_kafka import Producer

from contenders import Contender
from ottla.admin import Admin
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from ottla.protocol.messages.share_sessions import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchPartition,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
)
from ottla.protocol.records import iter_records, split_batches

SETTINGS: Final = {
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.max.size": "1000",
}
MAX_RECORDS: Final = 500
"""Records of one fetch, and of a batch of the log: a fetch gets whole batches, also if they hold more."""
_ACCEPT: Final = [1]
_GROUP_RESOURCE: Final = 32
_NOT_YET: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_VALUE: Final = b"x" * 100
_HEARTBEAT_S: Final = 5.0
_BOUND_S: Final = 300.0
_WARM_UP_S: Final = 3.0
Figures = dict[tuple[str, str], float]


class Measured:
    """The records that the members of a group got, and how late they were accepted."""

    def __init__(self) -> None:
        self.records = 0
        self.latencies_ms: list[float] = []
        self.is_timed = False
        self._wanted = 0
        self._are_there = asyncio.Event()

    def count(self, records: int) -> None:
        """Count records that a member got."""
        self.records += records
        if self.records >= self._wanted:
            self._are_there.set()

    async def until(self, records: int) -> None:
        """Wait for so many records."""
        self._wanted = records
        self._are_there.clear()
        self.count(0)
        async with asyncio.timeout(_BOUND_S):
            await self._are_there.wait()


class Member:
    """One member of the group, with its own connection for records and another one for heartbeats."""

    def __init__(
        self, group: str, topic: str, fetches: Connection, heartbeats: Connection, measured: Measured
    ) -> None:
        self._group = group
        self._topic = topic
        self._fetches = fetches
        self._heartbeats = heartbeats
        self._measured = measured
        self._id = str(uuid.uuid4())
        self._epoch = 0
        self._session_epoch = 0
        self._topic_id = uuid.UUID(int=0)
        self._taken: list[AcknowledgementBatch] = []

    async def join(self) -> None:
        """Join, and return once the partition is assigned."""
        while not (assigned := await self._heartbeat()):  # noqa: ASYNC110 - it asks
            await asyncio.sleep(0.3)
        self._topic_id = assigned

    async def _heartbeat(self) -> uuid.UUID | None:
        request = ShareGroupHeartbeatRequest(
            group_id=self._group, member_id=self._id, member_epoch=self._epoch,
            subscribed_topic_names=None if self._epoch else [self._topic],
        )  # fmt: skip
        response = await self._heartbeats.send(request, ShareGroupHeartbeatResponse)
        if response.error_code in _NOT_YET:
            await self._heartbeats.send(FindCoordinatorRequest(key=self._group), FindCoordinatorResponse)
            return None
        assert not response.error_code, response
        self._epoch = response.member_epoch
        if response.assignment is None or not response.assignment.topic_partitions:
            return None
        return response.assignment.topic_partitions[0].topic_id

    async def stay(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            await self._heartbeat()

    async def read(self) -> None:
        """Fetch and accept until cancelled."""
        while True:
            partition = ShareFetchPartition(partition_index=0, acknowledgement_batches=self._taken)
            request = ShareFetchRequest(
                group_id=self._group, member_id=self._id, share_session_epoch=self._session_epoch,
                max_wait_ms=500, min_bytes=1, max_bytes=50_000_000,
                max_records=MAX_RECORDS, batch_size=MAX_RECORDS,
                topics=[ShareFetchTopic(topic_id=self._topic_id, partitions=[partition])],
            )  # fmt: skip
            response = await self._fetches.send(request, ShareFetchResponse)
            assert not response.error_code, response
            self._session_epoch, self._taken = self._session_epoch + 1, []
            for topic in response.responses:
                for found in topic.partitions:
                    await self._take(found)

    async def _take(self, found: ShareFetchPartitionData) -> None:
        assert not found.error_code, found
        assert not found.acknowledge_error_code, found
        self._taken = [
            AcknowledgementBatch(
                first_offset=taken.first_offset, last_offset=taken.last_offset, acknowledge_types=_ACCEPT
            )
            for taken in found.acquired_records
        ]
        if self._measured.is_timed and self._taken:
            times_ms = [
                record.timestamp_ms
                for batch in split_batches(found.records or b"")
                for record in iter_records(batch)
            ]
            await self._accept()
            now_ms = time.time() * 1000
            self._measured.latencies_ms += [now_ms - time_ms for time_ms in times_ms]
        self._measured.count(
            sum(taken.last_offset - taken.first_offset + 1 for taken in found.acquired_records)
        )

    async def _accept(self) -> None:
        partition = AcknowledgePartition(partition_index=0, acknowledgement_batches=self._taken)
        request = ShareAcknowledgeRequest(
            group_id=self._group, member_id=self._id, share_session_epoch=self._session_epoch,
            topics=[AcknowledgeTopic(topic_id=self._topic_id, partitions=[partition])],
        )  # fmt: skip
        response = await self._fetches.send(request, ShareAcknowledgeResponse)
        assert not response.error_code, response
        assert not any(found.error_code for topic in response.responses for found in topic.partitions)
        self._session_epoch, self._taken = self._session_epoch + 1, []


def produce(servers: str, topic: str, count: int, rate: float) -> None:
    """Write so many records, at a rate or as fast as it can."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 0 if rate else 5,
            "batch.num.messages": MAX_RECORDS,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    begun = time.monotonic()
    for number in range(count):
        if rate:
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
        producer.produce(topic, _VALUE)
        producer.poll(0)
    assert not producer.flush(120)


async def _produce_apart(servers: str, topic: str, count: int, rate: float) -> None:
    """Write in a process of its own, which takes no time from the members."""
    arguments = ["--servers", servers, "--topic", topic, "--records", str(count), "--rate", str(rate)]
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments)
    try:
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()


async def measure(
    contender: Contender, run: str, members: int, records: int, rate: int, seconds: float
) -> Figures:
    """Measure a group on a topic of its own; `run` is the name of both."""
    servers = contender.bootstrap_servers
    async with Admin(servers) as admin:
        await admin.topics.create(run, partitions=1)
        await admin.configs.alter(_GROUP_RESOURCE, run, {"share.auto.offset.reset": "earliest"})
    await _produce_apart(servers, run, records, 0)
    measured = Measured()
    async with AsyncExitStack() as stack:
        joined = [await _member(stack, contender, run, measured) for _ in range(members)]
        await asyncio.gather(*[member.join() for member in joined])
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(member.stay()) for member in joined]
            begun, cpu = time.perf_counter(), contender.cpu_seconds()
            running += [tasks.create_task(member.read()) for member in joined]
            await measured.until(records)
            took_s, read_cpu_s = time.perf_counter() - begun, contender.cpu_seconds() - cpu
            measured.is_timed = True
            await _produce_apart(servers, run, int(rate * _WARM_UP_S), rate)
            measured.latencies_ms.clear()
            cpu = contender.cpu_seconds()
            await _produce_apart(servers, run, int(rate * seconds), rate)
            await measured.until(records + int(rate * _WARM_UP_S) + int(rate * seconds))
            timed_cpu_s = contender.cpu_seconds() - cpu
            for task in running:
                task.cancel()
    percentiles = statistics.quantiles(measured.latencies_ms, n=100)
    return {
        ("read and accepted", "records/s"): records / took_s,
        ("broker's CPU per million", "s"): read_cpu_s / records * 1e6,
        (f"{rate:,}/s, produce to accepted, p50", "ms"): percentiles[49],
        (f"{rate:,}/s, produce to accepted, p99", "ms"): percentiles[98],
        (f"{rate:,}/s, broker's CPU per record", "ms"): timed_cpu_s / (rate * seconds) * 1000,
    }


async def _member(stack: AsyncExitStack, contender: Contender, run: str, measured: Measured) -> Member:
    fetches, heartbeats = [
        Connection(Address("127.0.0.1", contender.port), ClientConfig(client_id="share")) for _ in range(2)
    ]
    for connection in (fetches, heartbeats):
        await connection.connect()
        stack.push_async_callback(connection.close)
    return Member(run, run, fetches, heartbeats, measured)


def main() -> None:
    """Write records: the other process of a measurement."""
    parser = argparse.ArgumentParser(description="Write records to a topic, at a rate or as fast as it can.")
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.0)
    chosen = parser.parse_args()
    produce(chosen.servers, chosen.topic, chosen.records, chosen.rate)


# Not a benchmark by itself: `new_protocols.py` runs it.
if __name__ == "__main__":
    main()
