"""Transactions of version 2 (KIP-890): brokers register writes, and each end brings the next epoch."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.errors import UnsupportedByBroker
from ottla.client.testing import ScriptedBroker
from ottla.producer import Producer, ProducerFenced, TransactionFailed
from ottla.protocol.errors import ErrorCode, InvalidTxnState
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.protocol.records import read_headers
from ottla.protocol.schema import Message
from ottla.protocol.topics import TopicPartition
from peers.accepting_broker import acknowledged
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


def second_version(versions: dict[int, tuple[int, int]] | None = None) -> ScriptedBroker:
    """Return a coordinator of version 2: producer 7 has epoch 10 times the transactions that ended."""
    broker = coordinating(ScriptedBroker(versions))
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


async def test_a_leader_that_rejects_the_epoch_means_that_the_producer_is_fenced() -> None:
    async with second_version() as broker, asyncio.timeout(60):
        broker.on(ProduceRequest, lambda request: acknowledged(request, ErrorCode.INVALID_PRODUCER_EPOCH))
        async with Producer(broker.bootstrap_servers, transactional_id="t") as producer:
            await producer.begin_transaction()
            with pytest.raises(ProducerFenced, match="another one uses the transactional id 't'"):
                await producer.send_and_wait("t", b"x")
            for call in (producer.commit_transaction, producer.abort_transaction, producer.begin_transaction):
                with pytest.raises(ProducerFenced):
                    await call()

    assert broker.seen(AddPartitionsToTxnRequest) == broker.seen(EndTxnRequest) == []


async def test_a_commit_that_finds_the_abort_of_the_coordinator_fences_the_producer() -> None:
    async with second_version() as broker, asyncio.timeout(60):
        broker.on(EndTxnRequest, lambda _: EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE))
        async with Producer(broker.bootstrap_servers, transactional_id="t") as producer:
            await producer.begin_transaction()
            await producer.send_and_wait("t", b"x")
            for call in (producer.commit_transaction, producer.abort_transaction, producer.begin_transaction):
                with pytest.raises(ProducerFenced):
                    await call()


async def test_a_record_outside_of_the_open_transaction_fails_it_and_the_abort_finds_out_more() -> None:
    """A leader says so where the marker of another end has come between, and is no proof of it."""
    writes = [ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE]
    async with second_version() as broker, asyncio.timeout(60):
        broker.on(ProduceRequest, lambda request: acknowledged(request, writes.pop()))
        async with Producer(broker.bootstrap_servers, transactional_id="t") as producer:
            await producer.begin_transaction()
            with pytest.raises(InvalidTxnState):
                await producer.send_and_wait("t", b"x")
            with pytest.raises(TransactionFailed):
                await producer.commit_transaction()
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait("t", b"y")

    assert epochs(broker) == [(9, 0, 0), (7, 10, 0)]


async def test_requests_that_meet_the_markers_of_the_last_transaction_are_repeated() -> None:
    busy = ErrorCode.CONCURRENT_TRANSACTIONS
    ends = [EndTxnResponse(producer_id=7, producer_epoch=1), *[EndTxnResponse(error_code=busy)] * 3]
    offsets, writes = [ErrorCode.NONE, busy], [ErrorCode.NONE, busy]
    async with second_version() as broker, asyncio.timeout(60):
        broker.on(EndTxnRequest, lambda _: ends.pop())
        broker.on(TxnOffsetCommitRequest, lambda request: stored(request, offsets.pop()))
        broker.on(ProduceRequest, lambda request: acknowledged(request, writes.pop()))
        async with Producer(broker.bootstrap_servers, transactional_id="t") as producer:
            async with producer.transaction():
                await producer.send_and_wait("t", b"x")
                await producer.send_offsets(OFFSETS, "g")

    assert len(broker.seen(EndTxnRequest)) == 4
    assert epochs(broker)[0] == epochs(broker)[1]


def stored(request: TxnOffsetCommitRequest, error: ErrorCode) -> TxnOffsetCommitResponse:
    parts = [TxnOffsetCommitResponsePartition(partition_index=0, error_code=error)]
    return TxnOffsetCommitResponse(
        topics=[TxnOffsetCommitResponseTopic(name=topic.name, partitions=parts) for topic in request.topics]
    )


def names(request: MetadataRequest) -> list[str]:
    return [topic.name for topic in request.topics or () if topic.name is not None]


async def test_an_upgrade_between_two_transactions_raises_the_epoch_and_a_downgrade_keeps_it() -> None:
    initialized: list[InitProducerIdRequest] = []

    def initialize(request: InitProducerIdRequest) -> InitProducerIdResponse:
        initialized.append(request)
        return InitProducerIdResponse(producer_id=7, producer_epoch=request.producer_epoch + 1)

    async with second_version() as broker, asyncio.timeout(60):
        broker.on(InitProducerIdRequest, initialize)
        broker.on(MetadataRequest, lambda request: broker.metadata(*names(request)))
        async with Producer(broker.bootstrap_servers, transactional_id="t") as producer:
            for number, level in enumerate((2, 1, 2, 0)):
                broker.features, broker.features_epoch = {"transaction.version": level}, number
                broker.drop_connections()
                await producer.partitions_for(f"t{number}")  # connects again
                async with producer.transaction():
                    await producer.send_and_wait(f"t{number}", b"x")

    assert versions(broker, ProduceRequest) == [12, 11, 12, 11]
    assert versions(broker, EndTxnRequest) == [5, 4, 5, 4]
    asked = [(request.producer_id, request.producer_epoch) for request in initialized]
    assert asked == [(-1, -1), (7, 10)]
    assert [epoch for _, epoch, _ in epochs(broker)] == [0, 10, 11, 30]


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


async def test_a_transaction_ends_in_its_epoch_at_a_coordinator_of_kafka_3_and_the_next_has_another() -> None:
    """Its broker joined the cluster meanwhile, so the features are off: the producer may not know it yet."""
    async with second_version({EndTxnRequest.API_KEY: (0, 4)}) as broker, asyncio.timeout(60):
        broker.on(EndTxnRequest, lambda _: EndTxnResponse())
        async with Producer(broker.bootstrap_servers, transactional_id="t") as producer:
            for end in (producer.commit_transaction, producer.abort_transaction):
                await producer.begin_transaction()
                await producer.send_and_wait("t", b"x")
                await end()

    assert versions(broker, EndTxnRequest) == [4, 4]
    assert [request.producer_epoch for request in broker.seen(InitProducerIdRequest)] == [-1, 0]


async def test_a_transaction_that_a_leader_of_kafka_3_cannot_join_is_aborted_and_the_producer_goes_on() -> (
    None
):
    async with second_version({ProduceRequest.API_KEY: (0, 11)}) as broker, asyncio.timeout(60):
        async with Producer(broker.bootstrap_servers, transactional_id="t") as producer:
            await producer.begin_transaction()
            with pytest.raises(UnsupportedByBroker):
                await producer.send_and_wait("t", b"x")
            with pytest.raises(TransactionFailed):
                await producer.commit_transaction()
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_offsets(OFFSETS, "g")

    assert [request.committed for request in broker.seen(EndTxnRequest)] == [False, True]
