"""All handlers of an app in one group: what they read is theirs, and stays read when handlers change."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from ottla.admin import Admin
from ottla.consumer import ConsumerRecord
from ottla.producer import Producer
from ottla.streams import App

if TYPE_CHECKING:
    from sdk.conftest import Cluster

PARTITIONS = 3
Fresh = Callable[[str], str]


class Seen:
    """Counts the records that handlers were called with."""

    def __init__(self) -> None:
        self.records: Counter[tuple[str, bytes]] = Counter()
        self._more = asyncio.Event()

    async def __call__(self, record: ConsumerRecord) -> None:
        self.records[record.topic, record.value] += 1
        self._more.set()

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(60):
            while self.records.total() < count:
                self._more.clear()
                await self._more.wait()


async def make(admin: Admin, *topics: str) -> None:
    for topic in topics:
        await admin.topics.create(topic, partitions=PARTITIONS, replication_factor=1)


async def fill(cluster: Cluster, topic: str, stem: str) -> None:
    async with Producer(cluster.bootstrap_servers) as producer:
        for partition in range(PARTITIONS):
            await producer.send(topic, f"{stem} {partition}", partition=partition)


async def test_handlers_that_are_renamed_and_added_run_nothing_again(
    cluster: Cluster, admin: Admin, fresh: Fresh
) -> None:
    name, orders, refunds = fresh("billing"), fresh("orders"), fresh("refunds")
    await make(admin, orders, refunds)
    await fill(cluster, orders, "first")
    before, seen = App(name, cluster.bootstrap_servers), Seen()
    before.handle(orders, name="charge")(seen.__call__)
    async with before:
        await seen.reach(PARTITIONS)

    await fill(cluster, orders, "second")
    await fill(cluster, refunds, "first")
    after, seen_after = App(name, cluster.bootstrap_servers), Seen()
    after.handle(orders, name="charge_customers")(seen_after.__call__)
    after.handle(refunds, name="refund")(seen_after.__call__)
    async with after:
        await seen_after.reach(2 * PARTITIONS)

    assert set(seen.records) == {(orders, b"first %d" % each) for each in range(PARTITIONS)}
    assert seen_after.records == {
        **{(orders, b"second %d" % each): 1 for each in range(PARTITIONS)},
        **{(refunds, b"first %d" % each): 1 for each in range(PARTITIONS)},
    }


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
async def test_members_of_one_group_with_different_topics_share_each_topic(
    cluster: Cluster, admin: Admin, fresh: Fresh, strategy: str
) -> None:
    topics, name, seen = [fresh("orders"), fresh("refunds"), fresh("visits")], fresh("shop"), Seen()
    await make(admin, *topics)

    def app(*handled: str) -> App:
        made = App(name, cluster.bootstrap_servers, partition_assignment_strategy=strategy)
        for number, topic in enumerate(handled):
            made.handle(topic, name=f"handler{number}")(seen.__call__)
        return made

    async with app(*topics):
        for topic in topics:
            await fill(cluster, topic, "one app")
        await seen.reach(3 * PARTITIONS)
        async with app(topics[2], topics[0]):  # a program of another version, without one of the handlers
            for topic in topics:
                await fill(cluster, topic, "two apps")
            await seen.reach(6 * PARTITIONS)
        for topic in topics:
            await fill(cluster, topic, "one again")
        await seen.reach(9 * PARTITIONS)

    expected = {
        (topic, f"{stem} {partition}".encode())
        for topic in topics
        for stem in ("one app", "two apps", "one again")
        for partition in range(PARTITIONS)
    }
    assert set(seen.records) == expected


async def test_a_static_member_is_told_from_the_others_of_its_app(
    cluster: Cluster, admin: Admin, fresh: Fresh
) -> None:
    orders, refunds, seen = fresh("orders"), fresh("refunds"), Seen()
    await make(admin, orders, refunds)
    app = App(fresh("shop"), cluster.bootstrap_servers, group_instance_id="pod-1")
    app.handle(orders, name="charge")(seen.__call__)
    app.handle(refunds, name="refund")(seen.__call__)

    async with app:
        for topic in (orders, refunds):
            await fill(cluster, topic, "first")
        await seen.reach(2 * PARTITIONS)

    assert {each.consumer.group_instance_id for each in app.configs().values()} == {
        "pod-1-charge",
        "pod-1-refund",
    }
