"""The requests of a transactional producer to its coordinator, and their order."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from ottla.client.cluster import Cluster
from ottla.client.config import ClientConfig
from ottla.client.errors import DeadlineExceeded
from ottla.client.testing import ScriptedBroker
from ottla.producer import (
    DeliveryTimeout,
    GroupMetadata,
    PreparedTransaction,
    Producer,
    ProducerConfig,
    ProducerLost,
    SyncProducer,
    end_prepared,
)
from ottla.producer.transactions.state import TransactionError, TransactionFailed
from ottla.protocol.errors import ErrorCode, InvalidProducerEpoch, InvalidTransactionTimeout, ProducerFenced
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.protocol.records import read_header
from ottla.protocol.topics import TopicPartition
from peers.accepting_broker import acknowledged, batches
from peers.scripted_coordinator import added, coordinating


async def test_no_partition_is_registered_with_a_transaction_that_is_aborted() -> None:
    async with coordinating(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:
            aborting: list[asyncio.Task[None]] = []

            def busy(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
                aborting.append(asyncio.create_task(producer.abort_transaction()))
                broker.on(AddPartitionsToTxnRequest, lambda later: added(later, 0))
                return added(request, ErrorCode.CONCURRENT_TRANSACTIONS)

            broker.on(AddPartitionsToTxnRequest, busy)
            await producer.begin_transaction()
            sent = producer.send_nowait("t", b"x")
            with pytest.raises(TransactionFailed, match="aborted before the record was sent"):
                await sent
            await aborting[0]
            await asyncio.sleep(0.1)
            assert len(broker.seen(AddPartitionsToTxnRequest)) == 1

            async with producer.transaction():
                await producer.send("t", b"y")

    assert len(broker.seen(AddPartitionsToTxnRequest)) == 2
    assert [request.committed for request in broker.seen(EndTxnRequest)] == [True]


async def test_records_of_a_deliberate_abort_are_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "ottla.producer")
    async with coordinating(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, transactional_id="once", linger_ms=60_000) as producer:
            with pytest.raises(LookupError):
                async with producer.transaction():
                    await producer.send("t", b"in a batch")
                    producer.send_nowait("unknown", b"waits for metadata")
                    raise LookupError
            gc.collect()

    assert [record.levelname for record in caplog.records if "not delivered" in record.message] == [
        "DEBUG"
    ] * 2


async def test_a_producer_that_aborts_and_closes_looks_no_longer_for_the_topics_of_the_aborted_records() -> (
    None
):
    async with coordinating(ScriptedBroker()) as broker, asyncio.timeout(30):
        async with Producer(
            broker.bootstrap_servers, transactional_id="once", max_block_ms=600_000
        ) as producer:
            await producer.begin_transaction()
            producer.send_nowait("missing", b"never sent")


async def test_records_that_a_broker_refused_stay_an_error_in_the_log_when_the_transaction_is_aborted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with coordinating(ScriptedBroker()) as broker:
        broker.on(ProduceRequest, lambda request: acknowledged(request, ErrorCode.INVALID_RECORD))
        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:
            await producer.begin_transaction()
            producer.send_nowait("t", b"refused")
            await producer.flush()
            await producer.abort_transaction()
            gc.collect()

    assert [record.levelname for record in caplog.records if "not delivered" in record.message] == ["ERROR"]


async def test_an_epoch_that_a_leader_rejected_is_renewed_with_the_abort() -> None:
    errors = [0, ErrorCode.INVALID_PRODUCER_EPOCH]
    async with coordinating(ScriptedBroker()) as broker:
        broker.on(ProduceRequest, lambda request: acknowledged(request, errors.pop()))
        broker.on(
            InitProducerIdRequest,
            lambda request: InitProducerIdResponse(producer_id=9, producer_epoch=request.producer_epoch + 1),
        )
        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:
            with pytest.raises(TransactionFailed) as failed:
                async with producer.transaction():
                    sent = await producer.send("t", b"x")
            assert isinstance(sent.exception(), InvalidProducerEpoch)
            assert isinstance(failed.value.__cause__, InvalidProducerEpoch)
            async with producer.transaction():
                await producer.send("t", b"y")

    asked = [(request.producer_id, request.producer_epoch) for request in broker.seen(InitProducerIdRequest)]
    assert asked == [(-1, -1), (9, 0)]
    assert [request.committed for request in broker.seen(EndTxnRequest)] == [False, True]
    headers = [read_header(batch) for batch in batches(broker)]
    assert [(header.producer_epoch, header.base_sequence) for header in headers] == [(0, 0), (1, 0)]


async def test_an_epoch_that_the_coordinator_rejected_means_that_the_producer_was_fenced() -> None:
    async with coordinating(ScriptedBroker()) as broker:
        broker.on(EndTxnRequest, lambda _: EndTxnResponse(error_code=ErrorCode.INVALID_PRODUCER_EPOCH))
        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:
            await producer.begin_transaction()
            await producer.send("t", b"x")
            with pytest.raises(ProducerFenced):
                await producer.commit_transaction()
            with pytest.raises(ProducerLost):
                await producer.begin_transaction()


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
async def test_every_record_and_call_of_a_fenced_producer_fails_with_the_same_error(code: int) -> None:
    registered: list[AddPartitionsToTxnRequest] = []

    def register(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        registered.append(request)
        return added(request, 0 if len(registered) == 1 else code)

    async with coordinating(ScriptedBroker()) as broker:
        broker.on(AddPartitionsToTxnRequest, register)
        broker.on(ProduceRequest, lambda request: acknowledged(request, ErrorCode.INVALID_PRODUCER_EPOCH))
        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:
            with pytest.raises(ProducerFenced, match="another one uses the transactional id 'once'"):
                async with producer.transaction():
                    sent = await producer.send("t", b"x")
            assert isinstance(sent.exception(), ProducerFenced)
            for call in (
                producer.begin_transaction,
                producer.commit_transaction,
                producer.abort_transaction,
                lambda: producer.send("t", b"y"),
                lambda: producer.send_offsets({TopicPartition("t", 0): 1}, "g"),
            ):
                with pytest.raises(ProducerFenced, match="another one uses the transactional id 'once'"):
                    await call()


async def test_a_prepared_transaction_is_written_and_ended_by_end_prepared() -> None:
    moved = [ErrorCode.NOT_COORDINATOR]

    def ended(_: EndTxnRequest) -> EndTxnResponse:
        return EndTxnResponse(error_code=moved.pop() if moved else 0)

    async with coordinating(ScriptedBroker()) as broker:
        broker.on(EndTxnRequest, ended)
        broker.on(InitProducerIdRequest, lambda _: InitProducerIdResponse(producer_id=9, producer_epoch=4))
        async with Producer(broker.bootstrap_servers, transactional_id="once", linger_ms=60_000) as producer:
            await producer.begin_transaction()
            sent = await producer.send("t", b"x")
            prepared = await producer.prepare_transaction()
            assert sent.exception() is None
            with pytest.raises(TransactionError):
                await producer.commit_transaction()
        assert prepared == PreparedTransaction("once", 9, 4)
        assert broker.seen(EndTxnRequest) == []

        async with Cluster(broker.bootstrap_servers) as cluster:
            await end_prepared(cluster, prepared, committed=True)

    asked = EndTxnRequest(transactional_id="once", producer_id=9, producer_epoch=4, committed=True)
    assert broker.seen(EndTxnRequest) == [asked, asked]


async def test_threads_prepare_a_transaction_and_end_it_in_another_producer() -> None:
    def written(servers: str) -> PreparedTransaction:
        with SyncProducer(servers, transactional_id="once", linger_ms=60_000) as producer:
            producer.begin_transaction()
            sent = producer.send("t", b"x")
            prepared = producer.prepare_transaction()
            assert sent.done()
            return prepared

    def given_up(servers: str, prepared: PreparedTransaction) -> None:
        with SyncProducer(servers) as producer:
            producer.end_prepared(prepared, committed=False)

    async with coordinating(ScriptedBroker()) as broker:
        broker.on(InitProducerIdRequest, lambda _: InitProducerIdResponse(producer_id=9, producer_epoch=4))
        prepared = await asyncio.to_thread(written, broker.bootstrap_servers)
        await asyncio.to_thread(given_up, broker.bootstrap_servers, prepared)

    asked = EndTxnRequest(transactional_id="once", producer_id=9, producer_epoch=4, committed=False)
    assert broker.seen(EndTxnRequest) == [asked]


async def test_a_prepared_transaction_without_records_needs_no_end() -> None:
    async with coordinating(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:
            await producer.begin_transaction()
            prepared = await producer.prepare_transaction()
        async with Cluster(broker.bootstrap_servers) as cluster:
            await end_prepared(cluster, prepared, committed=True)

    assert prepared.is_empty
    assert broker.seen(EndTxnRequest) == []


async def test_a_transaction_with_a_lost_record_is_not_prepared() -> None:
    async with coordinating(ScriptedBroker()) as broker:
        broker.on(ProduceRequest, lambda request: acknowledged(request, ErrorCode.MESSAGE_TOO_LARGE))
        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:
            await producer.begin_transaction()
            await producer.send("t", b"x")
            with pytest.raises(TransactionFailed):
                await producer.prepare_transaction()

    assert [request.committed for request in broker.seen(EndTxnRequest)] == [False]


async def test_records_wait_for_the_coordinator_until_the_delivery_timeout() -> None:
    began_s = asyncio.get_running_loop().time()
    client = ClientConfig(default_api_timeout_ms=1_000, retry_backoff_ms=5)
    config = ProducerConfig(client=client, transactional_id="once", delivery_timeout_ms=60_000)

    def late(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        is_loading = asyncio.get_running_loop().time() < began_s + 1.5
        return added(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else 0)

    async with coordinating(ScriptedBroker()) as broker:
        broker.on(AddPartitionsToTxnRequest, late)
        async with Producer(broker.bootstrap_servers, config) as producer:
            async with producer.transaction():
                sent = await producer.send("t", b"x")
            assert sent.exception() is None


async def test_records_fail_after_the_delivery_timeout_while_the_coordinator_loads() -> None:
    config = ProducerConfig(transactional_id="once", delivery_timeout_ms=1_000)
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    async with coordinating(ScriptedBroker()) as broker:
        broker.on(AddPartitionsToTxnRequest, lambda request: added(request, code))
        async with Producer(broker.bootstrap_servers, config) as producer:
            await producer.begin_transaction()
            async with asyncio.timeout(60):
                with pytest.raises(DeliveryTimeout):
                    await producer.send_and_wait("t", b"x")
            # The timeout may have cancelled a request, which the abort then repeats until it is answered.
            code = ErrorCode.NONE
            await producer.abort_transaction()


async def test_an_abort_whose_new_epoch_was_not_answered_asks_for_the_epoch_only_when_it_is_repeated() -> (
    None
):
    epoch = 0

    def ended(request: EndTxnRequest) -> EndTxnResponse:
        is_current = request.producer_epoch == epoch
        return EndTxnResponse(error_code=0 if is_current else ErrorCode.PRODUCER_FENCED)

    async with coordinating(ScriptedBroker()) as broker:
        broker.on(EndTxnRequest, ended)
        broker.on(ProduceRequest, lambda request: acknowledged(request, ErrorCode.INVALID_PRODUCER_EPOCH))
        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:
            await producer.begin_transaction()
            with pytest.raises(InvalidProducerEpoch):
                await producer.send_and_wait("t", b"x")
            broker.ignore(InitProducerIdRequest)
            aborting = asyncio.create_task(producer.abort_transaction())
            async with asyncio.timeout(20):
                while len(broker.seen(InitProducerIdRequest)) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            aborting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await aborting

            epoch = 1  # the coordinator executed the request, and repeats its answer
            broker.on(
                InitProducerIdRequest, lambda _: InitProducerIdResponse(producer_id=9, producer_epoch=1)
            )
            broker.on(ProduceRequest, lambda request: acknowledged(request, 0))
            broker.drop_connections()
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send("t", b"y")

    ends = [(request.producer_epoch, request.committed) for request in broker.seen(EndTxnRequest)]
    assert ends == [(0, False), (1, True)]
    again = broker.seen(InitProducerIdRequest)[-1]
    assert (again.producer_id, again.producer_epoch) == (9, 0)


async def test_each_transaction_that_is_aborted_is_ended() -> None:
    async with coordinating(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, transactional_id="once") as producer:
            for _ in range(2):
                await producer.begin_transaction()
                await producer.send_and_wait("t", b"x")
                await producer.abort_transaction()

    assert [request.committed for request in broker.seen(EndTxnRequest)] == [False, False]


class Recording(Producer):
    """Remembers which of its public methods were called."""

    calls: list[str]

    async def flush(self, timeout_s: float | None = None) -> None:
        self.calls.append("flush")
        await super().flush(timeout_s)

    async def abort_transaction(self) -> None:
        self.calls.append("abort_transaction")
        await super().abort_transaction()


async def test_the_ends_of_a_transaction_call_overridden_methods() -> None:
    async with coordinating(ScriptedBroker()) as broker:
        async with Recording(broker.bootstrap_servers, transactional_id="once") as producer:
            producer.calls = []
            async with producer.transaction():
                await producer.send("t", b"x")
            assert producer.calls == ["flush"]

            producer.calls.clear()
            with pytest.raises(KeyError):
                async with producer.transaction():
                    await producer.send_and_wait("t", b"y")
                    raise KeyError
            assert producer.calls == ["abort_transaction", "flush"]

            producer.calls.clear()
            await producer.begin_transaction()
            await producer.send_and_wait("t", b"z")
        assert producer.calls[:2] == ["abort_transaction", "flush"]

    assert [request.committed for request in broker.seen(EndTxnRequest)] == [True, False, False]


async def test_a_timeout_that_the_coordinator_refuses_names_both_settings() -> None:
    async with coordinating(ScriptedBroker()) as broker:
        broker.on(
            InitProducerIdRequest,
            lambda _: InitProducerIdResponse(error_code=ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        )
        producer = Producer(broker.bootstrap_servers, transactional_id="a", transaction_timeout_ms=10**8)
        with pytest.raises(InvalidTransactionTimeout) as refused:
            await producer.start()

    said = "transaction_timeout_ms=100000000 is above the brokers' transaction.max.timeout.ms"
    assert str(refused.value) == said


async def test_offsets_of_an_unknown_topic_fail_with_its_name() -> None:
    unknown = TxnOffsetCommitResponsePartition(
        partition_index=0, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    answer = TxnOffsetCommitResponse(
        topics=[TxnOffsetCommitResponseTopic(name="nosuch", partitions=[unknown])]
    )
    client = ClientConfig(default_api_timeout_ms=1_000)
    async with coordinating(ScriptedBroker()) as broker:
        broker.on(TxnOffsetCommitRequest, lambda _: answer)
        config = ProducerConfig(transactional_id="a", client=client)
        async with Producer(broker.bootstrap_servers, config) as producer:
            await producer.begin_transaction()
            with pytest.raises(DeadlineExceeded, match="nosuch-0: "):
                await producer.send_offsets({TopicPartition("nosuch", 0): 1}, GroupMetadata("g"))
            await producer.abort_transaction()
