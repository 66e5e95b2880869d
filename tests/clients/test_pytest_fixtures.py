"""The pytest fixtures serve the groups, queues and transactions of Kafka 4.4 without settings."""

from __future__ import annotations

import asyncio
import time

import confluent_kafka
import pytest

from ottla.admin import Admin
from ottla.admin.configs import GROUP
from ottla.client.cluster import Cluster
from ottla.consumer import Consumer, ShareConsumer
from ottla.producer import Producer
from ottla.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    Topology,
)
from ottla.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)

BOUND_S = 60.0
JOBS = [b"wash", b"dry", b"iron", b"fold"]


@pytest.fixture(params=["ottla_broker", "ottla_broker_process", "ottla_cluster"])
async def servers(request: pytest.FixtureRequest) -> str:
    """The brokers of each fixture, with a topic of four records."""
    found: str = request.getfixturevalue(request.param).bootstrap_servers
    async with Admin(found) as admin:
        await admin.topics.create("jobs")
    async with Producer(bootstrap_servers=found) as producer:
        for job in JOBS:
            await producer.send_and_wait("jobs", job)
    return found


async def test_a_share_group_is_a_queue(servers: str) -> None:
    async with Admin(servers) as admin:
        await admin.configs.alter(GROUP, "workers", {"share.auto.offset.reset": "earliest"})

    given: list[bytes] = []
    async with (
        asyncio.timeout(BOUND_S),
        ShareConsumer("jobs", bootstrap_servers=servers, group_id="workers") as consumer,
    ):
        async for job in consumer:
            if job.value == b"iron" and job.delivery_count == 1:
                await job.release()
                continue
            await job.accept()
            given.append(job.value)
            if len(given) == len(JOBS):
                break

    assert sorted(given) == sorted(JOBS)


async def test_members_of_the_consumer_protocol_read_all(servers: str) -> None:
    ours = Consumer(
        "jobs", bootstrap_servers=servers, group_id="ours", group_protocol="consumer",
        auto_offset_reset="earliest",
    )  # fmt: skip

    async with asyncio.timeout(BOUND_S), ours as consumer:
        read = [(await anext(consumer)).value for _ in JOBS]

    assert read == JOBS
    assert await asyncio.to_thread(read_by_librdkafka, servers) == JOBS


def read_by_librdkafka(servers: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": servers, "group.id": "theirs", "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    consumer.subscribe(["jobs"])
    read: list[bytes] = []
    deadline = time.monotonic() + BOUND_S
    while len(read) < len(JOBS) and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            read.append(message.value())
    consumer.close()
    return read


async def test_a_transaction_of_the_second_version_commits(servers: str) -> None:
    async with (
        asyncio.timeout(BOUND_S),
        Producer(bootstrap_servers=servers, transactional_id="laundry") as producer,
    ):
        for job in (b"press", b"hang"):
            async with producer.transaction():
                await producer.send("jobs", job)

    async with (
        asyncio.timeout(BOUND_S),
        Consumer(
            "jobs", bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer,
    ):
        read = [(await anext(consumer)).value for _ in range(len(JOBS) + 2)]
    async with Admin(servers) as admin:
        described = await admin.features.describe()

    assert read == [*JOBS, b"press", b"hang"]
    assert {each.name: each.level for each in described.features}["transaction.version"] == 2


async def test_a_member_of_a_streams_group_is_given_its_tasks(servers: str) -> None:
    topology = Topology(subtopologies=[Subtopology(subtopology_id="0", source_topics=["jobs"])])
    joining = StreamsGroupHeartbeatRequest(
        group_id="app", member_id="a-member", rebalance_timeout_ms=10_000, topology=topology,
        process_id="a-process", active_tasks=[], standby_tasks=[], warmup_tasks=[],
    )  # fmt: skip

    async with asyncio.timeout(BOUND_S), Cluster(servers) as cluster:
        answer = await heartbeat(cluster, joining)
        while not answer.active_tasks:
            await asyncio.sleep(0.05)
            answer = await heartbeat(cluster, staying(answer.member_epoch))

    (task,) = answer.active_tasks
    assert (answer.error_code, task.subtopology_id, task.partitions) == (0, "0", [0])


async def heartbeat(cluster: Cluster, request: StreamsGroupHeartbeatRequest) -> StreamsGroupHeartbeatResponse:
    async def send() -> StreamsGroupHeartbeatResponse:
        answer = await cluster.send_to_coordinator("app", request, StreamsGroupHeartbeatResponse)
        cluster.raise_coordinator_error("app", answer.error_code)
        return answer

    return await cluster.retry("joining", send)


def staying(epoch: int) -> StreamsGroupHeartbeatRequest:
    return StreamsGroupHeartbeatRequest(group_id="app", member_id="a-member", member_epoch=epoch)


async def test_a_client_may_ask_for_subscriptions_of_telemetry(servers: str) -> None:
    async with asyncio.timeout(BOUND_S), Cluster(servers) as cluster:
        answer = await cluster.send_to_any(
            GetTelemetrySubscriptionsRequest(), GetTelemetrySubscriptionsResponse
        )

    assert (answer.error_code, answer.requested_metrics) == (0, [])
