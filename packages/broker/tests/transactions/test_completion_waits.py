"""Requests that wait for the completion of the transaction before theirs."""

import asyncio

import pytest

from ottla.broker.coordinators.testing import in_virtual_time
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.events import Producer, TransactionState
from ottla.broker.transactions.testing import (
    TOPIC_1,
    MemoryCluster,
    begun,
    described,
    leading,
    memory_store,
    resign,
    until,
)
from ottla.protocol.errors import ErrorCode

NONE = ErrorCode.NONE


async def ending(coordinator: TransactionCoordinator, cluster: MemoryCluster) -> Producer:
    """Commit a transaction whose markers the leaders do not write before the gate opens."""
    producer = await begun(coordinator)
    cluster.gate.clear()
    assert await coordinator.end("t", producer, commit=True) is NONE
    return producer


@in_virtual_time
async def test_the_next_transaction_waits_for_the_markers_of_the_one_before() -> None:
    cluster = MemoryCluster()
    async with leading(memory_store(), cluster) as coordinator:
        producer = await ending(coordinator, cluster)
        began = asyncio.get_running_loop().time()

        adding = asyncio.create_task(coordinator.add_partitions("t", producer, [TOPIC_1]))
        await asyncio.sleep(0.05)
        assert not adding.done()
        cluster.gate.set()

        assert await adding is NONE
        assert asyncio.get_running_loop().time() - began < 0.06
        assert described(coordinator).state is TransactionState.ONGOING
        assert described(coordinator).partitions == {TOPIC_1}


@in_virtual_time
async def test_the_next_transaction_is_refused_while_markers_are_missing_for_long() -> None:
    cluster = MemoryCluster()
    async with leading(memory_store(), cluster) as coordinator:
        producer = await ending(coordinator, cluster)
        began = asyncio.get_running_loop().time()

        refused = await asyncio.gather(
            *(coordinator.add_partitions("t", producer, [TOPIC_1]) for _ in range(3))
        )

        assert refused == [ErrorCode.CONCURRENT_TRANSACTIONS] * 3
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.1, abs=0.01)
        cluster.gate.set()
        await until(coordinator, TransactionState.COMPLETE_COMMIT)
        assert await coordinator.add_partitions("t", producer, [TOPIC_1]) is NONE


@in_virtual_time
async def test_a_request_that_waits_for_markers_learns_that_another_broker_coordinates_now() -> None:
    cluster, store = MemoryCluster(), memory_store()
    async with leading(store, cluster) as coordinator:
        producer = await ending(coordinator, cluster)

        adding = asyncio.create_task(coordinator.add_partitions("t", producer, [TOPIC_1]))
        await asyncio.sleep(0.01)
        resign(coordinator)
        cluster.gate.set()

        assert await adding is ErrorCode.CONCURRENT_TRANSACTIONS
        assert await coordinator.add_partitions("t", producer, [TOPIC_1]) is ErrorCode.NOT_COORDINATOR
