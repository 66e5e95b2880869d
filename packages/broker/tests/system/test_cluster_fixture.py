"""The fixture `ottla_cluster`: three brokers that a test kills one by one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerCluster, BrokerFailed, BrokerProcess
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

BOUND_S = 60.0
NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_killed_broker_leaves_the_cluster_and_comes_back(ottla_cluster: BrokerCluster) -> None:
    async with Admin(ottla_cluster.bootstrap_servers) as admin:

        async def ids() -> list[int]:
            return [each.id for each in (await admin.brokers.describe()).brokers]

        assert await ids() == [1, 2, 3]
        ottla_cluster.brokers[2].kill()

        async def is_gone() -> bool:
            return await ids() == [1, 3]

        await until(is_gone)
        ottla_cluster.brokers[2].restart()

        async def is_back() -> bool:
            return await ids() == [1, 2, 3]

        await until(is_back)


async def test_a_broker_killed_and_started_at_once_takes_its_registration_back(
    cluster: BrokerCluster,
) -> None:
    cluster.brokers[1].kill()
    cluster.brokers[1].restart()

    async with Admin(cluster.brokers[1].bootstrap_servers) as admin:

        async def has_a_controller() -> bool:
            found = (await admin.brokers.describe()).brokers
            return len(found) == 3 and any(each.is_controller for each in found)

        await until(has_a_controller)


@pytest.mark.ottla_broker(num_partitions=2)
async def test_the_marker_sets_settings_of_all_brokers(ottla_cluster: BrokerCluster) -> None:
    async with Admin(ottla_cluster.bootstrap_servers) as admin:
        created = await admin.topics.create("orders")

    assert created.partitions == 2


async def test_a_broker_that_starts_again_never_says_that_a_topic_does_not_exist(
    cluster: BrokerCluster,
) -> None:
    async with Admin(cluster.bootstrap_servers) as admin:
        await admin.topics.create("orders", partitions=6)
    for node in (1, 2, 3):
        broker = cluster.brokers[node]
        broker.kill()
        broker.start()  # returns with the first accepted connection

        answer = await first_metadata(broker, "orders")

        assert [(each.error_code, len(each.partitions)) for each in answer.topics] == [(0, 6)]
        assert node in [each.node_id for each in answer.brokers]


async def first_metadata(broker: BrokerProcess, topic: str) -> MetadataResponse:
    connection = Connection(Address(broker.host, broker.port), ClientConfig())
    await connection.connect()
    try:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        return await connection.send(asked, MetadataResponse, timeout_s=BOUND_S)
    finally:
        await connection.close()


async def test_a_broker_that_starts_again_says_that_it_does_not_lead_yet(
    cluster: BrokerCluster,
) -> None:
    async with Admin(cluster.bootstrap_servers) as admin:
        await admin.topics.create("led-by-1", assignments={0: [1]})
    broker = cluster.brokers[1]
    broker.kill()
    broker.start()

    async with asyncio.timeout(BOUND_S):
        codes = [await first_list_offsets(broker, "led-by-1")]
        while codes[-1]:
            codes.append(await first_list_offsets(broker, "led-by-1"))

    assert set(codes) <= {NOT_LEADER, 0}


async def first_list_offsets(broker: BrokerProcess, topic: str) -> int:
    connection = Connection(Address(broker.host, broker.port), ClientConfig())
    await connection.connect()
    try:
        asked = ListOffsetsRequest(
            topics=[ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(timestamp=-2)])]
        )
        answer = await connection.send(asked, ListOffsetsResponse, timeout_s=BOUND_S)
        return answer.topics[0].partitions[0].error_code
    finally:
        await connection.close()


def test_a_shared_cluster_is_made_whole_for_the_next_test(cluster: BrokerCluster) -> None:
    cluster.brokers[1].pause()
    cluster.brokers[2].kill()

    cluster.restore()

    assert [metadata_of(broker) for broker in cluster.brokers.values()] == [{1, 2, 3}] * 3


def metadata_of(broker: BrokerProcess) -> set[int]:
    answer = asyncio.run(first_metadata(broker, "none"))
    return {each.node_id for each in answer.brokers}


def test_a_broker_of_a_shared_cluster_that_ended_by_itself_is_named(cluster: BrokerCluster) -> None:
    ended = cluster.brokers[3]
    os.kill(ended.pid, signal.SIGKILL)
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(BrokerFailed, match="has ended with status -9"):
        cluster.restore()

    ended.kill()


@pytest.mark.ottla_broker(metrics_port=0)
def test_each_broker_of_the_cluster_has_a_page_of_metrics(ottla_cluster: BrokerCluster) -> None:
    pages = {}
    for node, url in ottla_cluster.metrics_urls.items():
        with urlopen(url, timeout=BOUND_S) as answer:
            pages[node] = answer.read().decode()

    active = "kafka_controller_kafkacontroller_activecontrollercount 1.0"
    assert list(pages) == [1, 2, 3]
    assert len([node for node, page in pages.items() if active in page]) == 1


def test_a_process_without_a_page_of_metrics_says_how_to_have_one(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)

    with pytest.raises(BrokerFailed, match=r"metrics\.port=0"):
        _ = broker.metrics_url


def test_a_process_that_is_not_started_has_no_address_of_its_page(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"metrics.port": "0"})

    with pytest.raises(BrokerFailed, match="start the broker first"):
        _ = broker.metrics_url
