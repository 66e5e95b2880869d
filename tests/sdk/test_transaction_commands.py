"""`ottla txn` against real brokers: what it lists and describes, and a transaction that hangs."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.admin import BROKER, LATEST, Admin
from ottla.broker.testing import BrokerProcess
from ottla.producer import Producer
from ottla.protocol.records import BatchBuilder
from ottla.protocol.topics import TopicPartition
from peers.batch_writer import Writer
from peers.cluster_commands import Command, command_for, shown
from peers.snippets import ROOT, run_page

if TYPE_CHECKING:
    from sdk.conftest import Cluster

PAGE = ROOT / "docs/howto/end-hanging-transactions.md"
VERIFIES = "transaction.partition.verification.enable"


@pytest.fixture
def ottla(cluster: Cluster) -> Command:
    return command_for(cluster.bootstrap_servers)


@pytest.fixture
async def topic(admin: Admin, fresh: Callable[[str], str]) -> str:
    name = fresh("txn")
    await admin.topics.create(name, partitions=2, replication_factor=1)
    return name


@pytest.fixture
async def unverified(cluster: Cluster, ottla: Command, admin: Admin) -> AsyncIterator[None]:
    """Allow producers partitions that they did not add to their transaction, as before 3.6."""
    if cluster.kind == "kafka-4.4":
        pytest.skip("this broker lets nobody write outside of a transaction")
    await admin.configs.alter(BROKER, "", {VERIFIES: "false"})
    async with asyncio.timeout(30):
        while not await is_set(admin):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    yield
    await admin.configs.alter(BROKER, "", {VERIFIES: None})


async def is_set(admin: Admin) -> bool:
    broker = (await admin.brokers.describe()).brokers[0].id
    entries = await admin.configs.describe(BROKER, str(broker))
    return any(each.name == VERIFIES and each.value == "false" for each in entries)


async def hang(cluster: Cluster, topic: str) -> int:
    """Write a transactional batch of which no coordinator knows; return its offset."""
    builder = BatchBuilder(1 << 20)
    builder.append(None, b"hangs", time.time_ns() // 1_000_000)
    batch = builder.build(
        producer_id=1_000_000 + secrets.randbelow(1_000_000), producer_epoch=0, base_sequence=0,
        transactional=True,
    )  # fmt: skip
    async with Writer(cluster.bootstrap_servers) as writer:
        return await writer.write_raw(topic, 0, batch, transactional_id=f"late-{topic}")


async def test_an_open_transaction_is_listed_and_described(
    cluster: Cluster, topic: str, ottla: Command, fresh: Callable[[str], str]
) -> None:
    name = fresh("id")
    async with Producer(cluster.bootstrap_servers, transactional_id=name) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"open", partition=1)

        listed = shown(await asyncio.to_thread(ottla, "txn", "list", "--state", "ongoing", "--json"))
        described = shown(await asyncio.to_thread(ottla, "txn", "describe", name, "--json"))
        producers = shown(await asyncio.to_thread(ottla, "txn", "producers", f"{topic}:1", "--json"))
        hanging = await asyncio.to_thread(
            ottla, "txn", "find-hanging", "--topic", topic, "--longer-than-ms", "0"
        )
        await producer.commit_transaction()
        async with asyncio.timeout(30):
            while "CompleteCommit" not in (await asyncio.to_thread(ottla, "txn", "describe", name)).output:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    (ours,) = (each for each in listed if each["transactional_id"] == name)
    (described_partition,) = described.pop("partitions")
    assert ours == {key: described[key] for key in ours}
    assert (described["state"], described["timeout_ms"]) == ("Ongoing", 60_000)
    assert described_partition == {"topic": topic, "partition": 1}
    (only,) = producers
    assert (only["producer_id"], only["start_offset"], only["last_sequence"]) == (ours["producer_id"], 0, 0)
    assert (hanging.exit_code, hanging.output) == (0, "No transaction hangs.\n")


async def test_what_is_not_there_is_said_in_one_line(ottla: Command, topic: str) -> None:
    def output(*arguments: str) -> str:
        done = ottla("txn", *arguments)
        assert done.exit_code != 0
        return done.output.splitlines()[-1]

    missing = await asyncio.to_thread(output, "describe", "nobody")
    unnamed = await asyncio.to_thread(output, "describe", "")
    nowhere = await asyncio.to_thread(output, "producers", ":0")
    closed = await asyncio.to_thread(output, "abort", f"{topic}:0", "--start-offset", "7")

    assert missing == "Error: transactional id 'nobody' does not exist"
    assert unnamed == "Error: the transactional id must not be empty"
    assert nowhere == "Error: ':0' must be TOPIC or TOPIC:PARTITION"
    assert closed == f"Error: no open transaction of {topic}-0 begins at offset 7: none is open there"


async def test_an_empty_list_is_a_sentence_for_people_and_a_list_for_programs(ottla: Command) -> None:
    only = ("txn", "list", "--producer-id", str(2**62))

    told = await asyncio.to_thread(ottla, *only)
    listed = shown(await asyncio.to_thread(ottla, *only, "--json"))

    assert told.output == "No transactional id was found.\n"
    assert listed == []


@pytest.mark.usefixtures("unverified")
async def test_a_transaction_that_hangs_is_found_and_aborted(
    cluster: Cluster, topic: str, ottla: Command, admin: Admin
) -> None:
    partition = TopicPartition(topic, 0)
    start = await hang(cluster, topic)

    find = ("txn", "find-hanging", "--topic", topic, "--longer-than-ms", "0")
    found = await asyncio.to_thread(ottla, *find)
    assert found.exit_code == 1
    assert found.output.splitlines()[-1].split()[:2] == [topic, "0"]
    assert (await admin.offsets.find({partition: LATEST}, read_committed=True)) == {partition: start}

    aborted = await asyncio.to_thread(ottla, "txn", "abort", f"{topic}:0", "--start-offset", str(start))

    assert aborted.exit_code == 0, aborted.output
    assert aborted.output.endswith(f"in {topic}-0 from offset {start} on.\n")
    assert (await admin.offsets.find({partition: LATEST}, read_committed=True)) == {partition: start + 2}
    assert (await asyncio.to_thread(ottla, *find)).output == "No transaction hangs.\n"


async def test_the_page_about_transactions_shows_what_is_there(tmp_path: Path) -> None:
    # A broker of its own: the names on the page are plain ones, and no other transaction runs.
    with BrokerProcess(tmp_path / "broker") as broker:
        async with Producer(broker.bootstrap_servers, transactional_id="billing-1") as producer:
            await producer.begin_transaction()
            await producer.send_and_wait("orders", b"open", partition=0)
            servers = broker.bootstrap_servers
            await asyncio.to_thread(run_page, PAGE, servers, tmp_path, "needs openTransaction")
            await producer.commit_transaction()
