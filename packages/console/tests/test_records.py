"""Records of a real broker: the newest of all partitions, from an offset, from a time; transactions."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import httpx
import pytest

from ottla.admin import Acl, Admin, Operation, PatternType, PermissionType, ResourceType
from ottla.broker.testing import BrokerProcess
from ottla.client.cluster import NoSuchTopic
from ottla.client.config import ClientConfig
from ottla.console.records.reading import (
    ShownRecord,
    Window,
    from_offsets,
    from_time,
    newest,
    newest_of,
    read_window,
    unfinished,
)
from ottla.console.records.wanted import Wanted, wanted_records
from ottla.console.settings import ClusterSettings
from ottla.console.testing import serving
from ottla.console.web.fields import Unclear
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition

BEGIN_MS = 1_767_225_600_000


async def numbers(address: str, admin: Admin, topic: str, count: int, partitions: int = 3) -> None:
    """Write records 0, 1, 2, … a second apart, record n to partition n % partitions."""
    try:
        await admin.topics.describe(topic)
        return
    except NoSuchTopic:
        await admin.topics.create(topic, partitions=partitions)
    async with Producer(bootstrap_servers=address) as producer:
        for number in range(count):
            await producer.send(
                topic, str(number).encode(), partition=number % partitions,
                timestamp_ms=BEGIN_MS + 1_000 * number,
            )  # fmt: skip


def values(records: list[ShownRecord]) -> list[int]:
    return [int(record.value or b"") for record in records]


async def test_the_newest_records_of_all_partitions_come_first(address: str, admin: Admin) -> None:
    await numbers(address, admin, "numbers", 300)

    assert values(await newest(admin, "numbers", [0, 1, 2], 50)) == list(range(299, 249, -1))
    assert values(await newest(admin, "numbers", [1], 5)) == [298, 295, 292, 289, 286]
    assert len(await newest(admin, "numbers", [0, 1, 2], 500)) == 300


async def test_one_busy_partition_is_read_as_deep_as_it_must(address: str, admin: Admin) -> None:
    await admin.topics.create("uneven", partitions=20)
    async with Producer(bootstrap_servers=address) as producer:
        for number in range(120):
            await producer.send("uneven", str(number).encode(), partition=7, timestamp_ms=BEGIN_MS + number)

    assert values(await newest(admin, "uneven", list(range(20)), 50)) == list(range(119, 69, -1))


async def test_records_are_read_from_an_offset_and_from_a_time_on(address: str, admin: Admin) -> None:
    await numbers(address, admin, "numbers", 300)

    assert values(await from_offsets(admin, "numbers", {2: 90}, 3)) == [272, 275, 278]
    assert values(await from_time(admin, "numbers", [0, 1, 2], BEGIN_MS + 100_500, 4)) == [101, 102, 103, 104]
    assert await from_offsets(admin, "numbers", {0: 100}, 5) == []


async def test_a_window_says_where_reading_goes_on(address: str, admin: Admin) -> None:
    await numbers(address, admin, "numbers", 300)

    window = await read_window(admin.cluster, TopicPartition("numbers", 0), 10, 100, 7)

    assert (window.start, window.end, len(window.records)) == (10, 17, 7)


async def test_markers_and_the_records_of_aborted_and_open_transactions_are_named(
    address: str, admin: Admin
) -> None:
    await admin.topics.create("payments")
    async with Producer(bootstrap_servers=address, transactional_id="console") as producer:
        async with producer.transaction():
            await producer.send("payments", b"kept")
        with pytest.raises(RuntimeError):
            async with producer.transaction():
                await producer.send_and_wait("payments", b"undone")
                raise RuntimeError
        async with producer.transaction():
            await producer.send_and_wait("payments", b"to come")
            found = await from_offsets(admin, "payments", {0: 0}, 100)

    shown = [(b"" if record.fate.endswith("marker") else record.value, record.fate) for record in found]
    assert shown == [
        (b"kept", "record"),
        (b"", "commit marker"),
        (b"undone", "aborted"),
        (b"", "abort marker"),
        (b"to come", "open"),
    ]


def window(partition: int, start: int, *stamps: int) -> Window:
    records = [ShownRecord(partition, start + index, stamp, None, None) for index, stamp in enumerate(stamps)]
    return Window(start, start + len(stamps), tuple(records))


def test_a_partition_whose_records_are_all_among_the_newest_is_read_deeper() -> None:
    windows = {0: window(0, 10, 100, 101), 1: window(1, 5, 1, 2), 2: window(2, 0, 50)}

    assert unfinished(windows, {0: 0, 1: 0, 2: 0}, 2) == []
    assert unfinished(windows, {0: 0, 1: 0, 2: 0}, 3) == [0]
    assert unfinished(windows, {0: 0, 1: 0, 2: 0}, 10) == [0, 1]
    assert [record.timestamp_ms for record in newest_of(windows.values(), 3)] == [101, 100, 50]


def test_an_address_says_where_to_begin() -> None:
    assert wanted_records({}) == Wanted()
    assert wanted_records({"from": "offset", "partition": "3", "offset": "17"}).offset == 17
    assert wanted_records({"from": "time", "at": "2026-01-01T01:00+01:00"}).time_ms == BEGIN_MS
    assert wanted_records({"from": "time", "at": "2026-01-01"}).time_ms == BEGIN_MS
    assert wanted_records({"from": "time", "at": str(BEGIN_MS)}).time_ms == BEGIN_MS
    assert wanted_records({"form": "exec", "count": "10000000"}) == Wanted()


@pytest.mark.parametrize(
    "query",
    [{"from": "nowhere"}, {"from": "offset", "offset": "-1"}, {"partition": "x"},
     {"from": "time", "at": "soon"}, {"from": "offset", "offset": "9" * 40}, {"from": "time"}],
)  # fmt: skip
def test_an_address_that_makes_no_sense_says_what_to_change(query: dict[str, str]) -> None:
    with pytest.raises(Unclear):
        wanted_records(query)


@pytest.fixture
async def console(address: str, admin: Admin) -> AsyncIterator[httpx.AsyncClient]:
    await numbers(address, admin, "numbers", 300)
    async with serving(ClusterSettings("local", address, ClientConfig)) as client:
        yield client


async def test_the_page_of_records_is_a_link_to_what_it_shows(console: httpx.AsyncClient) -> None:
    answer = await console.get("/c/local/topics/numbers/records?from=offset&partition=0&offset=10")

    assert answer.status_code == 200
    assert "<pre>30</pre>" in answer.text
    assert "from=offset&amp;partition=0&amp;offset=60" in answer.text


async def test_a_page_of_records_that_cannot_be_read_says_why(console: httpx.AsyncClient) -> None:
    answer = await console.get("/c/local/topics/numbers/records?from=offset&partition=77")

    assert "topic numbers has no partition 77, only 0 to 2" in answer.text
    assert (await console.get("/c/local/topics/none/records")).status_code == 404


async def test_a_record_that_holds_a_page_is_shown_and_never_run(
    console: httpx.AsyncClient, address: str, admin: Admin
) -> None:
    await admin.topics.create("pages")
    async with Producer(bootstrap_servers=address) as producer:
        await producer.send(
            "pages",
            b"<script>alert(1)</script>",
            key=b"<b>",
            headers=[("<i>", b"</pre><img src=x onerror=y>")],
        )

    listed = await console.get("/c/local/topics/pages/records")
    one = await console.get("/c/local/topics/pages/record?partition=0&offset=0")
    value = await console.get("/c/local/topics/pages/record?partition=0&offset=0&download=value")

    for answer in (listed, one):
        assert "<script>alert" not in answer.text
        assert "<b>&" not in answer.text
        assert "<img src=x" not in answer.text
        assert "&lt;script&gt;" in answer.text
    assert value.content == b"<script>alert(1)</script>"
    assert value.headers["content-disposition"].startswith("attachment")
    assert value.headers["content-type"] == "application/octet-stream"


async def test_a_topic_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    settings = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    describe = Acl(
        ResourceType.TOPIC, "closed", PatternType.LITERAL, "User:ANONYMOUS", "*", Operation.DESCRIBE,
        PermissionType.ALLOW,
    )  # fmt: skip
    with BrokerProcess(tmp_path, settings) as broker:
        address = f"127.0.0.1:{broker.port}"
        async with Admin(address) as admin, Producer(bootstrap_servers=address) as producer:
            await admin.topics.create("closed", partitions=2)
            await producer.send_and_wait("closed", b"x", partition=0)
            await producer.send_and_wait("closed", b"x", partition=1)
            await admin.acls.create([describe])
        async with serving(ClusterSettings("local", address, ClientConfig)) as client:
            answer = await client.get("/c/local/topics/closed/records")

    assert answer.status_code == 200
    assert "not permitted to READ TOPIC" in answer.text


async def test_a_record_is_sent_again_byte_for_byte(address: str, admin: Admin) -> None:
    await admin.topics.create("copies")
    async with Producer(bootstrap_servers=address) as producer:
        await producer.send(
            "copies", b'{"a":1}', key=b'{"id":7}', headers=[("trace", b"x=1")], partition=0
        )  # fmt: skip
        await producer.send_and_wait("copies", b"bell\x07", key=b"k", partition=0)
    async with serving(ClusterSettings("local", address, ClientConfig), allows_changes=True) as client:
        first, second = [
            (await client.get(f"/c/local/topics/copies/record?partition=0&offset={offset}")).text
            for offset in range(2)
        ]

    assert '<form method="post" action="/c/local/change/produce">' in first
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', first)
    fields = {name: unescape(text) for name, text in hidden}
    assert {name: fields[name] for name in ("preview", "topic", "key", "value", "headers")} == {
        "preview": "1", "topic": "copies", "key": '{"id":7}', "value": '{"a":1}', "headers": "trace=x=1",
    }  # fmt: skip
    assert "Edit it and send it again" not in second
    assert "Send a tombstone" in second


async def test_a_long_value_is_shown_in_part_with_a_link_to_all_of_it(
    console: httpx.AsyncClient, address: str, admin: Admin
) -> None:
    await admin.topics.create("long")
    async with Producer(bootstrap_servers=address, max_request_size=4 << 20) as producer:
        await producer.send("long", b"x" * 900_000)

    listed = await console.get("/c/local/topics/long/records")
    one = await console.get("/c/local/topics/long/record?partition=0&offset=0")

    assert len(listed.text) < 20_000
    assert "Show all of 879\u00a0KiB" in listed.text
    assert len(one.text) > 900_000
    assert (await console.get("/c/local/topics/long/record?partition=0&offset=1")).status_code == 404


async def test_a_window_unfolds_no_more_batches_than_it_shows(address: str, admin: Admin) -> None:
    await admin.topics.create("folded")
    async with Producer(bootstrap_servers=address, compression_type="gzip", linger_ms=0) as producer:
        for number in range(6):
            await producer.send_and_wait("folded", b"%d" % number)

    first = await read_window(admin.cluster, TopicPartition("folded", 0), 0, 6, 2)
    second = await read_window(admin.cluster, TopicPartition("folded", 0), first.end, 6, 9)

    assert (values(list(first.records)), first.end) == ([0, 1], 2)
    assert (values(list(second.records)), second.end) == ([2, 3, 4, 5], 6)


async def test_a_header_whose_name_is_no_text_leaves_the_page_of_its_record_whole(
    admin: Admin, address: str
) -> None:
    await admin.topics.create("odd-header")
    name = b"x-\xff".decode(errors="surrogateescape")
    async with Producer(bootstrap_servers=address) as producer:
        await producer.send_and_wait("odd-header", b"value", partition=0, headers=[(name, b"1")])

    async with serving(ClusterSettings("local", address, ClientConfig), allows_changes=True) as console:
        page = await console.get("/c/local/topics/odd-header/record?partition=0&offset=0")

    assert page.status_code == 200
    assert "value" in page.text
    assert "Edit it and send it again" not in page.text


@pytest.mark.parametrize(
    "path", ["record?partition=99999999999&offset=0", "record?partition=7&offset=0", "compare?a=0-0&b=7-0"]
)
async def test_a_record_of_a_partition_that_does_not_exist_is_not_waited_for(
    console: httpx.AsyncClient, path: str
) -> None:
    answer = await console.get(f"/c/local/topics/numbers/{path}")

    assert answer.status_code == 404
    assert "has no partition" in answer.text
