"""Two requests sent together on one connection to a whole broker: the second sees what the first has done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from ottla.broker.api.testing import batch_of
from ottla.broker.config import BrokerConfig
from ottla.broker.server.broker import Broker
from ottla.client.config import Address
from ottla.client.connection import Connection
from ottla.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.protocol.schema import Message

TIMES = 10
EARLIEST = -2
A = TypeVar("A", bound=Message)
B = TypeVar("B", bound=Message)


@asynccontextmanager
async def connected(directory: Path) -> AsyncIterator[Connection]:
    config = BrokerConfig(log_dir=str(directory), listeners="PLAINTEXT://127.0.0.1:0")
    async with asyncio.timeout(60), Broker(config) as broker:
        async with Connection(Address("127.0.0.1", broker.port)) as connection:
            yield connection


async def together(
    connection: Connection, first: Message, first_answer: type[A], second: Message, second_answer: type[B]
) -> tuple[A, B]:
    """Send both before either is answered."""
    async with asyncio.TaskGroup() as group:
        one = group.create_task(connection.send(first, first_answer))
        two = group.create_task(connection.send(second, second_answer))
    return one.result(), two.result()


def creation(name: str) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=20_000)


def metadata_of(name: str) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


async def created(connection: Connection, name: str) -> None:
    answer = await connection.send(creation(name), CreateTopicsResponse)
    assert [one.error_code for one in answer.topics] == [0]


def production(topic: str, count: int) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=batch_of(*[b"value"] * count))
    data = [TopicProduceData(name=topic, partition_data=[partition])]
    return ProduceRequest(acks=1, timeout_ms=20_000, topic_data=data)


async def test_metadata_behind_create_topics_names_the_topic(tmp_path: Path) -> None:
    async with connected(tmp_path) as connection:
        seen = [
            (
                await together(
                    connection, creation(name), CreateTopicsResponse, metadata_of(name), MetadataResponse
                )
            )[1].topics[0].error_code
            for name in (f"topic-{number}" for number in range(TIMES))
        ]  # fmt: skip
    assert seen == [0] * TIMES


async def test_metadata_behind_create_partitions_has_the_new_partitions(tmp_path: Path) -> None:
    async with connected(tmp_path) as connection:
        await created(connection, "orders")
        seen = []
        for count in range(2, 2 + TIMES):
            more = CreatePartitionsTopic(name="orders", count=count, assignments=None)
            request = CreatePartitionsRequest(topics=[more], timeout_ms=20_000)
            _, metadata = await together(
                connection, request, CreatePartitionsResponse, metadata_of("orders"), MetadataResponse
            )
            seen.append(len(metadata.topics[0].partitions))
    assert seen == list(range(2, 2 + TIMES))


async def test_metadata_behind_delete_topics_does_not_know_the_topic(tmp_path: Path) -> None:
    async with connected(tmp_path) as connection:
        seen = []
        for number in range(TIMES):
            name = f"topic-{number}"
            await created(connection, name)
            request = DeleteTopicsRequest(topic_names=[name], timeout_ms=20_000)
            connection_answers = await together(
                connection, request, DeleteTopicsResponse, metadata_of(name), MetadataResponse
            )
            seen.append(connection_answers[1].topics[0].error_code)
    assert seen == [3] * TIMES


async def test_list_offsets_behind_delete_records_has_the_new_start(tmp_path: Path) -> None:
    async with connected(tmp_path) as connection:
        await created(connection, "orders")
        await connection.send(production("orders", TIMES), ProduceResponse)
        seen = []
        for start in range(1, 1 + TIMES):
            partition = DeleteRecordsPartition(partition_index=0, offset=start)
            request = DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name="orders", partitions=[partition])], timeout_ms=20_000
            )
            asked = ListOffsetsTopic(
                name="orders", partitions=[ListOffsetsPartition(partition_index=0, timestamp=EARLIEST)]
            )
            _, offsets = await together(
                connection, request, DeleteRecordsResponse,
                ListOffsetsRequest(replica_id=-1, topics=[asked]), ListOffsetsResponse,
            )  # fmt: skip
            seen.append(offsets.topics[0].partitions[0].offset)
    assert seen == list(range(1, 1 + TIMES))


async def test_describe_configs_behind_an_alteration_has_the_new_value(tmp_path: Path) -> None:
    topic_kind = 2
    async with connected(tmp_path) as connection:
        await created(connection, "orders")
        seen = []
        for number in range(TIMES):
            value = IncrementalAlterableConfig(
                name="retention.ms", config_operation=0, value=str(1000 + number)
            )
            resource = IncrementalAlterConfigsResource(
                resource_type=topic_kind, resource_name="orders", configs=[value]
            )
            asked = DescribeConfigsResource(
                resource_type=topic_kind, resource_name="orders", configuration_keys=["retention.ms"]
            )
            _, configs = await together(
                connection, IncrementalAlterConfigsRequest(resources=[resource]),
                IncrementalAlterConfigsResponse, DescribeConfigsRequest(resources=[asked]),
                DescribeConfigsResponse,
            )  # fmt: skip
            seen.append(configs.results[0].configs[0].value)
    assert seen == [str(1000 + number) for number in range(TIMES)]


@pytest.mark.parametrize("is_known", [False, True], ids=["general path", "fast path"])
async def test_a_produce_behind_a_waiting_fetch_is_appended_after_its_answer(
    tmp_path: Path, is_known: bool
) -> None:
    async with connected(tmp_path) as connection:
        await created(connection, "orders")
        offset = 0
        if is_known:
            await connection.send(production("orders", 1), ProduceResponse)
            offset = 1
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
        fetch = FetchRequest(
            max_wait_ms=200, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=[partition])]
        )
        fetched, produced = await together(
            connection, fetch, FetchResponse, production("orders", 1), ProduceResponse
        )

    assert not fetched.responses[0].partitions[0].records
    assert produced.responses[0].partition_responses[0].base_offset == offset
