"""Registrations with a transaction that the coordinator did not answer: the abort repeats them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ottla.client.config import ClientConfig
from ottla.client.errors import DeadlineExceeded
from ottla.client.testing import ScriptedBroker
from ottla.producer import DeliveryTimeout, Producer, ProducerConfig
from ottla.producer.transactions.state import TransactionError
from ottla.protocol.errors import ErrorCode, ProducerFenced, TopicAuthorizationFailed
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
)
from ottla.protocol.schema import Message
from ottla.protocol.topics import TopicPartition
from peers.scripted_coordinator import added, coordinating

OFFSETS = {TopicPartition("t", 0): 5}
COORDINATED = (AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, EndTxnRequest)


def asked(broker: ScriptedBroker) -> list[str]:
    """Return the requests to the coordinator, in order; an EndTxn with its decision."""
    return [
        f"{type(request).__name__} {request.committed}"
        if isinstance(request, EndTxnRequest)
        else type(request).__name__
        for request, _ in broker.requests
        if isinstance(request, COORDINATED)
    ]


async def arrived(broker: ScriptedBroker, kind: type[Message]) -> None:
    """Wait until the broker has a request of a kind."""
    async with asyncio.timeout(20):
        while not broker.seen(kind):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def cancelled_offsets(producer: Producer, broker: ScriptedBroker) -> None:
    """Begin a transaction, and cancel `send_offsets` when the coordinator has its request and is silent."""
    broker.ignore(AddOffsetsToTxnRequest)
    await producer.begin_transaction()
    sending = asyncio.create_task(producer.send_offsets(OFFSETS, "g"))
    await arrived(broker, AddOffsetsToTxnRequest)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending


async def unanswered_partition(producer: Producer, broker: ScriptedBroker) -> None:
    """Begin a transaction with a partition whose registration the coordinator has, and does not answer.

    On a slow machine the time of a record may be over before its registration is sent.
    """
    broker.on(AddPartitionsToTxnRequest, lambda _: None)  # it may have been executed
    async with asyncio.timeout(120):
        while True:
            await producer.begin_transaction()
            with pytest.raises(DeliveryTimeout):
                await producer.send_and_wait("t", b"x")
            if broker.seen(AddPartitionsToTxnRequest):
                break
            await producer.abort_transaction()
    broker.requests.clear()


async def test_a_group_whose_registration_was_not_answered_is_registered_again_and_aborted() -> None:
    async with coordinating(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:
            await cancelled_offsets(producer, broker)
            broker.on(AddOffsetsToTxnRequest, lambda _: AddOffsetsToTxnResponse())
            broker.drop_connections()
            await producer.abort_transaction()

            async with producer.transaction():
                await producer.send_offsets(OFFSETS, "g")

    assert asked(broker) == [
        "AddOffsetsToTxnRequest",
        "AddOffsetsToTxnRequest",
        "EndTxnRequest False",
        "AddOffsetsToTxnRequest",
        "EndTxnRequest True",
    ]


async def test_a_partition_whose_registration_was_not_answered_is_registered_again_and_aborted() -> None:
    async with coordinating(ScriptedBroker()) as broker:
        async with Producer(
            broker.bootstrap_servers, transactional_id="once", delivery_timeout_ms=2_000, linger_ms=0
        ) as producer:
            await unanswered_partition(producer, broker)
            broker.on(AddPartitionsToTxnRequest, lambda request: added(request, 0))
            await producer.abort_transaction()

    assert asked(broker) == ["AddPartitionsToTxnRequest", "EndTxnRequest False"]


async def test_a_registration_of_which_every_request_was_refused_needs_no_end() -> None:
    async with coordinating(ScriptedBroker()) as broker:
        broker.on(
            AddPartitionsToTxnRequest, lambda request: added(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        )
        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:
            await producer.begin_transaction()
            with pytest.raises(TopicAuthorizationFailed):
                await producer.send_and_wait("t", b"x")
            await producer.abort_transaction()

    assert asked(broker) == ["AddPartitionsToTxnRequest"]


def partition_refused(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    return added(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_repeated_registration_that_is_refused_leaves_it_to_the_end_what_is_open(
    *, is_open: bool
) -> None:
    ended = EndTxnResponse(error_code=0 if is_open else ErrorCode.INVALID_TXN_STATE)
    async with coordinating(ScriptedBroker()) as broker:
        broker.on(EndTxnRequest, lambda _: ended)
        async with Producer(
            broker.bootstrap_servers, transactional_id="once", delivery_timeout_ms=2_000
        ) as producer:
            await unanswered_partition(producer, broker)
            broker.on(AddPartitionsToTxnRequest, partition_refused)  # the topic was deleted meanwhile
            async with asyncio.timeout(20):
                await producer.abort_transaction()

            await producer.begin_transaction()

    assert asked(broker) == ["AddPartitionsToTxnRequest", "EndTxnRequest False"]


async def test_a_repeated_registration_finds_out_that_the_producer_is_fenced() -> None:
    async with coordinating(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:
            await cancelled_offsets(producer, broker)
            fenced = AddOffsetsToTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)
            broker.on(AddOffsetsToTxnRequest, lambda _: fenced)
            broker.drop_connections()
            with pytest.raises(ProducerFenced):
                await producer.abort_transaction()

    assert asked(broker) == ["AddOffsetsToTxnRequest", "AddOffsetsToTxnRequest"]


async def test_an_abort_that_waits_for_a_silent_coordinator_has_a_bound_and_may_be_called_again() -> None:
    client = ClientConfig(default_api_timeout_ms=2_000, request_timeout_ms=500, retry_backoff_ms=5)
    config = ProducerConfig(client=client, transactional_id="once")
    async with coordinating(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, config) as producer:
            await cancelled_offsets(producer, broker)
            with pytest.raises(DeadlineExceeded, match="repeating"):
                await producer.abort_transaction()
            assert broker.seen(EndTxnRequest) == []

            broker.on(AddOffsetsToTxnRequest, lambda _: AddOffsetsToTxnResponse())
            broker.drop_connections()
            await producer.abort_transaction()

    assert asked(broker)[-2:] == ["AddOffsetsToTxnRequest", "EndTxnRequest False"]


def busy_until(
    is_over: asyncio.Event, calls: Callable[[], None] = lambda: None
) -> Callable[[AddOffsetsToTxnRequest], AddOffsetsToTxnResponse]:
    def respond(_: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
        calls()
        return AddOffsetsToTxnResponse(
            error_code=0 if is_over.is_set() else ErrorCode.CONCURRENT_TRANSACTIONS
        )

    return respond


async def test_a_commit_waits_until_another_tasks_group_is_registered() -> None:
    async with coordinating(ScriptedBroker()) as broker:
        completed = asyncio.Event()
        broker.on(AddOffsetsToTxnRequest, busy_until(completed))
        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:
            await producer.begin_transaction()
            sending = asyncio.create_task(producer.send_offsets(OFFSETS, "g"))
            await arrived(broker, AddOffsetsToTxnRequest)
            committing = asyncio.create_task(producer.commit_transaction())
            await asyncio.sleep(0)  # the commit has begun
            completed.set()
            await asyncio.gather(sending, committing)

    assert asked(broker)[-2:] == ["AddOffsetsToTxnRequest", "EndTxnRequest True"]


async def test_no_group_is_registered_with_a_transaction_that_is_aborted() -> None:
    async with coordinating(ScriptedBroker()) as broker:
        aborting: list[asyncio.Task[None]] = []
        completed = asyncio.Event()

        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:

            def abort() -> None:
                if not aborting:
                    aborting.append(asyncio.create_task(producer.abort_transaction()))

            broker.on(AddOffsetsToTxnRequest, busy_until(completed, abort))
            await producer.begin_transaction()
            with pytest.raises(TransactionError, match="cannot send offsets"):
                async with asyncio.timeout(20):
                    await producer.send_offsets(OFFSETS, "g")
            await aborting[0]

    assert asked(broker) == ["AddOffsetsToTxnRequest"]
