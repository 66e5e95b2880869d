"""Transactions as an admin client asks coordinators and leaders for them."""

from __future__ import annotations

import pytest

from ottla.admin import Admin, NoSuchTransaction, PartitionProducer
from ottla.client.errors import UnsupportedByBroker
from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.protocol.errors import ErrorCode, InvalidProducerEpoch, TransactionalIdNotFound
from ottla.protocol.messages import open_transactions as messages
from ottla.protocol.messages import transactions as marking
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.topics import TopicPartition

T0 = TopicPartition("t", 0)
NOW_MS = 1_000_000


def state(producer_id: int, start: int, *, last_ms: int = 0) -> messages.ProducerState:
    return messages.ProducerState(
        producer_id=producer_id, producer_epoch=3, last_sequence=9, last_timestamp=last_ms,
        coordinator_epoch=-1, current_txn_start_offset=start,
    )  # fmt: skip


def a_broker(*states: messages.ProducerState, marker: int = 0) -> ScriptedBroker:
    """A broker that leads t-0 with these producers, and answers markers with an error code."""
    broker = ScriptedBroker()
    broker.on(MetadataRequest, lambda _: broker.metadata("t"))
    partition = messages.PartitionResponse(partition_index=0, active_producers=list(states))
    topic = messages.TopicResponse(name="t", partitions=[partition])
    broker.on(messages.DescribeProducersRequest, lambda _: messages.DescribeProducersResponse(topics=[topic]))
    written = marking.WritableTxnMarkerPartitionResult(partition_index=0, error_code=marker)
    result = marking.WritableTxnMarkerResult(
        producer_id=1, topics=[marking.WritableTxnMarkerTopicResult(name="t", partitions=[written])]
    )
    broker.on(marking.WriteTxnMarkersRequest, lambda _: marking.WriteTxnMarkersResponse(markers=[result]))
    return broker


def coordinates(broker: ScriptedBroker, transactions: dict[str, tuple[int, list[int]]]) -> None:
    """Make the broker coordinate transactional ids with producer ids and partitions of t."""
    broker.on(
        FindCoordinatorRequest,
        lambda _: FindCoordinatorResponse(node_id=NODE_ID, host=broker.host, port=broker.port),
    )
    broker.on(
        messages.ListTransactionsRequest,
        lambda asked: messages.ListTransactionsResponse(
            unknown_state_filters=[each for each in asked.state_filters if each == "Odd"],
            transaction_states=[
                messages.ListedTransaction(
                    transactional_id=name, producer_id=producer, transaction_state="Ongoing"
                )
                for name, (producer, _) in transactions.items()
            ],
        ),
    )

    def describe(asked: messages.DescribeTransactionsRequest) -> messages.DescribeTransactionsResponse:
        (name,) = asked.transactional_ids
        if name not in transactions:
            missing = messages.TransactionState(
                transactional_id=name, error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            )
            return messages.DescribeTransactionsResponse(transaction_states=[missing])
        producer, partitions = transactions[name]
        found = messages.TransactionState(
            transactional_id=name, transaction_state="Ongoing", producer_id=producer, producer_epoch=3,
            transaction_timeout_ms=60_000, transaction_start_time_ms=5,
            topics=[messages.TopicData(topic="t", partitions=partitions)],
        )  # fmt: skip
        return messages.DescribeTransactionsResponse(transaction_states=[found])

    broker.on(messages.DescribeTransactionsRequest, describe)


async def test_transactions_of_all_coordinators_are_listed_and_described() -> None:
    async with a_broker() as broker:
        coordinates(broker, {"b": (2, [0]), "a": (1, [])})
        async with Admin(broker.bootstrap_servers) as admin:
            listed = await admin.transactions.list(states=["Ongoing"], producer_ids=[1, 2], longer_than_ms=7)
            described = await admin.transactions.describe("b")
            with pytest.raises(TransactionalIdNotFound, match="'c' does not exist"):
                await admin.transactions.describe("c")
            with pytest.raises(ValueError, match="there is no state 'Odd'"):
                await admin.transactions.list(states=["Odd"])

    assert [(each.transactional_id, each.producer_id, each.state) for each in listed] == [
        ("a", 1, "Ongoing"), ("b", 2, "Ongoing"),
    ]  # fmt: skip
    assert (described.partitions, described.start_ms, described.timeout_ms) == ((T0,), 5, 60_000)
    asked = broker.seen(messages.ListTransactionsRequest)[0]
    assert (asked.state_filters, asked.producer_id_filters, asked.duration_filter) == (["Ongoing"], [1, 2], 7)


async def test_a_broker_that_cannot_filter_by_duration_is_not_asked_to() -> None:
    async with ScriptedBroker({messages.ListTransactionsRequest.API_KEY: (0, 0)}) as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata())
        broker.on(messages.ListTransactionsRequest, lambda _: messages.ListTransactionsResponse())
        async with Admin(broker.bootstrap_servers) as admin:
            with pytest.raises(UnsupportedByBroker):
                await admin.transactions.list(longer_than_ms=1)
            assert await admin.transactions.list() == []


async def test_what_hangs_is_old_and_unknown_to_its_coordinator() -> None:
    async with a_broker(
        state(1, 10), state(2, 20), state(3, 30), state(4, -1), state(5, 50, last_ms=NOW_MS)
    ) as broker:
        coordinates(broker, {"of 1": (1, [0]), "of 2": (2, [1])})
        async with Admin(broker.bootstrap_servers) as admin:
            found = await admin.transactions.hanging([T0], now_ms=NOW_MS, longer_than_ms=1_000)

    assert [(each.producer_id, each.start_offset) for each in found] == [(2, 20), (3, 30)]


async def test_open_transactions_have_the_id_that_will_end_them() -> None:
    async with a_broker(state(1, 10), state(2, 20), state(4, -1)) as broker:
        coordinates(broker, {"of 1": (1, [0]), "of 2": (2, [1])})
        async with Admin(broker.bootstrap_servers) as admin:
            found = await admin.transactions.opened([T0])

    assert [(opened.producer.start_offset, opened.transactional_id) for opened in found] == [
        (10, "of 1"), (20, None),
    ]  # fmt: skip


async def test_a_transaction_that_ends_while_its_coordinator_is_asked_does_not_hang() -> None:
    async with a_broker(state(1, 10)) as broker:
        coordinates(broker, {"of 1": (1, [])})
        opened = messages.PartitionResponse(partition_index=0, active_producers=[state(1, 10)])
        ended = messages.PartitionResponse(partition_index=0, active_producers=[state(1, -1)])
        answers = iter((opened, ended))
        broker.on(
            messages.DescribeProducersRequest,
            lambda _: messages.DescribeProducersResponse(
                topics=[messages.TopicResponse(name="t", partitions=[next(answers)])]
            ),
        )
        async with Admin(broker.bootstrap_servers) as admin:
            found = await admin.transactions.hanging([T0], now_ms=NOW_MS, longer_than_ms=1_000)

    assert found == []


async def test_a_transaction_that_hangs_is_aborted_by_a_marker_of_its_producer() -> None:
    async with a_broker(state(1, 10), state(2, -1)) as broker:
        async with Admin(broker.bootstrap_servers) as admin:
            with pytest.raises(NoSuchTransaction, match="t-0 begins at offset 9: open ones begin at 10"):
                await admin.transactions.abort(T0, 9)
            aborted = await admin.transactions.abort(T0, 10)

    assert aborted == PartitionProducer(T0, 1, 3, 0, 9, 0, 10)
    ((marker,),) = [each.markers for each in broker.seen(marking.WriteTxnMarkersRequest)]
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (1, 3, 0)
    assert not marker.transaction_result
    assert [(each.name, each.partition_indexes) for each in marker.topics] == [("t", [0])]


async def test_a_marker_that_the_leader_refuses_is_an_error() -> None:
    async with a_broker(state(1, 10), marker=ErrorCode.INVALID_PRODUCER_EPOCH) as broker:
        async with Admin(broker.bootstrap_servers) as admin:
            with pytest.raises(InvalidProducerEpoch, match="t-0: the leader refused the marker"):
                await admin.transactions.abort(T0, 10)
