"""The APIs of the transaction coordinator in every version, from decoded request to encoded answer."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from ottla.broker.api import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
    list_transactions,
)
from ottla.broker.api.group_testing import BROKER, TopicsStub, ask, tell
from ottla.broker.api.testing import CountedTurns, FakeSession
from ottla.broker.cluster.inter_broker_access import Addresses, InterBrokerAccess
from ottla.broker.cluster.metadata import MetadataCache
from ottla.broker.config import BrokerConfig
from ottla.broker.coordinators.coordinator_partitions import partition_for
from ottla.broker.requests.context import RequestContext
from ottla.broker.runtime.loop_budget import LONG_REQUESTS_MS
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.events import Producer, TransactionSnapshot
from ottla.broker.transactions.testing import MemoryCluster, leading, memory_store
from ottla.protocol.api import RequestHeader
from ottla.protocol.errors import ErrorCode, InvalidRegularExpression, InvalidReplicationFactor
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.open_transactions import DescribeTransactionsRequest, ListTransactionsRequest
from ottla.protocol.messages.producer_ids import InitProducerIdRequest
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
)
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition

UNKNOWN, NOT_ATTEMPTED = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
FENCED, OLD_FENCED = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
BROKERS = "127.0.0.1"


@dataclass
class TransactionServices:
    """The parts that the APIs of transactions use; requests come from the address of a broker."""

    config: BrokerConfig
    metadata: MetadataCache
    topics: TopicsStub
    transactions: TransactionCoordinator
    brokers: tuple[str, ...] = (BROKERS,)

    def __post_init__(self) -> None:
        config = BrokerConfig(zookeeper_connect="elsewhere:2181")
        self.inter_broker = InterBrokerAccess(config, self._addresses, lambda: 0.0, between_looks_ms=0)

    async def _addresses(self) -> Addresses:
        return Addresses(self.brokers, are_complete=True)


@pytest.fixture
async def services() -> AsyncIterator[TransactionServices]:
    metadata = MetadataCache(BROKER)
    tell(metadata, {"topic": 2, "other": 1})
    async with leading(memory_store(), MemoryCluster()) as transactions:
        yield TransactionServices(BrokerConfig(), metadata, TopicsStub(metadata), transactions)


def versions(last: int, first: int = 0) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", range(first, last + 1))


async def initialized(services: TransactionServices, transactional_id: str = "t") -> Producer:
    result = await services.transactions.initialize(transactional_id, 60_000)
    assert result.error is ErrorCode.NONE
    return result.producer


def topics(**partitions: list[int]) -> list[AddPartitionsToTxnTopic]:
    return [AddPartitionsToTxnTopic(name=name, partitions=of) for name, of in partitions.items()]


def an_add(producer: Producer, **partitions: list[int]) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=producer.id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=topics(**partitions),
    )


def codes(results: list[AddPartitionsToTxnTopicResult]) -> dict[tuple[str, int], int]:
    return {
        (topic.name, one.partition_index): one.partition_error_code
        for topic in results
        for one in topic.results_by_partition
    }


async def add(
    services: TransactionServices, request: AddPartitionsToTxnRequest, version: int = 3
) -> AddPartitionsToTxnResponse:
    return await ask(services, add_partitions_to_txn.handle, request, version)


# ---- FindCoordinator


@versions(6, first=1)
async def test_the_first_to_ask_for_a_coordinator_creates_the_topic(
    services: TransactionServices, version: int
) -> None:
    several = {"coordinator_keys": ["t"]} if version >= 4 else {"key": "t"}
    request = FindCoordinatorRequest(key_type=1, **several)

    answer: FindCoordinatorResponse = await ask(services, find_coordinator.handle, request, version)

    found: Any = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id, found.host) == (0, BROKER, "localhost")
    assert services.topics.created == [TRANSACTION_STATE_TOPIC]


async def test_without_its_topic_there_is_no_coordinator(services: TransactionServices) -> None:
    services.topics.refusal = InvalidReplicationFactor("not enough brokers")
    request = FindCoordinatorRequest(key="t", key_type=1)

    answer = await ask(services, find_coordinator.handle, request, 3)

    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "not enough brokers" in (answer.error_message or "")


# ---- InitProducerId


@versions(5)
async def test_a_transactional_id_gets_an_epoch(services: TransactionServices, version: int) -> None:
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)

    answers = [await ask(services, init_producer_id.handle, request, version) for _ in range(2)]

    assert [(one.error_code, one.producer_epoch) for one in answers] == [(0, 0), (0, 1)]
    assert len({one.producer_id for one in answers}) == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_bad_initializations_have_kafkas_errors(
    services: TransactionServices, fields: dict[str, Any], error: ErrorCode
) -> None:
    valid: dict[str, Any] = {"transactional_id": "t", "transaction_timeout_ms": 1}
    request = InitProducerIdRequest(**valid | fields)

    answer = await ask(services, init_producer_id.handle, request, 4)

    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (error, -1, -1)


@versions(5, first=3)
async def test_a_fenced_producer_hears_so_in_the_words_of_its_version(
    services: TransactionServices, version: int
) -> None:
    for _ in range(2):
        producer = await initialized(services)
    request = InitProducerIdRequest(
        transactional_id="t", transaction_timeout_ms=1, producer_id=producer.id, producer_epoch=0
    )

    answer = await ask(services, init_producer_id.handle, request, version)

    assert answer.error_code == (FENCED if version >= 4 else OLD_FENCED)


# ---- AddPartitionsToTxn


@versions(3)
async def test_a_client_adds_partitions(services: TransactionServices, version: int) -> None:
    producer = await initialized(services)

    answer = await add(services, an_add(producer, topic=[0, 1], other=[0]), version)

    assert codes(answer.results_by_topic_v3_and_below) == {
        ("topic", 0): 0,
        ("topic", 1): 0,
        ("other", 0): 0,
    }


@versions(3)
async def test_an_unknown_partition_fails_the_others_too(services: TransactionServices, version: int) -> None:
    producer = await initialized(services)

    answer = await add(services, an_add(producer, topic=[0, 2], gone=[0]), version)

    assert codes(answer.results_by_topic_v3_and_below) == {
        ("topic", 0): NOT_ATTEMPTED,
        ("topic", 2): UNKNOWN,
        ("gone", 0): UNKNOWN,
    }
    described = services.transactions.describe("t")
    assert isinstance(described, TransactionSnapshot)
    assert not described.partitions


@versions(3)
async def test_requests_of_a_replaced_producer_are_refused(
    services: TransactionServices, version: int
) -> None:
    fenced = await initialized(services)
    await initialized(services)
    error = FENCED if version >= 2 else OLD_FENCED
    offsets = AddOffsetsToTxnRequest(
        transactional_id="t", producer_id=fenced.id, producer_epoch=fenced.epoch, group_id="g"
    )
    end = EndTxnRequest(
        transactional_id="t", producer_id=fenced.id, producer_epoch=fenced.epoch, committed=True
    )

    added = await add(services, an_add(fenced, topic=[0]), version)

    assert codes(added.results_by_topic_v3_and_below) == {("topic", 0): error}
    assert (await ask(services, add_offsets_to_txn.handle, offsets, version)).error_code == error
    assert (await ask(services, end_txn.handle, end, version)).error_code == error


def of_broker(*transactions: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(transactions=list(transactions))


def a_transaction(
    name: str, producer: Producer, *, verify_only: bool, **partitions: list[int]
) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=name,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        verify_only=verify_only,
        topics=topics(**partitions),
    )


@pytest.mark.parametrize("first", [0, 1000])
async def test_many_partitions_of_one_topic_are_added_in_many_turns_of_the_loop(
    services: TransactionServices, first: int
) -> None:
    """Those from 1000 on are unknown; partition 0 is named as often as it is added."""
    numbers = [first + (one if first else 0) for one in range(5_000)]
    request = an_add(await initialized(services), topic=numbers)
    turns = CountedTurns()
    context = RequestContext(RequestHeader(24, 3, 1, "c"), FakeSession(), 0.0, budget=turns.budget)

    adding = asyncio.create_task(add_partitions_to_txn.handle(services, request, context))
    count, answer = await turns.during(adding)

    (result,) = answer.results_by_topic_v3_and_below
    assert {one.partition_error_code for one in result.results_by_partition} == {UNKNOWN if first else 0}
    assert [one.partition_index for one in result.results_by_partition] == numbers
    assert count >= 2 * len(numbers) * 0.1 / LONG_REQUESTS_MS, "two passes"


@versions(5, first=4)
async def test_a_broker_adds_and_verifies_partitions_of_several_transactions(
    services: TransactionServices, version: int
) -> None:
    producers = {name: await initialized(services, name) for name in "ab"}
    request = of_broker(
        a_transaction("a", producers["a"], verify_only=False, topic=[0]),
        a_transaction("b", producers["b"], verify_only=True, topic=[0]),
        a_transaction("c", producers["b"], verify_only=True, topic=[0]),
        a_transaction("a", producers["a"], verify_only=True, topic=[0, 1]),
        a_transaction("a", producers["a"], verify_only=True, topic=[0, 7]),
    )

    answer = await add(services, request, version)

    found = [(one.transactional_id, codes(one.topic_results)) for one in answer.results_by_transaction]
    assert answer.error_code == 0
    assert found == [
        ("a", {("topic", 0): 0}),
        ("b", {("topic", 0): ErrorCode.TRANSACTION_ABORTABLE}),
        ("c", {("topic", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}),
        ("a", {("topic", 0): 0, ("topic", 1): ErrorCode.TRANSACTION_ABORTABLE}),
        ("a", {("topic", 0): NOT_ATTEMPTED, ("topic", 7): UNKNOWN}),
    ]


@versions(5, first=4)
async def test_nobody_but_brokers_asks_for_several_transactions(
    services: TransactionServices, version: int
) -> None:
    services.brokers = ()
    producer = await initialized(services)

    answer = await add(
        services, of_broker(a_transaction("t", producer, verify_only=False, topic=[0])), version
    )

    assert (answer.error_code, answer.results_by_transaction) == (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        [],
    )


# ---- AddOffsetsToTxn and EndTxn


@versions(4)
async def test_offsets_are_added_and_the_transaction_ends(
    services: TransactionServices, version: int
) -> None:
    producer = await initialized(services)
    who: dict[str, Any] = {
        "transactional_id": "t",
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
    }

    added = await ask(
        services,
        add_offsets_to_txn.handle,
        AddOffsetsToTxnRequest(group_id="g", **who),
        version,
    )

    assert added.error_code == 0
    described = services.transactions.describe("t")
    assert isinstance(described, TransactionSnapshot)
    assert described.partitions == {TopicPartition(GROUP_METADATA_TOPIC, partition_for("g", 50))}
    end = EndTxnRequest(committed=True, **who)
    assert (await ask(services, end_txn.handle, end, version)).error_code == 0
    end = EndTxnRequest(committed=False, **who)
    refused = await ask(services, end_txn.handle, end, version)
    assert refused.error_code in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE)


# ---- administration


async def test_transactions_are_described(services: TransactionServices) -> None:
    producer = await initialized(services)
    await add(services, an_add(producer, topic=[1, 0], other=[0]))
    request = DescribeTransactionsRequest(transactional_ids=["t", "nobody", "", "t"])

    answer = await ask(services, describe_transactions.handle, request, 0)

    one, nobody, empty = answer.transaction_states
    assert (one.transactional_id, one.transaction_state, one.error_code) == ("t", "Ongoing", 0)
    assert (one.producer_id, one.producer_epoch, one.transaction_timeout_ms) == (producer.id, 0, 60_000)
    assert one.transaction_start_time_ms > 0
    assert [(topic.topic, topic.partitions) for topic in one.topics] == [("other", [0]), ("topic", [0, 1])]
    assert nobody.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST


@versions(2)
async def test_transactions_are_listed(services: TransactionServices, version: int) -> None:
    producer = await initialized(services)
    await add(services, an_add(producer, topic=[0]))
    await initialized(services, "idle")

    async def listed(**filters: Any) -> list[str]:
        request = ListTransactionsRequest(**filters)
        answer = await ask(services, list_transactions.handle, request, version)
        assert answer.error_code == 0
        return sorted(f"{one.transactional_id} {one.transaction_state}" for one in answer.transaction_states)

    assert await listed() == ["idle Empty", "t Ongoing"]
    assert await listed(state_filters=["Ongoing"]) == ["t Ongoing"]
    assert await listed(state_filters=["Ongoing", "Unheard"]) == ["t Ongoing"]
    assert await listed(producer_id_filters=[producer.id]) == ["t Ongoing"]
    if version >= 1:
        # An empty transaction began before the epoch of the clock, which is the start of the machine here.
        half_ms = int(asyncio.get_running_loop().time() * 1000) // 2
        assert await listed(duration_filter=half_ms) == ["idle Empty"]
    if version >= 2:
        assert await listed(transactional_id_pattern="") == ["idle Empty", "t Ongoing"]
        assert await listed(transactional_id_pattern="i.*") == ["idle Empty"]
        assert await listed(transactional_id_pattern="dle") == []


async def test_a_pattern_of_transactional_ids_that_is_none_is_refused(services: TransactionServices) -> None:
    for pattern in ("(", r"(a)\1", "a{1001}"):
        request = ListTransactionsRequest(transactional_id_pattern=pattern)
        with pytest.raises(InvalidRegularExpression):
            await ask(services, list_transactions.handle, request, 2)


async def test_unknown_states_admit_no_transaction_and_are_named(services: TransactionServices) -> None:
    await initialized(services)
    request = ListTransactionsRequest(state_filters=["Unheard", "Of"])

    answer = await ask(services, list_transactions.handle, request, 1)

    assert (answer.unknown_state_filters, answer.transaction_states) == (["Unheard", "Of"], [])
