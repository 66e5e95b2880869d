"""Topologies on a real broker: topics that must fit, tables that are followed, state that moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from ottla.admin import TOPIC, Admin
from ottla.broker.testing import BrokerProcess
from ottla.consumer import Consumer, ConsumerRecord
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import StreamsError, TopologyError
from ottla.streams.failures.retry_policy import RetryPolicy
from ottla.streams.handlers.direct_outputs import DirectOutputs
from ottla.streams.language.declarations import StoreKind
from ottla.streams.language.runtime import TopologyRuntime
from ottla.streams.language.topology import Topology
from ottla.streams.seams import Stop
from peers.stream_program import APP, config, running
from peers.stream_works import OneWork

WAIT_S = 60


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[str]:
    settings = {"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path / "broker", settings) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
async def admin(servers: str) -> AsyncIterator[Admin]:
    async with Admin(servers) as admin:
        yield admin


async def create(admin: Admin, **partitions: int) -> None:
    for topic, count in partitions.items():
        await admin.topics.create(topic, partitions=count)


async def write(servers: str, topic: str, rows: list[tuple[str, str | None]]) -> None:
    async with Producer(servers) as producer:
        for key, value in rows:
            await producer.send(topic, value, key)


@asynccontextmanager
async def reading(servers: str, topic: str) -> AsyncIterator[Consumer]:
    async with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        yield consumer


async def rows(consumer: Consumer, count: int) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            record = await consumer.getone()
            found.append((record.key.decode(), record.value.decode()))
    return found


def counting(store: StoreKind) -> Topology:
    topology = Topology(store=store)
    topology.stream("orders", key=str, value=str).count(name="counts").to("counts")
    return topology


# --- topics


@asynccontextmanager
async def member(servers: str, topology: Topology, state_dir: Path) -> AsyncIterator[TopologyRuntime]:
    async with running(topology, config(servers), state_dir) as (_, runtime):
        yield runtime


async def test_a_table_with_another_number_of_partitions_is_said_at_the_start(
    servers: str, admin: Admin, tmp_path: Path
) -> None:
    await create(admin, orders=3, names=2)
    topology = Topology()
    names = topology.table("names", key=str, value=str)
    topology.stream("orders", key=str, value=str).join(names, lambda order, name: name).to("out")

    with pytest.raises(TopologyError, match="'orders' has 3 partitions and table 'names' has 2") as raised:
        async with member(servers, topology, tmp_path):
            pass

    assert "\n" not in str(raised.value)


async def test_a_topic_that_does_not_exist_is_said_at_the_start(servers: str, tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="ottla topic create orders"):
        async with member(servers, counting("memory"), tmp_path):
            pass


async def test_the_changelog_is_compacted_and_has_as_many_partitions(
    servers: str, admin: Admin, tmp_path: Path
) -> None:
    await create(admin, orders=3, counts=1)

    async with member(servers, counting("memory"), tmp_path):
        changelog = await admin.topics.describe(f"{APP}-counts-changelog")
        configs = await admin.configs.describe(TOPIC, changelog.name)

    assert len(changelog.partitions) == 3
    assert {each.name: each.value for each in configs}["cleanup.policy"] == "compact"


async def test_a_source_that_grows_under_an_aggregate_stops_at_once_with_the_remedy(
    servers: str, admin: Admin, tmp_path: Path
) -> None:
    """It waited for a minute for a partition of the changelog that does not exist."""
    await create(admin, orders=1, counts=1)
    settings = config(servers, metadata_max_age_ms=200)

    with pytest.raises(TopologyError) as raised:
        async with running(counting("memory"), settings, tmp_path) as (processor, runtime):
            await has_partitions(runtime, 1)
            await admin.topics.add_partitions("orders", 2)
            async with asyncio.timeout(30):
                await processor.wait()

    assert str(raised.value).startswith(
        f"stream 'orders' has 2 partitions and its changelog '{APP}-counts-changelog' has 1: keys are in"
    )
    assert "give the store another name=, or delete the changelog" in str(raised.value)


async def test_a_source_without_state_may_grow(servers: str, admin: Admin, tmp_path: Path) -> None:
    await create(admin, orders=1, out=1)
    topology = Topology()
    topology.stream("orders", key=str, value=str).to("out")

    async with (
        running(topology, config(servers, metadata_max_age_ms=200), tmp_path) as (_, runtime),
        reading(servers, "out") as out,
    ):
        await has_partitions(runtime, 1)
        await admin.topics.add_partitions("orders", 2)
        await has_partitions(runtime, 2)
        async with Producer(servers) as producer:
            await producer.send("orders", "1", "a", partition=1)
        assert await rows(out, 1) == [("a", "1")]


async def test_a_changelog_of_another_size_is_said_at_the_start(
    servers: str, admin: Admin, tmp_path: Path
) -> None:
    await create(admin, orders=3, counts=1, **{f"{APP}-counts-changelog": 2})

    with pytest.raises(TopologyError, match="give the store another name=, or delete the changelog"):
        async with member(servers, counting("memory"), tmp_path):
            pass


async def test_state_of_a_topic_that_was_created_anew_is_not_used(
    servers: str, admin: Admin, tmp_path: Path
) -> None:
    await create(admin, orders=1, counts=1)
    await write(servers, "orders", [("a", "x")] * 3)
    async with member(servers, counting("memory"), tmp_path), reading(servers, "counts") as counts:
        await rows(counts, 3)
    await admin.topics.delete("orders")
    await create(admin, orders=1)
    await write(servers, "orders", [("a", "x")])

    with pytest.raises(TopologyError, match="was created again") as raised:
        async with asyncio.timeout(WAIT_S):
            async with running(counting("memory"), config(servers), tmp_path) as (processor, _):
                await processor.wait()

    assert f"delete '{APP}-counts-changelog'" in str(raised.value)


async def test_records_of_a_partition_whose_state_cannot_be_restored_stop_the_processor(
    servers: str, admin: Admin, tmp_path: Path
) -> None:
    """Retried or set aside like failures of their own, all records of the partition would be lost."""
    await create(admin, orders=1, counts=1)
    await write(servers, "orders", [("a", "x")])
    async with member(servers, counting("memory"), tmp_path), reading(servers, "counts") as counts:
        await rows(counts, 1)
    await admin.topics.delete("orders")
    await create(admin, orders=1)
    plan, orders = counting("memory").plan(), TopicPartition("orders", 0)

    async with (
        asyncio.timeout(WAIT_S),
        Producer(servers) as producer,
        TopologyRuntime(
            plan, config(servers), DirectOutputs(producer), app_id=APP, state_dir=tmp_path
        ) as runtime,
    ):
        with pytest.raises(TopologyError):
            await runtime.assigned(orders, 0)
        with pytest.raises(StreamsError) as raised:
            await runtime(OneWork([ConsumerRecord("orders", 0, 0, key=b"a", value=b"x")]))

    policy = RetryPolicy(on_error={Exception: "skip"}, has_dead_letters=True)
    assert policy.decide(raised.value, 1, 0, 0.0) == Stop()
    assert "the state of topic orders, partition 0 cannot be restored" in str(raised.value)


# --- tables


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_tables_are_complete_before_the_first_record_and_followed_from_then_on(
    servers: str, admin: Admin, tmp_path: Path, store: StoreKind
) -> None:
    await create(admin, orders=2, names=2, regions=3, out=1)
    await write(servers, "names", [("a", "old"), ("a", "Ada"), ("b", "gone"), ("b", None)])
    await write(servers, "regions", [(str(number), f"region {number}") for number in range(20)])
    await write(servers, "orders", [("a", "7"), ("b", "8")])
    topology = Topology(store=store)
    names = topology.table("names", key=str, value=str)
    regions = topology.global_table("regions", key=str, value=str)
    orders = topology.stream("orders", key=str, value=str)
    named = orders.left_join(names, lambda order, name: (order, name or "nobody"))
    named.join(regions, lambda pair, region: f"{pair[1]} {region}", by=lambda pair: pair[0]).to("out")

    async with member(servers, topology, tmp_path), reading(servers, "out") as out:
        first = await rows(out, 2)
        await write(servers, "names", [("b", "Bob")])
        later = await asked_until(servers, out, ("b", "Bob region 9"))

    assert sorted(first) == [("a", "Ada region 7"), ("b", "nobody region 8")]
    assert later


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_global_table_whose_topic_has_grown_has_the_newest_row_of_each_key(
    servers: str, admin: Admin, tmp_path: Path, store: StoreKind
) -> None:
    """Keys move to other partitions then: the older row stays behind, and so does a row that was removed."""
    await create(admin, orders=1, names=2, out=1)
    keys = [f"key{number}" for number in range(8)]
    await write(servers, "names", [(key, "old") for key in keys])
    await admin.topics.add_partitions("names", 5)
    await write(servers, "names", [(key, "new") for key in keys[:4]] + [(key, None) for key in keys[4:]])
    await write(servers, "orders", [(key, "order") for key in keys])

    async with (
        member(servers, joined_by_name(store), tmp_path),
        reading(servers, "out") as out,
    ):
        found = dict(await rows(out, len(keys)))

    assert found == dict.fromkeys(keys[:4], "new") | dict.fromkeys(keys[4:], "nobody")


def joined_by_name(store: StoreKind) -> Topology:
    topology = Topology(store=store)
    names = topology.global_table("names", key=str, value=str)
    orders = topology.stream("orders", key=str, value=str).map(lambda key, order: (key, (key, order)))
    orders.left_join(names, lambda order, name: name or "nobody", by=lambda order: order[0]).to("out")
    return topology


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_partitions_that_are_added_to_a_global_table_are_read_while_it_runs(
    servers: str, admin: Admin, tmp_path: Path, store: StoreKind
) -> None:
    await create(admin, orders=1, names=1, out=1)
    await write(servers, "names", [("a", "old"), ("b", "old")])

    async with (
        running(joined_by_name(store), config(servers), tmp_path, follow_tables_s=0.1) as (_, runtime),
        reading(servers, "out") as out,
    ):
        await admin.topics.add_partitions("names", 3)
        async with Producer(servers) as producer:
            await producer.send("names", "new", "a", partition=2)
            await producer.send("names", None, "b", partition=1)
        async with asyncio.timeout(WAIT_S):
            found = set[tuple[str, str]]()
            while not found >= {("a", "new"), ("b", "nobody")}:
                await write(servers, "orders", [("a", "order"), ("b", "order")])
                found |= set(await rows(out, 2))
        assert runtime.partitions


async def asked_until(servers: str, out: Consumer, wanted: tuple[str, str]) -> bool:
    """Send orders until the table has followed: it does so by itself, some time after the row is written."""
    async with asyncio.timeout(WAIT_S):
        while True:
            await write(servers, "orders", [("b", "9")])
            if (await rows(out, 1))[0] == wanted:
                return True


# --- state that moves


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_state_moves_with_its_partition_to_members_that_join_and_stay(
    servers: str, admin: Admin, tmp_path: Path, store: StoreKind
) -> None:
    await create(admin, orders=4, counts=1)
    keys = [f"key{number}" for number in range(30)]
    seen: Counter[str] = Counter()

    async def send_and_check(consumer: Consumer) -> None:
        await write(servers, "orders", [(key, "x") for key in keys])
        seen.update(keys)
        newest = dict(await rows(consumer, len(keys)))
        assert newest == {key: str(count) for key, count in seen.items()}

    async with reading(servers, "counts") as counts, AsyncExitStack() as second_stack:
        async with member(servers, counting(store), tmp_path / "first") as first:
            await send_and_check(counts)
            second = await second_stack.enter_async_context(
                member(servers, counting(store), tmp_path / "second")
            )
            await has_partitions(first, 2)
            await has_partitions(second, 2)
            shared = first.partitions & second.partitions
            await send_and_check(counts)
        await has_partitions(second, 4)
        await send_and_check(counts)
        async with member(servers, counting(store), tmp_path / "first") as first:
            await has_partitions(first, 2)  # its files are behind now
            await send_and_check(counts)

    assert not shared


async def has_partitions(runtime: TopologyRuntime, count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(runtime.partitions) != count:  # noqa: ASYNC110 - an assignment is no event here
            await asyncio.sleep(0.02)


async def test_a_restarted_member_goes_on_with_its_state(servers: str, admin: Admin, tmp_path: Path) -> None:
    await create(admin, orders=1, counts=1)
    for total in (1, 2, 3):
        await write(servers, "orders", [("a", "x")])
        async with (
            member(servers, counting("sqlite"), tmp_path) as runtime,
            reading(servers, "counts") as counts,
        ):
            assert (await rows(counts, total))[-1] == ("a", str(total))
            assert runtime.partitions == {TopicPartition("orders", 0)}

    assert (tmp_path / APP / f"{APP}-counts-changelog" / "0.sqlite").exists()
