"""Pages of a schema registry and of records by its schemas; changes of it, planned first."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from time import thread_time
from urllib.parse import urlencode

import httpx
import pytest

from ottla.admin import Admin
from ottla.client.config import ClientConfig
from ottla.console.clusters.services import Service
from ottla.console.registry.differences import differences, schema_text
from ottla.console.settings import ClusterSettings
from ottla.console.testing import ORIGIN, serving
from ottla.producer import Producer
from peers.json_service import Answer, Asked, SmallRegistry, json_service

AWAY = "127.0.0.1:1"
"""Nothing listens there: pages of a registry need no broker."""
HTML = {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"}


def order(*fields: str) -> dict[str, str]:
    listed = [{"name": name, "type": "string"} for name in fields]
    return {"schema": json.dumps({"type": "record", "name": "Order", "fields": listed})}


@pytest.fixture
def small() -> SmallRegistry:
    registry = SmallRegistry()
    registry.register("orders-value", order("id"))
    registry.register("orders-value", order("id", "note"))
    registry.register("odd <b>/subject", {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"})
    return registry


@pytest.fixture
async def console(small: SmallRegistry, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        json_service(small) as service,
        serving(cluster(service.url), allows_changes=True, audit=tmp_path / "audit.jsonl") as client,
    ):
        yield client


def cluster(url: str, address: str = AWAY) -> ClusterSettings:
    return ClusterSettings("local", address, ClientConfig, Service("schema registry", (url,)))


async def test_subjects_are_listed_searched_and_opened(console: httpx.AsyncClient) -> None:
    listed = (await console.get("/c/local/registry")).text
    found = (await console.get("/c/local/registry?q=ODD")).text
    opened = await console.get("/c/local/registry/subject?" + urlencode({"name": "odd <b>/subject"}))
    by_id = (await console.get("/c/local/registry/schema?id=2")).text

    assert "compatibility BACKWARD" in listed
    assert "2 subjects" in listed
    assert "1 subject<" in found
    assert "odd &lt;b&gt;/subject" in found
    assert (opened.status_code, "PROTOBUF" in opened.text) == (200, True)
    assert "orders-value, version 2" in by_id


async def test_two_versions_are_compared_line_by_line(console: httpx.AsyncClient) -> None:
    shown = (await console.get("/c/local/registry/subject?name=orders-value&against=1")).text

    assert "From version 1 to 2" in shown
    assert re.search(r'<ins>\+ +"name": "note"', shown.replace("&#34;", '"'))
    assert "BACKWARD" in shown


async def test_a_schema_is_checked_before_a_change_and_nothing_is_changed(
    console: httpx.AsyncClient, small: SmallRegistry
) -> None:
    async def check(**form: str) -> str:
        known = {"subject": "orders-value", "kind": "AVRO", "token": await token_of(console)}
        content = urlencode({**known, **form})
        return (await console.post("/c/local/registry/check", content=content, headers=HTML)).text

    forged = await check(schema='"incompatible"', token="guessed")
    good = await check(schema=order("id", "note", "more")["schema"])
    bad = await check(schema='"incompatible"')
    no_json = await check(schema="{")

    assert "Not compatible" not in forged
    assert "Compatible: it may follow" in good
    assert "What would change" in good
    assert "Not compatible" in bad
    assert "a field is missing" in bad
    assert "the schema is no JSON" in no_json
    assert len(small.subjects["orders-value"]) == 2


async def token_of(console: httpx.AsyncClient) -> str:
    page = (await console.get("/c/local/change/set-compatibility?level=FULL")).text
    token = re.search(r'name="token" value="(\w+)"', page)
    assert token is not None
    return token[1]


async def preview(console: httpx.AsyncClient, change: str, **form: str) -> str:
    """Preview a change by posting its form, as a browser does where an address would be too long."""
    content = urlencode({**form, "preview": "1", "token": await token_of(console)})
    return (await console.post(f"/c/local/change/{change}", content=content, headers=HTML)).text


async def do(console: httpx.AsyncClient, change: str, typed: str = "", **form: str) -> str:
    """Send the form of a change, with the token that this browser has."""
    content = urlencode({**form, "typed": typed, "token": await token_of(console)})
    return (await console.post(f"/c/local/change/{change}", content=content, headers=HTML)).text


async def test_a_schema_is_registered_after_a_preview_that_asks_the_registry(
    console: httpx.AsyncClient, small: SmallRegistry, tmp_path: Path
) -> None:
    large = {"subject": "orders-value", "kind": "AVRO", "schema": order("id", "x" * 50_000)["schema"]}
    shown = await preview(console, "register-schema", **large)
    refused = await do(
        console, "register-schema", subject="orders-value", kind="AVRO", schema='"incompatible"'
    )
    done = await do(console, "register-schema", subject="new", kind="AVRO", schema='"int"')
    versions = dict(small.subjects)

    assert "It follows version 2 of orders-value" in shown
    assert "not compatible with those of orders-value: a field is missing" in refused
    assert "The schema has the id 4 in new." in done
    assert len(versions["orders-value"]) == 2
    assert '"change": "register-schema"' in (tmp_path / "audit.jsonl").read_text()


async def test_levels_are_set_and_subjects_deleted_after_their_name_is_typed(
    console: httpx.AsyncClient, small: SmallRegistry
) -> None:
    level = await do(console, "set-compatibility", subject="orders-value", level="FULL")
    none = await do(console, "set-compatibility", subject="", level="NONE")
    kept = await do(console, "delete-subject", subject="orders-value")
    gone = await do(console, "delete-subject", "orders-value", subject="orders-value")

    assert "The compatibility level of subject orders-value is FULL." in level
    assert "type all to confirm" in none
    assert small.levels == {"": "BACKWARD", "orders-value": "FULL"}
    assert "type orders-value to confirm" in kept
    assert "Deleted subject orders-value." in gone
    assert "orders-value" not in small.subjects


async def test_a_registry_that_does_not_answer_is_named_and_other_clusters_have_none() -> None:
    async with json_service(lambda _: Answer(raw=b"nonsense\r\n\r\n")) as service:
        bare = ClusterSettings("bare", AWAY, ClientConfig)
        async with serving(cluster(service.url), bare) as console:
            listed = await console.get("/c/local/registry")
            none = await console.get("/c/bare/registry")
            subject = await console.get("/c/local/registry/subject?name=x")

    assert listed.status_code == 200
    assert f"the schema registry at {service.url} gave no answer" in listed.text
    assert (none.status_code, "set schema_registry_url in its profile" in none.text) == (404, True)
    assert "gave no answer" in subject.text


async def test_tens_of_thousands_of_subjects_are_paged_and_their_rows_asked_for_alone() -> None:
    def many(asked: Asked) -> Answer:
        if asked.path == "/subjects":
            return Answer([f"topic-{number:05}-value" for number in range(30_000)])
        if "/versions/latest" in asked.path:
            return Answer({"schema": '"int"', "version": 3, "id": 7})
        return Answer({"compatibilityLevel": "FULL"})

    async with json_service(many) as service, serving(cluster(service.url)) as console:
        last = (await console.get("/c/local/registry?page=600")).text

    assert "Page 600 of 600" in last
    assert "topic-29999-value" in last
    rows = {asked.path for asked in service.asked if "latest" in asked.path}
    assert rows <= {f"/subjects/topic-{number}-value/versions/latest" for number in range(29_950, 30_000)}
    assert rows


async def test_records_are_shown_by_their_schemas_and_say_where_these_are(
    address: str, admin: Admin, small: SmallRegistry
) -> None:
    await admin.topics.create("orders")
    async with Producer(bootstrap_servers=address) as producer:
        await producer.send("orders", bytes([0, 0, 0, 0, 1]) + b"\x06abc")
        await producer.send_and_wait("orders", bytes([0, 0, 0, 0, 99]) + b"\x06abc")

    async with json_service(small) as service, serving(cluster(service.url, address)) as console:
        listed = (await console.get("/c/local/topics/orders/records")).text
        opened = (await console.get("/c/local/topics/orders/record?partition=0&offset=0")).text
        lacking = (await console.get("/c/local/topics/orders/record?partition=0&offset=1")).text

    assert "&#34;id&#34;: &#34;abc&#34;" in listed
    assert "avro" in opened
    assert "/registry/schema?id=1" in opened
    assert "schema 99: the schema registry" in lacking
    assert "00000000  00 00 00 00 63" in lacking


def test_differences_leave_out_that_which_both_have_and_are_bounded() -> None:
    before, after = "\n".join(map(str, range(30))), "\n".join(map(str, [*range(29), "new"]))

    lines = differences(before, after)

    assert lines is not None
    assert [(line.kind, line.text) for line in lines] == [
        ("left out", "26 lines that both have"), ("same", "26"), ("same", "27"), ("same", "28"),
        ("removed", "29"), ("added", "new"),
    ]  # fmt: skip
    assert differences("x\n" * 3_000, "x") is None
    assert schema_text("AVRO", '{"a":1}') == '{\n  "a": 1\n}'


async def test_a_search_reads_values_by_the_schemas_of_the_registry(
    small: SmallRegistry, admin: Admin, address: str
) -> None:
    await admin.topics.create("searched-orders")
    async with Producer(bootstrap_servers=address) as producer:
        for number in range(5):
            await producer.send_and_wait("searched-orders", b"\0\0\0\0\1\4o%d" % number, partition=0)
        await producer.send_and_wait("searched-orders", b"\0\0\0\x0f\xff?", partition=0)
    path = "/c/local/topics/searched-orders/records"
    query = urlencode({"where": 'value.id == "o3"'})
    async with json_service(small) as service, serving(cluster(service.url, address)) as console:
        page = (await console.get(f"{path}?{query}&plain=1")).text
        events = (await console.get(f"{path}/events?{query}&in=path&name=$.id&how=is&find=o3")).text
        lines = (await console.get(f"{path}/export?{query}&format=jsonl")).text

    assert 'id="r0-3"' in page
    assert page.count('<tr id="r') == 1
    assert "&#34;id&#34;: &#34;o3&#34;" in page
    assert "Of 1 the filter makes no sense" in page
    assert "r0-3" in events
    assert [json.loads(line)["offset"] for line in lines.splitlines()] == [3]


async def test_pages_go_on_while_a_large_schema_is_set_out(
    console: httpx.AsyncClient, small: SmallRegistry
) -> None:
    names = (f"field{number}" for number in range(40_000))
    large = order(*names)["schema"]
    token = await token_of(console)
    before_s = thread_time()
    schema_text("AVRO", large)
    alone_s, longest_s = thread_time() - before_s, 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            begun_s = thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, thread_time() - begun_s)

    form = {"subject": "orders-value", "kind": "AVRO", "schema": large, "preview": "1", "token": token}
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch())
        await console.post("/c/local/change/register-schema", content=urlencode(form), headers=HTML)
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it sees the last step, too
        watching.cancel()

    assert longest_s < 0.8 * alone_s
