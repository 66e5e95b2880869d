"""Producers of topics that grow, or are deleted and created again, while they write to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from ottla.admin import Admin
from ottla.producer import Acknowledgement, Producer, SyncProducer, TopicRecreated, TransactionFailed
from ottla.protocol.errors import TopicAlreadyExists

if TYPE_CHECKING:
    from sdk.conftest import Cluster

KEYS = [b"key-%d" % number for number in range(12)]
BOUND_S = 120


async def recreate(admin: Admin, topic: str, partitions: int) -> None:
    await admin.topics.delete(topic)
    while True:
        try:
            await admin.topics.create(topic, partitions=partitions)
        except TopicAlreadyExists:  # its deletion is under way
            await asyncio.sleep(0.05)
        else:
            return


async def outcomes(sent: list[Acknowledgement]) -> list[int | type[BaseException]]:
    """Return the partition of each record, or the type of its error."""
    await asyncio.wait([record.future() for record in sent])
    errors = [record.exception() for record in sent]
    return [
        record.result().partition if error is None else type(error)
        for record, error in zip(sent, errors, strict=True)
    ]


async def partitions_of_keys(cluster: Cluster, topic: str) -> list[int | type[BaseException]]:
    """Return the partitions that a new producer chooses for the keys."""
    async with Producer(cluster.bootstrap_servers) as producer:
        return await outcomes(list(await producer.send_many(topic, KEYS, keys=KEYS)))


async def test_records_for_a_topic_recreated_with_fewer_partitions_fail_at_once_or_are_written(
    cluster: Cluster, admin: Admin, fresh: Callable[[str], str]
) -> None:
    topic = fresh("fewer")
    await admin.topics.create(topic, partitions=4)
    rows = pa.table({"value": KEYS, "key": KEYS})
    async with asyncio.timeout(BOUND_S), Producer(cluster.bootstrap_servers, retry_backoff_ms=20) as producer:
        before = await outcomes([await producer.send(topic, key, key=key) for key in KEYS])
        await recreate(admin, topic, 2)
        first = await outcomes([await producer.send(topic, key, key=key) for key in KEYS])
        one_by_one = await outcomes([await producer.send(topic, key, key=key) for key in KEYS])
        in_bulk = await outcomes(list(await producer.send_many(topic, KEYS, keys=KEYS)))
        of_arrow = await outcomes(list(await producer.send_arrow(topic, rows)))
    wanted = await partitions_of_keys(cluster, topic)

    assert {outcome for outcome, old in zip(first, before, strict=True) if old in (2, 3)} == {TopicRecreated}
    assert one_by_one == in_bulk == of_arrow == wanted
    assert set(wanted) == {0, 1}


def test_a_sync_producer_learns_of_a_topic_recreated_with_fewer_partitions(
    cluster: Cluster, fresh: Callable[[str], str]
) -> None:
    topic = fresh("sync-fewer")

    async def make(again: bool) -> None:
        async with Admin(cluster.bootstrap_servers) as admin:
            if again:
                await recreate(admin, topic, 1)
            else:
                await admin.topics.create(topic, partitions=4)

    asyncio.run(make(False))
    with SyncProducer(cluster.bootstrap_servers, max_block_ms=500, retry_backoff_ms=20) as producer:
        assert {producer.send(topic, b"x", partition=number).result(60).partition for number in range(4)}
        asyncio.run(make(True))
        with pytest.raises(TopicRecreated, match="again with 1 partitions, and had 4"):
            producer.send(topic, b"x", partition=3).result(60)
        assert {producer.send(topic, key, key=key).result(60).partition for key in KEYS} == {0}
        with pytest.raises(ValueError, match="partitions 0 to 0, not 3"):
            producer.send(topic, b"x", partition=3).result(60)


async def test_a_transaction_fails_with_the_recreated_topic_and_the_next_one_commits(
    cluster: Cluster, admin: Admin, fresh: Callable[[str], str]
) -> None:
    topic = fresh("txn-fewer")
    await admin.topics.create(topic, partitions=4)
    settings: dict[str, Any] = {"transactional_id": fresh("id"), "retry_backoff_ms": 20}
    async with asyncio.timeout(BOUND_S), Producer(cluster.bootstrap_servers, **settings) as producer:
        async with producer.transaction():
            for number in range(4):
                await producer.send(topic, b"x", partition=number)
        await recreate(admin, topic, 1)
        with pytest.raises(TransactionFailed) as failed:
            async with producer.transaction():
                lost = await producer.send(topic, b"x", partition=3)
        assert isinstance(lost.exception(), TopicRecreated), failed.value
        async with producer.transaction():
            written = [await producer.send(topic, key, key=key) for key in KEYS]

    assert {(await record).partition for record in written} == {0}


async def test_every_call_waits_for_the_partition_of_a_topic_that_has_grown(
    cluster: Cluster, admin: Admin, fresh: Callable[[str], str]
) -> None:
    topic = fresh("grown")
    await admin.topics.create(topic, partitions=1)
    rows = pa.table({"value": [b"x", b"x"], "partition": [0, 4]})
    async with asyncio.timeout(BOUND_S), Producer(cluster.bootstrap_servers) as producer:
        await producer.send_and_wait(topic, b"x")
        await admin.topics.add_partitions(topic, 2)
        assert (await producer.send_and_wait(topic, b"x", partition=1)).partition == 1
        await admin.topics.add_partitions(topic, 3)
        assert (await producer.send_nowait(topic, b"x", partition=2)).partition == 2
        await admin.topics.add_partitions(topic, 4)
        many = await producer.send_many(topic, [b"x"] * 2, partition=3)
        await admin.topics.add_partitions(topic, 5)
        arrow = await producer.send_arrow(topic, rows)
        found = await outcomes([*many, *arrow])

    assert found == [3, 3, 0, 4]


async def test_a_transaction_and_a_sync_producer_write_to_partitions_that_were_added(
    cluster: Cluster, admin: Admin, fresh: Callable[[str], str]
) -> None:
    topic = fresh("grown-too")
    await admin.topics.create(topic, partitions=1)
    settings: dict[str, Any] = {"transactional_id": fresh("id")}

    def send(producer: SyncProducer, partition: int) -> int:
        return producer.send(topic, b"x", partition=partition).result(60).partition

    async with asyncio.timeout(BOUND_S), Producer(cluster.bootstrap_servers, **settings) as producer:
        async with producer.transaction():
            await producer.send(topic, b"x")
        with await asyncio.to_thread(SyncProducer(cluster.bootstrap_servers).start) as sync:
            assert await asyncio.to_thread(send, sync, 0) == 0
            await admin.topics.add_partitions(topic, 3)
            assert await asyncio.to_thread(send, sync, 2) == 2
        async with producer.transaction():
            sent = await producer.send(topic, b"x", partition=1)

    assert (await sent).partition == 1
