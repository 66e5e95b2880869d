"""Transactions of version 2 (KIP-890): brokers register writes, and each end brings the next epoch."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.testing import ScriptedBroker
from ottla.producer import Producer
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
)
from ottla.protocol.records import read_headers
from ottla.protocol.schema import Message
from ottla.protocol.topics import TopicPartition
from peers.scripted_coordinator import coordinating

OFFSETS = {TopicPartition("t", 0): 5}


def versions(broker: ScriptedBroker, kind: type[Message]) -> list[int]:
    return [version for request, version in broker.requests if isinstance(request, kind)]


def epochs(broker: ScriptedBroker) -> list[tuple[int, int, int]]:
    """Return producer id, epoch and base sequence of each batch that arrived."""
    batches = [
        batch
        for request in broker.seen(ProduceRequest)
        for topic in request.topic_data
        for part in topic.partition_data
        for batch in read_headers(part.records or b"")
    ]
    return [(batch.producer_id, batch.producer_epoch, batch.base_sequence) for batch in batches]


def second_version() -> ScriptedBroker:
    """Return a coordinator of version 2: producer 7 has epoch 10 times the transactions that ended."""
    broker = coordinating(ScriptedBroker())
    broker.features = {"transaction.version": 2}
    broker.on(
        EndTxnRequest,
        lambda _: EndTxnResponse(producer_id=7, producer_epoch=10 * len(broker.seen(EndTxnRequest))),
    )
    return broker


async def test_a_transaction_registers_nothing_and_its_end_brings_the_next_epoch() -> None:
    async with second_version() as broker, asyncio.timeout(60):
        async with Producer(broker.bootstrap_servers, transactional_id="t") as producer:
            for _ in range(2):
                async with producer.transaction():
                    await producer.send_and_wait("t", b"x")
                    await producer.send_offsets(OFFSETS, "g")

    assert broker.seen(AddPartitionsToTxnRequest) == broker.seen(AddOffsetsToTxnRequest) == []
    assert versions(broker, ProduceRequest) == [12, 12]
    assert versions(broker, TxnOffsetCommitRequest) == versions(broker, EndTxnRequest) == [5, 5]
    assert epochs(broker)[1] == (7, 10, 0)
    assert [request.producer_epoch for request in broker.seen(EndTxnRequest)][1:] == [10]


async def test_an_abort_brings_the_next_epoch_too_and_an_empty_transaction_ends_without_a_request() -> None:
    async with second_version() as broker, asyncio.timeout(60):
        async with Producer(broker.bootstrap_servers, transactional_id="t") as producer:
            await producer.begin_transaction()
            await producer.send_and_wait("t", b"x")
            await producer.abort_transaction()
            async with producer.transaction():
                pass
            async with producer.transaction():
                await producer.send_and_wait("t", b"y")

    assert [request.committed for request in broker.seen(EndTxnRequest)] == [False, True]
    assert epochs(broker)[1] == (7, 10, 0)


@pytest.mark.parametrize("level", [0, 1])
async def test_a_cluster_without_the_feature_is_sent_version_1(level: int) -> None:
    async with second_version() as broker, asyncio.timeout(60):
        broker.features = {"transaction.version": level} if level else {}
        async with Producer(broker.bootstrap_servers, transactional_id="t") as producer:
            async with producer.transaction():
                await producer.send_and_wait("t", b"x")
                await producer.send_offsets(OFFSETS, "g")

    assert len(broker.seen(AddPartitionsToTxnRequest)) == len(broker.seen(AddOffsetsToTxnRequest)) == 1
    assert (versions(broker, ProduceRequest), versions(broker, EndTxnRequest)) == ([11], [4])
