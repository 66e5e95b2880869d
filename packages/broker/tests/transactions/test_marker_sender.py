"""A sender of markers that meets a failure which nobody foresaw: it goes on, and sends again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ottla.broker.controller.testing import LoopClock
from ottla.broker.coordinators.coordinator_partitions import CoordinatorPartition
from ottla.broker.coordinators.testing import in_virtual_time
from ottla.broker.metrics import Metrics
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.runtime.environment import Environment
from ottla.broker.transactions.events import Producer, TransactionSnapshot, TransactionState
from ottla.broker.transactions.marker_queue import EndedTransaction, Partitions
from ottla.broker.transactions.marker_sender import MarkerSender
from ottla.broker.transactions.partition_state import TransactionsState
from ottla.broker.transactions.testing import TOPIC_0, MemoryCluster
from ottla.broker.transactions.transaction import Transaction
from ottla.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

FIRST, SECOND = "first", "second"


@dataclass
class FaultyCluster(MemoryCluster):
    """A cluster whose brokers' next answers fail for no reason that the sender knows."""

    faults: list[Exception] = field(default_factory=list)

    def write(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        if self.faults:
            raise self.faults.pop()
        return super().write(broker_id, request)


def ended(transactional_id: str, producer_id: int) -> EndedTransaction:
    """A transaction that is committed in one partition."""
    transaction = Transaction(transactional_id)
    transaction.snapshot = TransactionSnapshot(
        producer=Producer(producer_id, 0), timeout_ms=1, state=TransactionState.PREPARE_COMMIT
    )
    transaction.unmarked = frozenset({TOPIC_0})
    return EndedTransaction.of(transaction, CoordinatorPartition(0, 0, TransactionsState(0)))


@asynccontextmanager
async def sending(
    cluster: FaultyCluster, written: Callable[[EndedTransaction, Partitions], None]
) -> AsyncIterator[MarkerSender]:
    environment = Environment(clock=LoopClock())
    async with BackgroundTasks(Metrics(), environment.clock) as tasks:
        sender = MarkerSender(cluster, environment, tasks, is_hosted=lambda _: True, written=written)
        tasks.spawn(sender.run(), "markers")
        yield sender


@in_virtual_time
async def test_a_request_that_fails_for_an_unknown_reason_is_sent_again() -> None:
    cluster, written = FaultyCluster(faults=[RuntimeError("a fault")]), list[str]()
    async with sending(cluster, lambda one, _: written.append(str(one.transaction))) as sender:
        sender.send(ended(FIRST, 1))
        await asyncio.sleep(0)
        sender.send(ended(SECOND, 2))

        await asyncio.sleep(2)

        assert sorted(written) == [FIRST, SECOND]
        assert sorted(one.producer_id for one in cluster.written[TOPIC_0]) == [1, 2]


@in_virtual_time
async def test_a_transaction_that_fails_does_not_hold_back_the_others_of_its_request() -> None:
    cluster, written = FaultyCluster(), list[str]()

    def take(one: EndedTransaction, partitions: Partitions) -> None:
        written.append(str(one.transaction))
        if written == [FIRST]:
            raise RuntimeError("a fault")

    async with sending(cluster, take) as sender:
        sender.send(ended(FIRST, 1))
        sender.send(ended(SECOND, 2))

        await asyncio.sleep(2)

        assert written == [FIRST, SECOND, FIRST]
        assert [len(request.markers) for _, request in cluster.requests] == [2, 1]
