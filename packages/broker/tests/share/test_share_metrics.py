"""Meters of share groups under Kafka's names: what counts, what is described, and what goes with a group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from ottla.admin import GROUP, Admin
from ottla.broker.metrics import Gauge, Histogram, Meter, Metrics
from ottla.broker.metrics.catalogue import catalogue, kind_of
from ottla.broker.share.metrics import ShareGroupMetrics, SharePartitionMeters
from ottla.broker.share.state import SharePartitionKey
from ottla.broker.testing import BrokerThread
from ottla.consumer import ShareConsumer, ShareConsumerConfig
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition

BOUND_S = 60.0
SETTINGS = {
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "200",
    "share.coordinator.state.topic.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
}
JOBS = TopicPartition("jobs", 0)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("broker"), SETTINGS) as running:
        yield running


def found(broker: BrokerThread, type_: str, name: str, **tags: str) -> float:
    """Return the count of a meter or histogram, or the value of a gauge; -1 where there is none."""
    assert broker.broker is not None
    metric = broker.broker.metrics.get("kafka.server", type_, name, **tags)
    if metric is None:
        return -1
    return metric.count if isinstance(metric, Meter | Histogram) else metric.value


def acquired(broker: BrokerThread, **tags: str) -> float:
    assert broker.broker is not None
    metric = broker.broker.metrics.get(
        "ottla.broker", "SharePartitionMetrics", "AcquiredMessageCount", **tags
    )
    assert isinstance(metric, Gauge)
    return metric.value


def member(broker: BrokerThread) -> ShareConsumer[Any, str]:
    config = ShareConsumerConfig.of(group_id="workers", value_type=str)
    return ShareConsumer("jobs", bootstrap_servers=broker.bootstrap_servers, config=config)


def key(group_id: str = "g") -> SharePartitionKey:
    return SharePartitionKey(group_id, UUID(int=1), 0)


async def test_the_meters_of_a_group_count_what_its_members_do(broker: BrokerThread) -> None:
    of_partition = {"group": "workers", "topic": "jobs", "partition": "0"}
    async with Admin(broker.bootstrap_servers) as admin:
        await admin.topics.create("jobs", partitions=1)
        await admin.configs.alter(GROUP, "workers", {"share.auto.offset.reset": "earliest"})
    async with Producer(broker.bootstrap_servers) as producer:
        await producer.send_many("jobs", [b"%d" % number for number in range(4)])

    async with member(broker) as consumer, asyncio.timeout(BOUND_S):
        for number in range(4):
            job = await consumer.getone()
            assert acquired(broker, **of_partition) >= 1
            await (job.reject() if number == 3 else job.accept())
        job_metrics = {
            name: found(broker, "SharePartitionMetrics", name, **of_partition)
            for name in ("InFlightMessageCount", "InFlightBatchCount", "AcquisitionLockTimeoutPerSec")
        }
        assert job_metrics == {
            "InFlightMessageCount": 0, "InFlightBatchCount": 0,
            "AcquisitionLockTimeoutPerSec": 0,
        }  # fmt: skip
        assert acquired(broker, **of_partition) == 0
        assert found(broker, "ShareSessionCache", "ShareSessionsCount") == 1
        assert found(broker, "ShareSessionCache", "SharePartitionsCount") == 1
        for name in ("InFlightBatchMessageCount", "FetchLockTimeMs", "FetchLockRatio"):
            assert found(broker, "SharePartitionMetrics", name, **of_partition) >= 1
        for name in ("RequestTopicPartitionsFetchRatio", "TopicPartitionsAcquireTimeMs"):
            assert found(broker, "ShareGroupMetrics", name, group="workers") >= 1
        described = {(line.group, line.type, line.name, line.tags, line.kind) for line in catalogue()}
        assert broker.broker is not None
        present = {
            (name.group, name.type, name.name, tuple(tag for tag, _ in name.tags), kind_of(metric))
            for name, metric in broker.broker.metrics
        }
        assert present - described == set()

    counts = {kind: acknowledged(broker, kind) for kind in ("Accept", "Release", "Reject", "Renew")}
    assert counts == {"Accept": 3, "Release": 0, "Reject": 1, "Renew": 0}
    assert found(broker, "ShareGroupMetrics", "PartitionLoadTimeMs") >= 1
    assert found(broker, "share-coordinator-metrics", "write") >= 1
    assert found(broker, "share-coordinator-metrics", "write-latency") >= 1
    assert found(broker, "share-coordinator-metrics", "partition-load-time") >= 0  # empty ones need no load
    for name in ("TotalShareFetchRequestsPerSec", "TotalShareAcknowledgementRequestsPerSec"):
        assert found(broker, "BrokerTopicMetrics", name) >= 1
        assert found(broker, "BrokerTopicMetrics", name, topic="jobs") >= 1
    for name in ("FailedShareFetchRequestsPerSec", "FailedShareAcknowledgementRequestsPerSec"):
        assert found(broker, "BrokerTopicMetrics", name) == 0


def acknowledged(broker: BrokerThread, kind: str) -> float:
    return found(broker, "ShareGroupMetrics", "RecordAcknowledgementsPerSec", ackType=kind)


async def test_the_meters_of_a_share_partition_go_with_its_last_member(broker: BrokerThread) -> None:
    async with Producer(broker.bootstrap_servers) as producer:
        await producer.send_and_wait("jobs", b"last")
    async with member(broker) as consumer, asyncio.timeout(BOUND_S):
        await (await consumer.getone()).accept()

    assert broker.broker is not None
    left = ["all"]
    async with asyncio.timeout(BOUND_S):
        while left:
            left = [str(name) for name in broker.broker.metrics.names() if "workers" in str(name)]
            await asyncio.sleep(0.05)  # the broker writes what the session has left first
    assert found(broker, "ShareSessionCache", "ShareSessionsCount") == 0


def test_no_more_share_partitions_have_meters_than_are_wanted() -> None:
    registry = Metrics()
    metrics = ShareGroupMetrics(registry, 1)
    fixed = len(registry)

    shown = metrics.of_partition(key("a"), JOBS, lambda: None)
    metrics.of_partition(key("b"), JOBS, lambda: None).lock_timeouts.mark(5)

    assert len(registry) == fixed + 7
    assert isinstance(shown, SharePartitionMeters)
    metrics.forget_partition(key("b"), JOBS)
    assert len(registry) == fixed + 7
    metrics.forget_partition(key("a"), JOBS)
    assert len(registry) == fixed


def test_a_group_without_share_partitions_leaves_no_meters_behind() -> None:
    registry = Metrics()
    metrics = ShareGroupMetrics(registry, 10)
    fixed = len(registry)
    metrics.of_partition(key(), JOBS, lambda: None)
    metrics.of_group("g").letters.mark()
    assert len(registry) == fixed + 7 + 5

    metrics.forget_partition(key(), JOBS)
    metrics.forget_group("g")
    metrics.of_group("g").letters.mark()  # a fetch that ends after its group

    assert len(registry) == fixed


def test_the_ratio_of_a_fetch_is_its_part_of_the_time_since_the_one_before() -> None:
    registry = Metrics()
    meters = ShareGroupMetrics(registry, 1).of_partition(key(), JOBS, lambda: None)

    meters.read(0, 10)
    meters.read(80, 110)
    meters.read(110, 110)

    ratio = registry.get("kafka.server", "SharePartitionMetrics", "FetchLockRatio", **meters.tags)
    held = registry.get("kafka.server", "SharePartitionMetrics", "FetchLockTimeMs", **meters.tags)
    assert isinstance(ratio, Histogram)
    assert isinstance(held, Histogram)
    assert (ratio.count, ratio.total) == (3, 100 + 30 + 100)
    assert (held.count, held.total) == (3, 40)
