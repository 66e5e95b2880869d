"""Changes: planned, shown, confirmed by a typed name, and done on a real broker."""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx
import pytest

from ottla.admin import BROKER, GROUP, TOPIC, Admin
from ottla.admin.groups import PartitionProgress
from ottla.client.cluster import NoSuchTopic
from ottla.console.changes.groups import _read_again
from ottla.console.testing import do, preview, send
from ottla.consumer import ShareConsumer
from ottla.producer import Producer
from ottla.protocol.errors import GroupIdNotFound
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records import BatchBuilder
from ottla.protocol.topics import TopicPartition


async def test_a_topic_is_created_as_its_placement_was_drawn(
    console: httpx.AsyncClient, admin: Admin
) -> None:
    form = {"topic": "orders", "partitions": "3", "replicas": "1", "settings": "retention.ms=1234567\n"}
    shown = await preview(console, "create-topic", **form)
    done = await do(console, "create-topic", **form)

    assert "the first one of each leads" in shown
    assert "Topic orders is created with 3 partitions." in done.text
    assert len((await admin.topics.describe("orders")).partitions) == 3
    entries = {entry.name: entry.value for entry in await admin.configs.describe(TOPIC, "orders")}
    assert entries["retention.ms"] == "1234567"


async def test_a_topic_that_cannot_be_placed_says_why(console: httpx.AsyncClient) -> None:
    assert "there are only 1 brokers for 3 replicas" in await preview(
        console, "create-topic", topic="wide", partitions="1", replicas="3"
    )
    assert "must be a whole number from 1 on" in await preview(
        console, "create-topic", topic="x", partitions="0"
    )
    refused = await do(console, "create-topic", topic="bad/name", partitions="1", replicas="1")
    assert refused.status_code == 400
    assert "bad/name" in refused.text


async def test_what_cannot_be_taken_back_wants_the_name_typed(
    console: httpx.AsyncClient, admin: Admin, audit: Path
) -> None:
    await admin.topics.create("gone")

    refused = [await do(console, "delete-topic", typed, topic="gone") for typed in ("", "Gone", "orders")]
    assert {answer.status_code for answer in refused} == {400}
    await admin.topics.describe("gone")

    done = await do(console, "delete-topic", "gone", topic="gone")
    assert "Topic gone is deleted." in done.text
    with pytest.raises(NoSuchTopic):
        await admin.topics.describe("gone")


async def test_records_are_deleted_up_to_the_offset_of_the_preview(
    console: httpx.AsyncClient, admin: Admin, address: str
) -> None:
    await admin.topics.create("old")
    async with Producer(bootstrap_servers=address) as producer:
        for number in range(10):
            await producer.send("old", str(number).encode())

    shown = await preview(console, "delete-records", topic="old", partition="0", before="4")
    done = await do(console, "delete-records", "old", topic="old", partition="0", before="4")

    assert "old-0" in shown
    assert "deleted as shown" in done.text
    assert await admin.offsets.find({TopicPartition("old", 0): -2}) == {TopicPartition("old", 0): 4}


async def test_records_that_were_written_behind_the_preview_are_not_deleted(
    console: httpx.AsyncClient, admin: Admin, address: str
) -> None:
    await admin.topics.create("busy", partitions=2)
    async with Producer(bootstrap_servers=address) as producer:
        await producer.send_and_wait("busy", b"old", partition=0)
        form = {"topic": "busy", "partition": "all", "before": ""}
        shown = await preview(console, "delete-records", **form)
        await producer.send_and_wait("busy", b"new", partition=0)
    without = await send(console, "delete-records", shown.replace("shown", "other"), "busy", **form)
    done = await send(console, "delete-records", shown, "busy", **form)

    assert "look at the preview" in without.text
    assert "deleted as shown" in done.text
    assert await admin.offsets.find({TopicPartition("busy", 0): -2}) == {TopicPartition("busy", 0): 1}


async def test_a_group_goes_on_where_the_preview_said(
    console: httpx.AsyncClient, admin: Admin, address: str
) -> None:
    await admin.topics.create("flow")
    await admin.groups.commit("follower", {TopicPartition("flow", 0): 0})
    form = {"group": "follower", "topic": "all", "to": "the end", "at": ""}
    shown = await preview(console, "reset-group", **form)
    async with Producer(bootstrap_servers=address) as producer:
        await producer.send_and_wait("flow", b"new")
    await send(console, "reset-group", shown, "follower", **form)

    assert [commit.offset for commit in await admin.groups.offsets("follower")] == [0]


async def test_settings_and_partitions_of_a_topic_change(console: httpx.AsyncClient, admin: Admin) -> None:
    await admin.topics.create("grown")

    set_ = await do(console, "set-topic-setting", topic="grown", key="retention.ms", value="5000")
    unset = await do(console, "set-topic-setting", topic="grown", key="retention.ms", value="")
    added = await do(console, "add-partitions", "grown", topic="grown", total="4")

    assert "retention.ms of grown is 5000 now." in set_.text
    assert "retention.ms of grown is the default now." in unset.text
    assert "Topic grown has 4 partitions now." in added.text
    assert "is no key of a topic" in await preview(console, "set-topic-setting", topic="grown", key="no.such")


async def test_settings_are_copied_to_another_topic_as_shown(
    console: httpx.AsyncClient, admin: Admin
) -> None:
    own = {"retention.ms": "1234", "cleanup.policy": "compact"}
    await admin.topics.create("pattern", configs=own)
    await admin.topics.create("copied", configs={"retention.ms": "1", "segment.ms": "77000"})

    async def settings_of_copy() -> dict[str, str | None]:
        entries = await admin.configs.describe(TOPIC, "copied")
        return {entry.name: entry.value for entry in entries if entry.source == "topic"}

    asked = await preview(console, "copy-settings", topic="pattern")
    shown = await preview(console, "copy-settings", topic="pattern", other="copied", unset="1")
    await do(console, "copy-settings", topic="pattern", other="copied")
    kept = await settings_of_copy()
    await do(console, "copy-settings", topic="pattern", other="copied", unset="1")

    assert "name a topic: pattern has 2 settings of its own" in asked
    assert re.findall(r'mono">(.*?)</td>', shown) == [
        "cleanup.policy", "the default", "compact", "retention.ms", "1", "1234", "segment.ms", "77000",
        "the default",
    ]  # fmt: skip
    assert kept == {**own, "segment.ms": "77000"}
    assert await settings_of_copy() == own
    assert "copied has these settings already" in await preview(
        console, "copy-settings", topic="pattern", other="copied"
    )


async def test_a_record_is_produced_with_key_headers_and_every_letter(
    console: httpx.AsyncClient, admin: Admin
) -> None:
    await admin.topics.create("written")
    value = '{"text": "Zürich & <b> + %41"}'

    done = await do(
        console, "produce", topic="written", partition="0", key="k", value=value, headers="a=1\nb=="
    )
    tombstone = await do(console, "produce", topic="written", partition="by key", key="k", tombstone="1")
    shown = (await console.get("/c/local/topics/written/record?partition=0&offset=0&download=value")).content

    assert "The record is at offset 0 of written-0." in done.text
    assert "The record is at offset 1 of written-0." in tombstone.text
    assert shown == value.encode()
    assert "needs that key" in await preview(
        console, "produce", topic="written", partition="0", tombstone="1"
    )


async def test_a_group_is_reset_to_what_was_shown_and_deleted(
    console: httpx.AsyncClient, admin: Admin, address: str
) -> None:
    await admin.topics.create("read", partitions=2)
    async with Producer(bootstrap_servers=address) as producer:
        for number in range(10):
            await producer.send("read", b"x", partition=number % 2, timestamp_ms=1_767_225_600_000 + number)
    await admin.groups.commit("billing", {TopicPartition("read", 0): 1, TopicPartition("read", 1): 5})

    async def reset(to: str, at: str = "") -> list[int]:
        done = await do(console, "reset-group", "billing", group="billing", topic="all", to=to, at=at)
        assert done.status_code == 200, done.text
        return [commit.offset for commit in await admin.groups.offsets("billing")]

    assert await reset("the oldest record") == [0, 0]
    assert await reset("the end") == [5, 5]
    assert await reset("by so many records", "-2") == [3, 3]
    assert await reset("an offset", "900") == [5, 5]
    assert await reset("a time", "2026-01-01T00:00:00.004+00:00") == [2, 2]
    berlin = {"group": "billing", "to": "a time", "zone": "Europe/Berlin"}
    shown = await preview(console, "reset-group", **berlin, at="2026-01-01T01:00:00.006")
    assert "2026-01-01 00:00:00.006 UTC or later" in shown
    assert re.findall(r"read-\d</td><td class=\"mono\">2</td><td class=\"mono\">(\d)", shown) == ["3", "3"]
    assert "is no time" in await preview(console, "reset-group", group="billing", to="a time", at="soon")
    await do(console, "delete-group", "billing", group="billing")
    with pytest.raises(GroupIdNotFound):
        await admin.groups.describe("billing")


async def test_a_preview_counts_the_records_that_a_share_group_gets_again(
    console: httpx.AsyncClient, admin: Admin, address: str
) -> None:
    await admin.topics.create("queued")
    await admin.configs.alter(GROUP, "clerks", {"share.auto.offset.reset": "earliest"})
    async with Producer(bootstrap_servers=address) as producer:
        for _ in range(5):
            await producer.send_and_wait("queued", b"x")
    async with ShareConsumer("queued", bootstrap_servers=address, group_id="clerks") as consumer:
        got = 0
        async for record in consumer:
            async with record:
                got += 1
            if got == 5:
                break
        held = await preview(console, "reset-group", group="clerks", to="by so many records", at="-1")

    shown = await preview(console, "reset-group", group="clerks", to="by so many records", at="-1")
    whole = await preview(console, "reset-group", group="clerks", to="the oldest record")

    assert "the group has 1 member: stop it first" in held
    assert "Start now" in shown
    assert "It gets 1 record again that it has finished." in shown
    assert re.findall(r'<td class="mono">(\d+)</td>', shown)[-3:] == ["4", "0", "1"]
    assert "It gets 5 records again that it has finished." in whole


def test_skipped_records_of_a_share_group_hide_how_many_it_gets_again() -> None:
    partition = TopicPartition("queued", 0)

    def again(lag: int, to: int) -> str:
        return _read_again([PartitionProgress(partition, 10, 100, unacknowledged=lag)], {partition: to})

    assert again(0, 99) == " It gets 1 record again that it has finished."
    assert again(50, 0) == " It gets 50 records again that it has finished."
    assert again(90, 10) == again(90, 60) == again(0, 100) == ""
    assert again(50, 60) == " It may get records again that it has finished."


async def test_a_transaction_that_hangs_is_shown_and_aborted_behind_a_typed_name(
    console: httpx.AsyncClient, admin: Admin, address: str
) -> None:
    await admin.topics.create("held")
    await admin.configs.alter(BROKER, "", {"transaction.partition.verification.enable": "false"})
    async with Producer(bootstrap_servers=address) as producer:
        await hang(admin, "held")
        await producer.send_and_wait("held", b"behind")
        shown = (await console.get("/c/local/transactions")).text
        async with Producer(bootstrap_servers=address, transactional_id="slow") as slow:
            await slow.begin_transaction()
            written = await slow.send_and_wait("held", b"open")
            form = {"topic": "held", "partition": "0"}
            refused = await preview(console, "abort-transaction", **form, offset=str(written.offset))
            untyped = await do(console, "abort-transaction", **form, offset="0")
            done = await do(console, "abort-transaction", "held", **form, offset="0")
            again = await preview(console, "abort-transaction", **form, offset="0")
            held = (await console.get("/c/local/transactions")).text
            await slow.abort_transaction()

    row = re.search(r"held-0</a></th>(.*?)</tr>", shown, re.DOTALL)
    assert row is not None
    assert "nothing: it hangs" in row[1]
    assert re.findall(r'"number">(\d+)', row[1]) == ["0", "2", "2"]
    assert "of the transactional id slow, and does not hang" in refused
    assert untyped.status_code == 400
    assert "readers of held-0 go on" in done.text
    assert "is open in held-0 any more" in again
    assert "nothing: it hangs" not in held
    assert ">slow</td>" in held.split("Partitions whose readers")[-1]


async def hang(admin: Admin, topic: str) -> None:
    """Write a transactional batch of which no coordinator knows."""
    builder = BatchBuilder(1 << 20)
    builder.append(None, b"hangs", time.time_ns() // 1_000_000)
    batch = builder.build(producer_id=7_000_000, producer_epoch=0, base_sequence=0, transactional=True)
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(transactional_id="late", acks=-1, timeout_ms=10_000, topic_data=[data])
    leader, _ = await admin.cluster.leader(TopicPartition(topic, 0))
    answer = await admin.cluster.send(leader, request, ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code == 0
