"""Changes: planned, shown, confirmed by a typed name, done on a real broker, and written to the audit log.

The module has over 500 lines because all changes are tried on the brokers of one console.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest

from ottla.admin import BROKER, GROUP, TOPIC, Admin
from ottla.admin.groups import PartitionProgress
from ottla.client.cluster import NoSuchTopic
from ottla.client.config import ClientConfig
from ottla.console.app import routes
from ottla.console.changes.groups import _read_again
from ottla.console.changes.plans import Change, ServiceChange
from ottla.console.changes.topics import produce
from ottla.console.logins.access import Need, Role
from ottla.console.logins.gate import Page
from ottla.console.pages.changes import CHANGES
from ottla.console.settings import ClusterSettings
from ottla.console.testing import ORIGIN, serving
from ottla.console.web.fields import Unclear, settings, signed, time_ms, time_zone, whole
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


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "state" / "audit.jsonl"


@pytest.fixture
async def console(address: str, audit: Path) -> AsyncIterator[httpx.AsyncClient]:
    cluster = ClusterSettings("local", address, ClientConfig)
    async with serving(cluster, allows_changes=True, audit=audit) as client:
        yield client


async def preview(console: httpx.AsyncClient, change: str, **form: str) -> str:
    answer = await console.get(f"/c/local/change/{change}?{urlencode(form)}")
    return answer.text


async def do(console: httpx.AsyncClient, change: str, typed: str = "", **form: str) -> httpx.Response:
    """Open the form of a change as a browser does, and send it."""
    text = await preview(console, change, **form)
    return await send(console, change, text, typed, **form)


async def send(
    console: httpx.AsyncClient, change: str, shown: str, typed: str = "", **form: str
) -> httpx.Response:
    """Send the form of a preview, with the hidden fields that it has beside those of the user."""
    hidden = dict(re.findall(r'name="(token|shown)" value="([^"]*)"', shown))
    hidden = {name: html.unescape(value) for name, value in hidden.items()}
    return await console.post(
        f"/c/local/change/{change}", content=urlencode({**form, "typed": typed, **hidden}),
        headers={"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"},
    )  # fmt: skip


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


async def test_each_change_stands_in_the_audit_log_without_the_data_of_records(
    console: httpx.AsyncClient, admin: Admin, audit: Path
) -> None:
    await admin.topics.create("audited")
    await do(console, "produce", topic="audited", partition="0", key="secret key", value="secret value")
    await do(console, "create-topic", topic="audited", partitions="1", replicas="1")

    text, mode = await asyncio.to_thread(lambda: (audit.read_text(), audit.stat().st_mode))
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["change"], line["outcome"].split(":")[0]) for line in lines] == [
        ("produce", "begins"),
        ("produce", "The record is at offset 0 of audited-0."),
        ("create-topic", "begins"),
        ("create-topic", "failed"),
    ]
    assert "secret" not in text
    assert stat.S_IMODE(mode) == 0o600


SECRET = "s3cret"
FORMS: dict[str, dict[str, str]] = {
    "create-topic": {"topic": "t", "partitions": "0", "replicas": "1", "settings": "retention.ms=7"},
    "add-partitions": {"topic": "t", "total": "2"},
    "set-topic-setting": {"topic": "t", "key": "retention.ms", "value": "7"},
    "copy-settings": {"topic": "t", "other": "u"},
    "delete-records": {"topic": "t", "partition": "0", "before": "1"},
    "delete-topic": {"topic": "t"},
    "produce": {"topic": "t", "partition": "0", "key": SECRET, "value": SECRET, "headers": f"a={SECRET}"},
    "reset-group": {"group": "g", "topic": "t", "to": "the end"},
    "delete-group": {"group": "g"},
    "reassign": {"lines": "t:0=1"},
    "cancel-reassignment": {"partition": "t:0"},
    "elect-preferred": {"topic": "t"},
    "abort-transaction": {"topic": "t", "partition": "0", "offset": "0"},
    "set-broker-setting": {"broker": "all brokers", "key": "broker.id", "value": "7"},
    "register-schema": {"subject": "s", "kind": "AVRO", "schema": '"string"'},
    "set-compatibility": {"subject": "s", "level": "NONE"},
    "delete-subject": {"subject": "s", "version": "1"},
    "create-connector": {"connect": "connect", "name": "c", "config": f"password={SECRET}"},
    "set-connector-setting": {"connect": "connect", "name": "c", "key": "password", "value": SECRET},
    "pause-connector": {"connect": "connect", "name": "c"},
    "resume-connector": {"connect": "connect", "name": "c"},
    "stop-connector": {"connect": "connect", "name": "c"},
    "restart-connector": {"connect": "connect", "name": "c", "parts": "the connector"},
    "restart-task": {"connect": "connect", "name": "c", "task": "0"},
    "delete-connector": {"connect": "connect", "name": "c"},
}


async def test_the_audit_log_has_the_arguments_and_the_outcome_of_every_change_and_no_secrets(
    console: httpx.AsyncClient, admin: Admin, audit: Path
) -> None:
    assert FORMS.keys() == CHANGES.keys()
    for topic in ("t", "u"):
        await admin.topics.create(topic)
    shown = await preview(console, "create-topic", topic="t", partitions="1", replicas="1")
    for change, form in FORMS.items():
        await send(console, change, shown, **form)
    forged = {"topic": "t", "token": "x", "n" * 5_000: "v" * 5_000}
    await console.post("/c/local/change/delete-topic", content=urlencode(forged), headers={"origin": ORIGIN})

    text = await asyncio.to_thread(audit.read_text)
    *lines, refused = map(json.loads, text.splitlines())
    outcomes = {line["change"]: line for line in lines}
    assert [line["change"] for line in lines if line["outcome"] != "begins"] == list(FORMS)
    for change, form in FORMS.items():
        line = outcomes[change]
        assert (line["cluster"], line["client"], line["user"]) == ("local", "127.0.0.1", "")
        assert {name: line["form"][name] for name, value in form.items() if SECRET not in value} == {
            name: value for name, value in form.items() if SECRET not in value
        }, change
        assert line["outcome"] not in ("", "begins"), line
        assert "form" not in line["outcome"], line
    assert SECRET not in text
    assert refused["outcome"].startswith("refused: the form is not one of this console's")
    assert len(text.splitlines()[-1]) < 1_000


async def test_a_form_of_another_site_or_another_browser_changes_nothing(
    console: httpx.AsyncClient, admin: Admin
) -> None:
    await admin.topics.create("kept")
    text = await preview(console, "delete-topic", topic="kept")
    token = re.search(r'name="token" value="(\w+)"', text)
    assert token is not None
    form = urlencode({"topic": "kept", "typed": "kept", "token": token[1]})

    foreign = await console.post(
        "/c/local/change/delete-topic", content=form, headers={"origin": "http://evil"}
    )
    no_token = await console.post("/c/local/change/delete-topic", content=form.replace(token[1], "0" * 64))
    console.cookies.clear()
    other = await console.post("/c/local/change/delete-topic", content=form)
    large = await console.post("/c/local/change/delete-topic", content=b"x" * (5 << 20))

    assert [answer.status_code for answer in (foreign, no_token, other, large)] == [403, 403, 403, 413]
    await admin.topics.describe("kept")


async def test_a_console_that_only_reads_has_no_changes(address: str) -> None:
    async with serving(ClusterSettings("local", address, ClientConfig)) as console:
        shown = await console.get("/c/local/change/create-topic")
        posted = await console.post("/c/local/change/create-topic", content="topic=x")
        topics = await console.get("/c/local/topics")

    assert (shown.status_code, posted.status_code) == (403, 403)
    assert "--allow-changes" in shown.text
    assert "Create a topic" not in topics.text


def test_what_users_type_is_read_or_refused_with_the_way_out() -> None:
    assert (whole(" 7 ", "n"), signed("-3", "n"), time_ms("1970-01-01T01:00+01:00")) == (7, -3, 0)
    assert time_ms("1970-01-01T01:00", time_zone("Europe/Berlin")) == 0
    assert time_ms("1970-01-01T01:00+01:00", time_zone("Asia/Tokyo")) == 0
    assert settings("a=1\n\n b = c=d \n") == {"a": "1", "b": "c=d"}
    for text in ("-1", "9" * 30, "1.0", ""):
        with pytest.raises(Unclear, match="n must be a whole number"):
            whole(text, "n")
    with pytest.raises(Unclear, match="n must be a whole number"):
        signed("--1", "n")
    with pytest.raises(Unclear, match="KEY=VALUE"):
        settings("novalue")


async def test_data_of_records_are_previewed_without_standing_in_an_address(
    console: httpx.AsyncClient, admin: Admin, audit: Path
) -> None:
    await admin.topics.create("private")
    opened = await preview(console, "produce", topic="private")
    form = {"preview": "1", "topic": "private", "partition": "0", "value": "secret<1>"}
    forged = await console.post("/c/local/change/produce", content=urlencode(form))
    shown = await send(console, "produce", opened, **form)
    sent = await send(console, "produce", shown.text, topic="private", partition="0", value="secret<1>")

    assert '<form class="search change" method="post" action="/c/local/change/produce">' in opened
    assert (forged.status_code, "secret" in forged.text) == (403, False)
    assert "Topic private gets a record with 9 bytes." in shown.text
    assert "secret&lt;1&gt;" in shown.text
    assert "The record is at offset 0 of private-0." in sent.text


def test_every_change_declares_the_right_that_it_needs() -> None:
    assert all(isinstance(change, Change | ServiceChange) for change in CHANGES.values())
    assert CHANGES["delete-topic"].need("prod", {"topic": "a "}) == Need(Role.ADMINISTRATOR, "prod", "a")
    assert CHANGES["reset-group"].need("prod", {"group": "g", "": "x"}) == Need(
        Role.OPERATOR, "prod", group="g"
    )
    assert Change(produce, Role.OPERATOR).need("prod", {"": "x"}).is_whole
    assert CHANGES["register-schema"].need("prod", {"subject": "x"}).is_whole


def test_every_route_declares_the_right_that_it_needs() -> None:
    found = routes()

    assert [route.path for route in found if not isinstance(route, Page)] == ["/static"]
    pages = {route.path: route for route in found if isinstance(route, Page)}
    open_to_all = [
        path
        for path, page in pages.items()
        if page.needs({"cluster": "c", "topic": "t", "change": "x"}, {}) is None
    ]
    assert open_to_all == ["/health", "/login", "/login/oidc", "/login/oidc/callback", "/logout"]
    for path, page in pages.items():
        need = page.needs({"cluster": "c", "topic": "t", "change": "x"}, {"name": "g"})
        if need is not None:
            assert need.cluster == ("c" if "{cluster}" in path else None), path
            assert need.topic == ("t" if "{topic}" in path else None), path


@pytest.mark.parametrize("at", ["2026-10-25T02:30", "2026-03-29T02:30"])
def test_a_time_that_the_clocks_make_twice_or_leave_out_wants_its_offset(at: str) -> None:
    berlin = time_zone("Europe/Berlin")

    with pytest.raises(Unclear, match=r"\+02:00.*write one of these|\+01:00.*write one of these"):
        time_ms(at, berlin)
    assert time_ms(f"{at}+01:00", berlin) == time_ms(f"{at}+01:00")
    with pytest.raises(Unclear, match="is no time zone"):
        time_zone("Middle/Earth")


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
