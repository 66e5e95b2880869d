"""Requests that only brokers send, from a client of a running broker."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.cluster.topics import NewTopic
from ottla.broker.config import broker_config_from
from ottla.broker.server.broker import Broker
from ottla.broker.testing import free_port
from ottla.protocol.api import (
    ApiKey,
    RequestHeader,
    decode_response_header,
    encode_request_header,
    response_class,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.control_requests import (
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from ottla.protocol.messages.controller_requests import AlterPartitionRequest, ControlledShutdownRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.embedded import EmbeddedCoordinator

BOUND_S = 30.0
REFUSED = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
"""The answer to a whole request; partitions get TOPIC_AUTHORIZATION_FAILED."""


async def ask(broker: Broker, request: Any, version: int, source: str = "127.0.0.1") -> Any:
    """Send one request on a connection of its own and return the decoded response."""
    key = ApiKey(request.API_KEY)
    head = encode_request_header(RequestHeader(int(key), version, 7, "stranger"))
    frame = head + request.encode(version)
    async with asyncio.timeout(BOUND_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port, local_addr=(source, 0))
        try:
            writer.write(struct.pack(">i", len(frame)) + frame)
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            body = await reader.readexactly(size)
        finally:
            writer.close()
    _, offset = decode_response_header(body, key, version)
    return response_class(key).decode(body[offset:], version)


def settings(directory: Path, **more: str) -> dict[str, str]:
    dotted = {name.replace("_", "."): value for name, value in more.items()}
    return {
        "broker.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory), **dotted
    }  # fmt: skip


@pytest.fixture
async def lone(tmp_path: Path) -> AsyncIterator[Broker]:
    """One broker with its own coordinator and a topic `t`."""
    async with Broker(broker_config_from(settings(tmp_path / "lone"))) as broker:
        await broker.services.topics.create(NewTopic("t", 1, 1))
        await broker.services.topics.wait_until_led("t", 1, BOUND_S * 1000)
        yield broker


CONTROL_REQUESTS = [
    (LeaderAndIsrRequest(controller_id=1, controller_epoch=99, broker_epoch=-1), 5),
    (StopReplicaRequest(controller_id=1, controller_epoch=99, broker_epoch=-1), 3),
    (UpdateMetadataRequest(controller_id=1, controller_epoch=99, broker_epoch=-1), 7),
    (ControlledShutdownRequest(broker_id=1, broker_epoch=-1), 3),
    (AlterPartitionRequest(broker_id=1, broker_epoch=-1), 0),
]


@pytest.mark.parametrize(
    ("request_of_brokers", "version"), CONTROL_REQUESTS, ids=lambda one: type(one).__name__
)
async def test_a_client_is_refused_what_only_brokers_send(
    lone: Broker, request_of_brokers: Any, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "request")

    answer = await ask(lone, request_of_brokers, version)

    assert answer.error_code == REFUSED
    refusals = [record.__dict__ for record in caplog.records if "only brokers" in record.getMessage()]
    assert [facts["client"] for facts in refusals] == ["127.0.0.1"]
    assert "zookeeper.connect" in refusals[0]["reason"]


async def test_a_frame_does_not_remove_the_brokers_from_metadata(lone: Broker) -> None:
    await ask(lone, UpdateMetadataRequest(controller_id=1, controller_epoch=99, broker_epoch=-1), 7)

    answer: MetadataResponse = await ask(lone, MetadataRequest(topics=None), 9)

    assert [one.node_id for one in answer.brokers] == [1]
    assert "t" in [one.name for one in answer.topics]


def fetch(replica_id: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        replica_id=replica_id, max_wait_ms=0, topics=[FetchTopic(topic="t", partitions=[partition])]
    )


@pytest.mark.parametrize("version", [0, 4, 7, 12])
async def test_a_client_does_not_fetch_as_a_follower(lone: Broker, version: int) -> None:
    refused, served = await ask(lone, fetch(2), version), await ask(lone, fetch(-1), version)

    assert refused.responses[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert refused.responses[0].partitions[0].high_watermark == -1
    assert refused.session_id == 0
    assert served.responses[0].partitions[0].error_code == 0


async def test_a_client_that_claims_to_be_a_follower_lists_offsets_as_a_consumer(lone: Broker) -> None:
    topics = [ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])]

    claimed = await ask(lone, ListOffsetsRequest(replica_id=0, topics=topics), 6)
    consumer = await ask(lone, ListOffsetsRequest(replica_id=-1, topics=topics), 6)

    assert consumer.topics[0].partitions[0].error_code == 0
    assert claimed == consumer


async def test_a_client_that_claims_to_be_a_follower_gets_the_epochs_of_a_consumer(lone: Broker) -> None:
    topics = [
        OffsetForLeaderTopic(topic="t", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)])
    ]

    claimed = await ask(lone, OffsetForLeaderEpochRequest(replica_id=0, topics=topics), 4)
    consumer = await ask(lone, OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), 4)
    oldest = await ask(lone, OffsetForLeaderEpochRequest(topics=topics), 2)

    assert consumer.topics[0].partitions[0].error_code == 0
    assert claimed == consumer
    assert oldest.topics[0].partitions[0].error_code == 0


async def test_on_a_shared_listener_a_registered_brokers_address_is_served(tmp_path: Path) -> None:
    """The second broker's requests come from 127.0.0.1, as a client's here do."""
    async with EmbeddedCoordinator() as coordinator:
        common = {"zookeeper_connect": coordinator.connect_string}
        async with Broker(broker_config_from(settings(tmp_path / "1", **common))) as first:
            alone = await ask(first, fetch(2), 12)
            async with Broker(
                broker_config_from(settings(tmp_path / "2", **common) | {"broker.id": "2"})
            ) as second:
                together = await ask(first, fetch(2), 12)
                assert second.services.metadata.alive_broker_ids == [1, 2]

    assert alone.responses[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert together.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("listening_at", ["127.0.0.{}", "0.0.0.0"])
async def test_brokers_at_addresses_of_their_own_form_a_cluster(tmp_path: Path, listening_at: str) -> None:
    """Without a choice the system connects from 127.0.0.1, which is the address of none of them."""
    async with EmbeddedCoordinator() as coordinator, AsyncExitStack() as stack:
        brokers = []
        for number in (2, 3, 4):
            port = free_port()
            own = {
                "broker.id": str(number),
                "listeners": f"PLAINTEXT://{listening_at.format(number)}:{port}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.{number}:{port}",
                "zookeeper.connect": coordinator.connect_string,
            }
            config = broker_config_from(settings(tmp_path / str(number)) | own)
            brokers.append(await stack.enter_async_context(Broker(config)))
        await brokers[0].services.topics.create(NewTopic("t", assignments={0: [3, 2, 4]}))

        async with asyncio.timeout(BOUND_S):
            for broker in brokers:
                metadata = broker.services.metadata
                await metadata.until(lambda: metadata.leader_of(TopicPartition("t", 0)) == 3)  # noqa: B023
                assert metadata.alive_broker_ids == [2, 3, 4]


async def test_a_network_of_brokers_is_served_and_any_other_address_is_refused_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "request")
    async with EmbeddedCoordinator() as coordinator:
        common = {"zookeeper_connect": coordinator.connect_string, "inter_broker_networks": "127.0.0.8/31"}
        async with (
            Broker(broker_config_from(settings(tmp_path / "1", **common))) as first,
            Broker(broker_config_from(settings(tmp_path / "2", **common) | {"broker.id": "2"})),
        ):
            listed = await ask(first, fetch(2), 12, source="127.0.0.9")
            stranger = await ask(first, fetch(2), 12, source="127.0.0.10")

    assert listed.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert stranger.responses[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    [refusal] = [record.__dict__ for record in caplog.records if "only brokers" in record.getMessage()]
    assert refusal["client"] == "127.0.0.10"
    assert "127.0.0.1" in refusal["reason"]
    assert "inter.broker.networks" in refusal["reason"]


async def test_brokers_with_a_listener_of_their_own_serve_each_other_there_only(tmp_path: Path) -> None:
    apart = {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
    }
    async with EmbeddedCoordinator() as coordinator:
        common = apart | {"zookeeper.connect": coordinator.connect_string}
        async with (
            Broker(broker_config_from(settings(tmp_path / "1") | common)) as first,
            Broker(broker_config_from(settings(tmp_path / "2") | common | {"broker.id": "2"})) as second,
        ):
            assert first.services.metadata.alive_broker_ids == [1, 2]
            assert second.services.metadata.alive_broker_ids == [1, 2]
            update = UpdateMetadataRequest(controller_id=1, controller_epoch=99, broker_epoch=-1)
            assert (await ask(first, update, 7)).error_code == REFUSED
            assert (await ask(second, update, 7)).error_code == REFUSED
