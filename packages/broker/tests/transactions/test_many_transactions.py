"""A partition of very many transactional ids is taken over and given up in steps; others run in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from ottla.broker.config import load_broker_config
from ottla.broker.controller.testing import LoopClock
from ottla.broker.coordinators.internal_topic_log import build_batch
from ottla.broker.coordinators.testing import MemoryStore, in_virtual_time
from ottla.broker.metrics import Metrics
from ottla.broker.runtime.environment import Environment
from ottla.broker.runtime.loop_budget import BACKGROUND_MS, SLICE
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.events import Producer, TransactionSnapshot, TransactionState
from ottla.broker.transactions.marker_queue import (
    PARTITIONS_IN_A_REQUEST,
    EndedTransaction,
    MarkerQueue,
    Markers,
    TransactionPartition,
)
from ottla.broker.transactions.partition_state import TransactionsState
from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.broker.transactions.records import TransactionRecord, encode_record
from ottla.broker.transactions.testing import (
    BROKER,
    MINUTE_MS,
    SETTINGS,
    TOPIC_0,
    TOPIC_1,
    MemoryCluster,
    leading,
    memory_store,
)
from ottla.broker.transactions.transaction import Transaction
from ottla.protocol.topics import TRANSACTION_STATE_TOPIC, TopicPartition
from ottla.zookeeper.session import Session

MANY = 3_000
EVERY_MS = 1.0
"""The time that each reading of the clock takes in these tests."""
AT_ONCE = 50
"""How many transactions a turn of 4 ms may take up, where each of them looks at the clock."""


class WorkingClock(LoopClock):
    """Its time also passes with each look at it, as if the caller worked in between."""

    def __init__(self) -> None:
        self.looks = 0

    def monotonic_ms(self) -> float:
        self.looks += 1
        return super().monotonic_ms() + self.looks * EVERY_MS


def prepared(number: int) -> TransactionSnapshot:
    return TransactionSnapshot(
        producer=Producer(number, 0),
        timeout_ms=MINUTE_MS,
        state=TransactionState.PREPARE_COMMIT,
        partitions=frozenset({TOPIC_0, TOPIC_1}),
        started_ms=1,
        updated_ms=1,
    )


def fill(store: MemoryStore, partition: int, count: int) -> None:
    """Have the log end with so many transactions whose commit is decided."""
    first = partition * MANY
    for start in range(first, first + count, 500):
        numbers = range(start, min(start + 500, first + count))
        records = [encode_record(TransactionRecord(f"id-{one}", prepared(one))) for one in numbers]
        store.append_batch(partition, build_batch(records, 1))


@asynccontextmanager
async def counted_turns() -> AsyncIterator[list[int]]:
    """Count the turns of the event loop meanwhile: the only element is the present one."""
    turns = [0]

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    counting = asyncio.get_running_loop().create_task(count())
    try:
        yield turns
    finally:
        counting.cancel()


class CountingCluster(MemoryCluster):
    """A cluster that counts the questions for a leader in each turn of the event loop."""

    turns: list[int]
    asked: Counter[int]

    def leader_of(self, partition: TopicPartition) -> int | None:
        self.asked[self.turns[0]] += 1
        return super().leader_of(partition)


def working(store: MemoryStore, cluster: MemoryCluster, session: Session) -> TransactionCoordinator:
    """A coordinator by a clock that its work moves."""
    return TransactionCoordinator(
        config=load_broker_config(SETTINGS).config,
        environment=Environment(clock=WorkingClock()),
        metrics=Metrics(),
        store=store,
        cluster=cluster,
        producer_ids=ProducerIds(session, BROKER),
    )


def elect(coordinator: TransactionCoordinator, *partitions: int) -> None:
    coordinator.leadership_changed(
        [(TopicPartition(TRANSACTION_STATE_TOPIC, one), 0) for one in partitions], []
    )


def resign(coordinator: TransactionCoordinator, *partitions: int) -> None:
    coordinator.leadership_changed(
        [], [(TopicPartition(TRANSACTION_STATE_TOPIC, one), 0) for one in partitions]
    )


@in_virtual_time
async def test_markers_of_loaded_transactions_are_sent_in_many_turns() -> None:
    store, cluster = memory_store(), CountingCluster()
    cluster.asked = Counter()
    fill(store, 0, MANY)
    async with counted_turns() as turns, cluster.ensemble.session() as session:
        cluster.turns = turns
        async with working(store, cluster, session) as coordinator:
            elect(coordinator, 0)
            # While turns are counted no virtual time passes.
            while min(len(cluster.written[one]) for one in (TOPIC_0, TOPIC_1)) < MANY:  # noqa: ASYNC110
                await asyncio.sleep(0)

    assert sum(cluster.asked.values()) >= 2 * MANY
    assert max(cluster.asked.values()) <= 2 * AT_ONCE
    assert Counter(one.producer_id for one in cluster.written[TOPIC_0]) == Counter(range(MANY))


@in_virtual_time
async def test_ids_of_a_partition_that_is_given_up_are_released_in_many_turns() -> None:
    store, cluster = memory_store(), MemoryCluster(silent={1, 2})
    fill(store, 0, MANY)
    async with cluster.ensemble.session() as session, working(store, cluster, session) as coordinator:
        elect(coordinator, 0)
        await asyncio.sleep(0.01)
        partition = coordinator._hosted.runtime.partitions.get(0)
        assert partition is not None
        transactions = partition.state.transactions
        assert len(transactions) == MANY

        resign(coordinator, 0)

        left = [len(transactions)]
        while transactions:
            await asyncio.sleep(0)
            left.append(len(transactions))
        assert max(before - after for before, after in pairwise(left)) <= SLICE * BACKGROUND_MS / EVERY_MS


@in_virtual_time
async def test_markers_behind_those_of_a_partition_that_was_given_up_are_sent() -> None:
    store, cluster = memory_store(), MemoryCluster()
    cluster.gate.clear()
    fill(store, 0, MANY)
    fill(store, 1, 1)
    async with leading(store, cluster) as coordinator:
        await asyncio.sleep(1)

        resign(coordinator, 0)
        cluster.gate.set()

        await asyncio.sleep(1)
        assert MANY in {one.producer_id for one in cluster.written[TOPIC_0]}


@pytest.mark.timeout(90)
def test_the_time_to_take_a_marker_does_not_grow_with_those_that_were_taken() -> None:
    count = 400_000  # in a plain dict, minutes
    queue, transaction = MarkerQueue(), Transaction("id")
    transaction.replay(prepared(1))
    hosted = TransactionPartition(0, 0, TransactionsState(0))
    for _ in range(count):
        queue.put(1, Markers(EndedTransaction.of(transaction, hosted), frozenset({TOPIC_0})))

    taken = 0
    while queue.has(1):
        batch = queue.take(1, lambda _: True)
        assert len(batch) == PARTITIONS_IN_A_REQUEST
        taken += len(batch)

    assert taken == count
