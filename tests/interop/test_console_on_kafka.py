"""The console on Apache Kafka 3.9 with ZooKeeper and on 4.4: versions, znodes, moves, transactions."""

from __future__ import annotations

import asyncio
import html
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest

from ottla.admin import BROKER, Admin
from ottla.client.config import ClientConfig
from ottla.console.settings import ClusterSettings, ZooKeeperSettings
from ottla.console.testing import ORIGIN, serving
from ottla.producer import Producer
from ottla.protocol.records import BatchBuilder
from peers.apache_kafka import ApacheKafka, ZooKeeper
from peers.batch_writer import Writer
from peers.kraft_kafka import KraftKafka
from peers.three_brokers import ThreeBrokers

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

BOUND_S = 90.0
BEGIN_MS = 1_767_225_600_000
VERIFIES = "transaction.partition.verification.enable"


async def page(console: httpx.AsyncClient, path: str) -> str:
    answer = await console.get(f"/c/kafka{path}")
    assert answer.status_code == 200, answer.text
    return answer.text


async def do(console: httpx.AsyncClient, change: str, typed: str = "", **form: str) -> str:
    """Look at the preview of a change as a browser does, and confirm it."""
    shown = (await console.get(f"/c/kafka/change/{change}?{urlencode(form)}")).text
    hidden = dict(re.findall(r'name="(token|shown)" value="([^"]*)"', shown))
    hidden = {name: html.unescape(value) for name, value in hidden.items()}
    answer = await console.post(
        f"/c/kafka/change/{change}", content=urlencode({**form, "typed": typed, **hidden}),
        headers={"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"},
    )  # fmt: skip
    return answer.text


async def until(ask: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until the answer is yes."""
    deadline = time.monotonic() + BOUND_S
    while not await ask():
        assert time.monotonic() < deadline, "it did not come to be"
        await asyncio.sleep(0.2)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApacheKafka, ZooKeeper]]:
    """Kafka 3.9 that does not verify transactions, and its ZooKeeper."""
    folder = tmp_path_factory.mktemp("old")
    with (
        ZooKeeper(folder / "zookeeper") as zookeeper,
        ApacheKafka(folder / "kafka", {VERIFIES: "false"}, zookeeper=zookeeper) as kafka,
    ):
        yield kafka, zookeeper


@pytest.fixture
async def on_old(old: tuple[ApacheKafka, ZooKeeper]) -> AsyncIterator[httpx.AsyncClient]:
    kafka, zookeeper = old
    settings = ClusterSettings(
        "kafka", kafka.bootstrap_servers, ClientConfig, zookeeper=ZooKeeperSettings(zookeeper.connect_string)
    )
    async with serving(settings, allows_changes=True) as client:
        yield client


async def test_znodes_of_kafka_are_shown_without_its_secrets(
    on_old: httpx.AsyncClient, old: tuple[ApacheKafka, ZooKeeper]
) -> None:
    async with Admin(old[0].bootstrap_servers) as admin:
        await admin.users.set_password("anna", "secret of anna", "SCRAM-SHA-256")

    assert ">consumers</a>" in await page(on_old, "/znodes")
    broker = (await admin_brokers(old[0].bootstrap_servers))[0]
    assert "&#34;listener_security_protocol_map&#34;" in await page(
        on_old, f"/znodes?path=/brokers/ids/{broker}"
    )
    user = await page(on_old, "/znodes?path=/config/users/anna")
    assert "SCRAM-SHA-256" in user
    assert "stored_key" not in user
    assert "No group." in await page(on_old, "/groups?type=zookeeper")


async def settings_change(console: httpx.AsyncClient, servers: str) -> None:
    """Change a setting of all brokers and of one in the console, and take both away."""
    key, broker = "log.cleaner.threads", str((await admin_brokers(servers))[0])

    async def source() -> tuple[str | None, str]:
        async with Admin(servers) as admin:
            found = await admin.configs.describe(BROKER, broker)
        return next((entry.value, entry.source) for entry in found if entry.name == key)

    before = await source()
    for which, value, after in (
        ("all brokers", "2", ("2", "all brokers")), (broker, "1", ("1", "broker")),
        (broker, "", ("2", "all brokers")), ("all brokers", "", before),
    ):  # fmt: skip
        done = await do(console, "set-broker-setting", broker=which, key=key, value=value)
        assert f"{key} of {'broker ' if which == broker else ''}{which} is" in done

        async def is_set(after: tuple[str | None, str] = after) -> bool:
            return await source() == after

        await until(is_set)
    assert "is secret" in await page(console, "/change/set-broker-setting?key=ssl.keystore.password&value=x")
    assert "while brokers run" in await page(console, "/change/set-broker-setting?key=log.dirs&value=x")


async def test_a_setting_of_the_brokers_of_kafka_3_9_is_changed(
    on_old: httpx.AsyncClient, old: tuple[ApacheKafka, ZooKeeper]
) -> None:
    await settings_change(on_old, old[0].bootstrap_servers)


async def admin_brokers(servers: str) -> list[int]:
    async with Admin(servers) as admin:
        return [broker.id for broker in (await admin.brokers.describe()).brokers]


async def test_a_transaction_that_hangs_in_kafka_is_shown_and_aborted(
    on_old: httpx.AsyncClient, old: tuple[ApacheKafka, ZooKeeper]
) -> None:
    builder = BatchBuilder(1 << 20)
    builder.append(None, b"hangs", time.time_ns() // 1_000_000)
    batch = builder.build(producer_id=7_000_000, producer_epoch=0, base_sequence=0, transactional=True)
    async with Admin(old[0].bootstrap_servers) as admin:
        await admin.topics.create("held", partitions=1, replication_factor=1)
    async with Writer(old[0].bootstrap_servers) as writer:
        await writer.write_raw("held", 0, batch, transactional_id="late")

    shown = await page(on_old, "/transactions")
    done = await do(on_old, "abort-transaction", "held", topic="held", partition="0", offset="0")

    assert "nothing: it hangs" in shown
    assert "readers of held-0 go on" in done

    async def is_free() -> bool:
        return "No partition: each reader gets to the end." in await page(on_old, "/transactions")

    await until(is_free)


async def test_features_and_versions_of_kafka_4_are_shown_and_a_setting_is_changed(tmp_path: Path) -> None:
    with KraftKafka(tmp_path / "kafka") as kafka:
        settings = ClusterSettings("kafka", kafka.bootstrap_servers, ClientConfig)
        async with serving(settings, allows_changes=True) as console:
            versions = await page(console, "/versions")
            znodes = await page(console, "/znodes")
            transactions = await page(console, "/transactions")
            await settings_change(console, kafka.bootstrap_servers)

    rows = dict(re.findall(r'class="name">([a-z.]+)</th><td class="number">([^<]+)</td>', versions))
    assert rows["group.version"] == "1"
    assert int(rows["share.version"]) >= 1
    assert int(rows["metadata.version"]) > 20
    assert re.search(r"ShareGroupDescribe</th><td>1</td>", versions)
    assert "Clusters of Apache Kafka 4 have none" in znodes
    assert "No partition: each reader gets to the end." in transactions


async def test_a_search_of_kafka_reads_all_records_in_either_direction(tmp_path: Path) -> None:
    count, per_batch, topic = 200_000, 5_000, "/topics/searched/records"
    with KraftKafka(tmp_path / "kafka") as kafka:
        async with Admin(kafka.bootstrap_servers) as admin, Writer(kafka.bootstrap_servers) as writer:
            await admin.topics.create("searched", partitions=3, replication_factor=1)
            for first in range(0, count, per_batch):
                builder = BatchBuilder(1 << 20)
                for number in range(first, first + per_batch):
                    builder.append(None, b'{"n":%d}' % number, BEGIN_MS + number)
                await writer.write_raw("searched", first // per_batch % 3, builder.build())
        async with serving(ClusterSettings("kafka", kafka.bootstrap_servers, ClientConfig)) as console:
            none = await page(console, f"{topic}/events?find=in+no+record&all=1")
            few = await page(console, f"{topic}/events?from=beginning&where=value.n+%3E%3D+{count - 3}&all=1")
            lines = await page(console, f"{topic}/export?where=value.n+%3C+3&format=jsonl")

    searched = f"{count:,} of {count:,} offsets".replace(",", "\u202f")
    assert json.dumps(f"Searched: {searched}")[1:-1] in none
    assert "; 0 match" in none
    assert "; 3 match" in few
    assert [json.loads(json.loads(line)["value"])["n"] for line in lines.splitlines()] == [2, 1, 0]


async def test_partitions_of_kafka_move_as_drawn_and_get_their_leaders_back(
    three_brokers: ThreeBrokers,
) -> None:
    topic = f"moved-{time.monotonic_ns()}"
    settings = ClusterSettings("kafka", three_brokers.bootstrap_servers, ClientConfig)
    async with (
        Admin(three_brokers.bootstrap_servers) as admin,
        serving(settings, allows_changes=True) as console,
    ):
        await admin.topics.create(topic, assignments={0: [1], 1: [1]})
        async with Producer(bootstrap_servers=three_brokers.bootstrap_servers) as producer:
            await producer.send_and_wait(topic, b"x")
        form = {"topics": topic, "brokers": "2,3", "replicas": "2"}

        async def is_drawn() -> bool:
            return 'class="role added"' in await page(console, f"/change/reassign?{urlencode(form)}")

        await until(is_drawn)
        done = await do(console, "reassign", **form)
        assert "The move of 2 partitions began." in done

        async def has_moved() -> bool:
            admin.cluster.forget(topic)
            found = (await admin.topics.describe(topic)).partitions.values()
            return all(set(partition.isr) == {2, 3} == set(partition.replicas) for partition in found)

        await until(has_moved)

        async def has_ended() -> bool:
            return "Nothing moves." in await page(console, "/reassignments")

        await until(has_ended)
        # The other replica leads after the order is turned round, until the first one is elected.
        found = (await admin.topics.describe(topic)).partitions
        lines = "\n".join(
            f"{topic}:{index}={part.replicas[1]},{part.replicas[0]}" for index, part in found.items()
        )
        await do(console, "reassign", lines=lines)

        async def is_unpreferred() -> bool:
            return "Another leader for 2 partitions." in await page(
                console, f"/change/elect-preferred?topic={topic}"
            )

        await until(is_unpreferred)
        elected = await do(console, "elect-preferred", topic=topic)

    assert "The first replica of 2 partitions leads now." in elected
