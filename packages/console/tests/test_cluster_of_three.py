"""A cluster of three brokers: moves, elections, a broker that is away, and topics with many partitions."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from urllib.parse import urlencode

import httpx
import pytest

from ottla.admin import BROKER, TOPIC, Admin
from ottla.admin.reassigning import PartitionPlan, execute
from ottla.broker.testing import BrokerCluster
from ottla.client.config import ClientConfig
from ottla.console.settings import ClusterSettings, ZooKeeperSettings
from ottla.console.testing import do, serving
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.znodes.consumers import ConsumerOffset, ConsumerOwner, ConsumerRegistration

BOUND_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with BrokerCluster(
        tmp_path_factory.mktemp("cluster"),
        {"auto.leader.rebalance.enable": "false", "replica.fetch.max.bytes": "100000"},
    ) as three:
        yield three


@pytest.fixture
async def admin(cluster: BrokerCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.bootstrap_servers) as connected:
        yield connected


@pytest.fixture
async def console(cluster: BrokerCluster) -> AsyncIterator[httpx.AsyncClient]:
    settings = ClusterSettings(
        "three",
        cluster.bootstrap_servers,
        ClientConfig,
        zookeeper=ZooKeeperSettings(cluster.zookeeper_connect),
    )
    async with serving(settings, allows_changes=True) as client:
        yield client


async def page(console: httpx.AsyncClient, path: str) -> str:
    answer = await console.get(f"/c/three{path}")
    assert answer.status_code == 200, answer.text
    return answer.text


async def known(console: httpx.AsyncClient, path: str, words: str) -> str:
    """Return a page once it has some words: each broker learns of a new topic by itself."""
    shown = [""]

    async def has_words() -> bool:
        shown[0] = await page(console, path)
        return words in shown[0]

    await until(has_words)
    return shown[0]


async def until(ask: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not await ask():
        assert time.monotonic() < deadline, "it did not come to be"
        await asyncio.sleep(0.1)


async def test_partitions_move_as_the_plan_was_drawn(console: httpx.AsyncClient, admin: Admin) -> None:
    await admin.topics.create("moved", assignments={0: [1], 1: [1]})

    form = {"topics": "moved", "brokers": "2,3"}
    preview = await known(console, "/change/reassign?" + urlencode(form), 'class="role added"')
    done = await do(console, "reassign", cluster="three", topics="moved", brokers="2,3")

    assert preview.count('class="role added"') == 2
    assert preview.count('class="role leaving"') == 2
    assert "The move of 2 partitions began." in done.text

    async def has_moved() -> bool:
        found = (await admin.topics.describe("moved")).partitions
        return {partition.replicas for partition in found.values()} == {(2,), (3,)}

    await until(has_moved)

    async def is_said() -> bool:
        return "Nothing moves." in await page(console, "/reassignments")

    await until(is_said)


async def test_a_throttle_bounds_a_move_and_is_removed_at_its_end(
    console: httpx.AsyncClient, admin: Admin, cluster: BrokerCluster
) -> None:
    await admin.topics.create("bounded", assignments={0: [1]})
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for _ in range(34):
            await producer.send_and_wait("bounded", random.randbytes(50_000), partition=0)
    form = {"lines": "bounded:0=2", "throttle": "100000"}
    await known(console, "/change/reassign?" + urlencode(form), "with at most 100000 bytes per second")

    done = await do(console, "reassign", cluster="three", **form)

    async def throttles() -> list[str | None]:
        found = [await admin.configs.describe(BROKER, str(broker)) for broker in (1, 2)]
        found.append(await admin.configs.describe(TOPIC, "bounded"))
        own = [entry for entries in found for entry in entries if entry.source in ("broker", "topic")]
        return [entry.value for entry in own if "throttled" in entry.name]

    assert "The move of 1 partition began." in done.text
    assert sorted(filter(None, await throttles())) == ["0:1", "0:2", *["100000"] * 4]
    shown = await known(console, "/reassignments", "left, at the rate of the last two minutes")
    assert "Broker 2 copies at most 100000 bytes per second." in shown

    async def is_over() -> bool:
        return not await throttles()

    await until(is_over)
    assert (await admin.topics.describe("bounded")).partitions[0].replicas == (2,)
    assert "must be a whole number from 1 on" in await page(
        console, "/change/reassign?" + urlencode({**form, "throttle": "much"})
    )


async def test_settings_of_brokers_change_for_one_or_all_as_shown(
    console: httpx.AsyncClient, admin: Admin
) -> None:
    path = "/change/set-broker-setting?"
    every, one = {"broker": "all brokers", "value": "3"}, {"broker": "2", "value": "4"}
    key = "log.cleaner.threads"

    shown = await page(console, path + urlencode({"key": key, **every}))
    done = (await do(console, "set-broker-setting", cluster="three", key=key, **every)).text
    await do(console, "set-broker-setting", cluster="three", key=key, **one)

    async def values() -> list[tuple[str | None, str]]:
        found = [await admin.configs.describe(BROKER, str(broker)) for broker in (1, 2, 3)]
        return [(entry.value, entry.source) for entries in found for entry in entries if entry.name == key]

    async def are_set() -> bool:
        return await values() == [("3", "all brokers"), ("4", "broker"), ("3", "all brokers")]

    await until(are_set)
    again = await page(console, path + urlencode({"key": key, "broker": "all brokers"}))
    await do(console, "set-broker-setting", cluster="three", key=key, broker="2")
    await do(console, "set-broker-setting", cluster="three", key=key, broker="all brokers")

    assert shown.count('<td class="mono">default</td>') == 3
    assert f"{key} of all brokers is 3." in done
    assert "4, as it has its own" in again
    assert "what is set elsewhere, or the default" in again

    async def are_reset() -> bool:
        return {source for _, source in await values()} == {"default"}

    await until(are_reset)
    for other, why in (("broker.id", "cannot be changed while brokers run"), ("nothing", "is no key"),
                       ("ssl.keystore.password", "is secret")):  # fmt: skip
        assert why in await page(console, path + urlencode({"key": other, "value": "7"}))
    settings = await page(console, "/settings?q=log.cleaner.threads")
    assert "change/set-broker-setting?key=log.cleaner.threads" in settings
    assert "set-broker-setting" not in await page(console, "/settings?q=broker.id")


async def test_a_move_by_hand_that_makes_no_sense_says_why(console: httpx.AsyncClient, admin: Admin) -> None:
    await admin.topics.create("kept", assignments={0: [1]})

    async def refused(**form: str) -> str:
        return await page(console, f"/change/reassign?{urlencode(form)}")

    await known(console, f"/change/reassign?{urlencode({'lines': 'kept:0=1'})}", "all replicas are where")

    assert "broker 9 is down, or not in the cluster" in await refused(lines="kept:0=9")
    assert "there is no partition kept:7" in await refused(lines="kept:7=1")
    assert "a broker is named twice" in await refused(lines="kept:0=1,1")
    assert "there is no topic" in await refused(topics="nothing")
    assert "is to have 4 replicas" in await refused(topics="kept", replicas="4")


async def test_a_move_shows_its_progress_and_is_cancelled(
    console: httpx.AsyncClient, admin: Admin, cluster: BrokerCluster
) -> None:
    await admin.topics.create("slow", assignments={0: [1]})
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for _ in range(4):
            await producer.send_and_wait("slow", b"x" * 900_000, partition=0)
    # The first fetch is not held back, and uses up the rate of many minutes.
    await execute(admin, [PartitionPlan(TopicPartition("slow", 0), (3,))], throttle=1_000)

    shown = await known(console, "/reassignments", "Copied of slow-0")
    picture = await known(console, "/", 'class="role added"')
    done = await do(console, "cancel-reassignment", cluster="three", partition="slow:0")

    row = re.search(r"slow-0</th>(.*?)</tr>", shown, re.DOTALL)
    assert row is not None
    assert re.findall(r"<td>([^<]*)</td>", row[1])[:3] == ["1", "3", "1"]
    assert '<meter min="0" max="100"' in row[1]
    assert "1 partition on the way to other brokers" in picture
    assert "The move of 1 partition is cancelled" in done.text
    admin.cluster.forget("slow")
    assert (await admin.topics.describe("slow")).partitions[0].replicas == (1,)
    entries = await admin.configs.describe(BROKER, "3")
    assert not [entry for entry in entries if "throttled" in entry.name and entry.source == "broker"]


async def test_preferred_leaders_are_elected_as_shown(
    console: httpx.AsyncClient, admin: Admin, cluster: BrokerCluster
) -> None:
    await admin.topics.create("led", assignments={0: [3, 1]})
    await asyncio.to_thread(cluster.brokers[3].stop)
    await until(lambda: led_by(admin, 1))
    await asyncio.to_thread(cluster.restore)

    async def is_in_sync() -> bool:
        return "to=" not in (shown := await page(console, "/change/elect-preferred?topic=led")) and (
            "Another leader for 1 partition." in shown
        )

    await until(is_in_sync)
    done = await do(console, "elect-preferred", cluster="three", topic="led")

    assert "The first replica of 1 partition leads now." in done.text
    await until(lambda: led_by(admin, 3))


async def led_by(admin: Admin, broker: int) -> bool:
    admin.cluster.forget("led")
    return (await admin.topics.describe("led")).partitions[0].leader == broker


async def test_a_topic_of_500_partitions_opens_in_a_second_and_a_dead_group_shows_its_lag(
    console: httpx.AsyncClient, admin: Admin, cluster: BrokerCluster
) -> None:
    await admin.topics.create("wide", partitions=500, replication_factor=1)
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for index in (0, 499):
            await producer.send_and_wait("wide", b"x", partition=index)
    await admin.groups.commit("gone", {TopicPartition("wide", 499): 0})
    await known(console, "/topics?q=wide", ">500</td>")

    began_s = time.process_time()
    shown = await page(console, "/topics/wide")
    took_s = time.process_time() - began_s
    group = await page(console, "/group?name=gone")

    assert "<b>500</b><span>partitions</span>" in shown
    assert "<b>2</b><span>offsets in them</span>" in shown
    assert took_s < 1.0
    assert "<b>Empty</b><span>state</span>" in group
    assert "<b>1</b><span>records behind</span>" in group
    assert "records?from=offset&amp;partition=499&amp;offset=0" in group


async def test_a_broker_that_is_away_empties_no_page(
    console: httpx.AsyncClient, admin: Admin, cluster: BrokerCluster
) -> None:
    await admin.topics.create("there", assignments={0: [1], 1: [2]})
    await admin.groups.commit("reader", {TopicPartition("there", 0): 0, TopicPartition("there", 1): 0})
    await asyncio.to_thread(cluster.brokers[2].kill)
    try:

        async def says_away() -> bool:
            return "broker 2 is away" in await page(console, "/")

        await until(says_away)
        shown = await page(console, "/")
        topic = await page(console, "/topics/there")
        lacking = await page(console, "/topics?health=lacking")
        topics = await page(console, "/topics")
        moves = await page(console, "/reassignments")
        answer = await console.get("/c/three/group?name=reader")
    finally:
        await asyncio.to_thread(cluster.restore)

    rows = re.findall(r'<tr class="gone">(.*?)</tr>', shown, re.DOTALL)
    assert len(rows) == 2  # of its replicas, and of its log directory
    assert all("away" in row and "since" in row for row in rows)
    assert re.search(r"<b>2 of 3</b><span>brokers there", shown)
    assert re.search(r"0 <span class=\"dim\">of [1-9]", rows[0])
    assert "/topics/there" in lacking
    assert '<span class="bad">none</span>' in topic
    assert "there" in topics
    assert "Nothing moves." in moves
    assert answer.status_code in (200, 503)


async def test_znodes_are_read_and_groups_of_old_consumers_with_them(
    console: httpx.AsyncClient, admin: Admin, cluster: BrokerCluster
) -> None:
    await admin.topics.create("old", assignments={0: [1], 1: [2]})
    await admin.users.set_password("anna", "secret of anna", "SCRAM-SHA-256")
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("old", b"x", partition=0)
    async with KazooSession(cluster.zookeeper_connect) as session:
        member = ConsumerRegistration("old group", "old group_host-1", {"old": 1}, "static", 5)
        await session.create(member.path, member.encode(), ephemeral=True, make_parents=True)
        for znode in (
            ConsumerOffset("old group", "old", 0, 0),
            ConsumerOwner("old group", "old", 0, "old group_host-1-0"),
        ):
            await session.create(znode.path, znode.encode(), make_parents=True)
        groups = await page(console, "/groups?type=zookeeper")
        group = await known(console, "/group?name=old+group&type=zookeeper", "<b>1</b><span>records behind")
    root = await page(console, "/znodes")
    broker = await page(console, "/znodes?path=/brokers/ids/1")
    user = await page(console, "/znodes?path=/config/users/anna")
    missing = await page(console, "/znodes?path=/none")
    odd = await page(console, "/znodes?path=relative")

    assert "type=zookeeper" in groups
    assert "old 0" in group
    assert "ottla zookeeper-group" in group
    assert ">brokers</a>" in root
    assert "&#34;endpoints&#34;" in broker
    assert "SCRAM-SHA-256" in user
    assert "stored_key" not in user
    assert "there is no such znode" in missing
    assert "a path starts with /" in odd
