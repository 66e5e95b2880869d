"""Searches, live tails and exports of a real broker: in order, counted, bounded, ended with their page."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import sys
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from html import unescape
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx
import psutil
import pytest

from ottla.admin import Admin
from ottla.broker.testing import free_port
from ottla.client.config import ClientConfig
from ottla.console.clusters.connections import ShownClusters
from ottla.console.logins.access import OWNER, Grant, Role, Viewer
from ottla.console.pages.records import READ_S
from ottla.console.pages.searches import may_cancel
from ottla.console.records.filters import Filter
from ottla.console.records.reading import ShownRecord
from ottla.console.records.search_process import Job, Limits
from ottla.console.records.searches import (
    MOST_OF_A_PERSON,
    Places,
    Searches,
    SearchFailed,
    TooManySearches,
    ended,
)
from ottla.console.records.wanted import Shown, Wanted, wanted_records
from ottla.console.settings import ClusterSettings
from ottla.console.testing import listening, serving
from ottla.console.web.streams import StreamedResponse
from ottla.producer import Producer
from ottla.producer.partitioner import partition_for_key

BEGIN_MS = 1_767_225_600_000
COUNT = 600


async def orders(address: str, admin: Admin) -> None:
    """Write records 0, 1, 2, … a second apart, number n with key k<n % 50> in its partition of three."""
    if "orders" in {topic.name for topic in await admin.topics.list()}:
        return
    await admin.topics.create("orders", partitions=3)
    async with Producer(bootstrap_servers=address) as producer:
        for number in range(COUNT):
            await producer.send(
                "orders", json.dumps({"n": number, "user": f"u{number % 7}"}).encode(),
                key=b"k%d" % (number % 50),
                headers=[("trace", b"t%d" % number)], timestamp_ms=BEGIN_MS + 1_000 * number,
            )  # fmt: skip


@pytest.fixture
async def console(address: str, admin: Admin) -> AsyncIterator[httpx.AsyncClient]:
    await orders(address, admin)
    async with serving(ClusterSettings("local", address, ClientConfig)) as client:
        yield client


@pytest.fixture
async def server(address: str, admin: Admin) -> AsyncIterator[httpx.AsyncClient]:
    await orders(address, admin)
    async with listening(ClusterSettings("local", address, ClientConfig)) as client:
        yield client


def path(kind: str = "/events", **query: str) -> str:
    return f"/c/local/topics/orders/records{kind}?{urlencode(query)}"


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for block in filter(None, text.split("\n\n")):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((fields["event"], json.loads(fields["data"])))
    return found


async def search(console: httpx.AsyncClient, **query: str) -> tuple[list[str], str]:
    """Return the rows of a search, as partition-offset, and its last state."""
    found = events((await console.get(path(**query))).text)
    assert found[-1] == ("done", {}), found[-1]
    html = "".join(data["html"] for kind, data in found if kind == "rows")
    rows = [part.split('"')[0] for part in html.split('<tr id="r')[1:]]
    return rows, [data["html"] for kind, data in found if kind == "state"][-1].replace("\u202f", "")


def numbers(html: str) -> list[int]:
    return [int(part.split(",")[0].split("\n")[0]) for part in html.split("&#34;n&#34;: ")[1:]]


def children() -> list[psutil.Process]:
    return list(filter(is_search, psutil.Process().children()))


def is_search(child: psutil.Process) -> bool:
    """Whether a process is that of a search; one that has ended, and is not waited for yet, is none."""
    try:
        return "search_process" in " ".join(child.cmdline())
    except psutil.NoSuchProcess:
        return False


async def until(is_true: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(600):
        if await is_true():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not become true")


async def none_left() -> bool:
    return not children()


async def test_the_newest_records_that_match_come_first_over_all_partitions(
    console: httpx.AsyncClient,
) -> None:
    text = (await console.get(path(find='"u3"', count="50"))).text
    html = "".join(data["html"] for kind, data in events(text) if kind == "rows")

    assert numbers(html) == [n for n in range(COUNT - 1, -1, -1) if n % 7 == 3][:50]
    assert "until=" in text


async def test_a_search_counts_all_and_says_how_far_it_is(console: httpx.AsyncClient) -> None:
    _, state = await search(console, where="value.user == 'u3'", count="50", all="1")

    assert f"{COUNT} of {COUNT} offsets" in state
    assert f"{len(range(3, COUNT, 7))} match, the first 50 are shown" in state


@pytest.mark.parametrize("start", ["newest", "beginning", "offset"])
async def test_a_search_that_goes_on_shows_each_record_once_even_of_one_millisecond(
    console: httpx.AsyncClient, admin: Admin, address: str, start: str
) -> None:
    if "crowded" not in {topic.name for topic in await admin.topics.list()}:
        await admin.topics.create("crowded", partitions=3)
        async with Producer(bootstrap_servers=address) as producer:
            for number in range(180):
                value, stamp_ms = b"x%d" % number, BEGIN_MS + number // 120
                await producer.send("crowded", value, partition=number % 3, timestamp_ms=stamp_ms)
    rows, link = list[str](), "?" + urlencode({"find": "x", "count": "50", "from": start})
    for _ in range(4):
        text = (await console.get(f"/c/local/topics/crowded/records{link}&plain=1")).text
        rows += [part.split('"')[0] for part in text.split('<tr id="r')[1:]]
        more = re.search(r'<a href="([^"]+)">Search on behind', text)
        link = "" if more is None else unescape(more[1])
        if not link:
            break

    assert len(rows) == len(set(rows)) == 180
    assert not link


def test_a_search_over_many_partitions_goes_on_by_a_link_that_browsers_take() -> None:
    wanted = Wanted(count=500, filter=Filter(text="x"))
    shown = Shown(wanted)
    shown.add(ShownRecord(index, 1_000_000_000, 2_000 - index, None, b"x") for index in range(500))
    on = wanted_records(dict(parse_qsl(shown.next_link()[1:])))

    assert (on.behind, on.until_ms) == (((499, 1_000_000_000),), 1_502)


async def test_a_filter_of_which_a_record_makes_no_sense_is_counted(console: httpx.AsyncClient) -> None:
    rows, state = await search(console, where="value.nothing > 1")

    assert rows == []
    assert f"Of {COUNT} the filter makes no sense" in state


async def test_only_the_partition_of_a_key_is_read(console: httpx.AsyncClient) -> None:
    key = next(f"k{n}" for n in range(50) if zlib.crc32(b"k%d" % n) % 3 != partition_for_key(b"k%d" % n, 3))
    rows, state = await search(console, key=key)
    everywhere, whole = await search(console, key=key, keyed="all")
    elsewhere, _ = await search(console, key=key, keyed="librdkafka")

    assert rows == everywhere
    assert {row.split("-")[0] for row in rows} == {str(partition_for_key(key.encode(), 3))}
    assert len(rows) == COUNT // 50
    assert f"of {COUNT} offsets" in whole
    assert f"of {COUNT} offsets" not in state
    assert elsewhere == []


async def test_a_search_keeps_within_times_and_offsets(console: httpx.AsyncClient) -> None:
    span = {"from": "time", "at": "2026-01-01T01:01:40+01:00", "until": "2026-01-01T00:01:43", "count": "50"}
    text = (await console.get(path(**span))).text
    html = "".join(data["html"] for kind, data in events(text) if kind == "rows")

    assert numbers(html) == [100, 101, 102]


async def test_the_page_of_a_search_is_a_link_that_works_without_a_script(console: httpx.AsyncClient) -> None:
    query = {"in": "header", "name": "trace", "how": "is", "find": "t123"}
    page = (await console.get(path("", **query))).text
    plain = (await console.get(path("", **query, plain="1"))).text

    assert 'data-events="/c/local/topics/orders/records/events?' in page
    assert "&amp;plain=1" in page
    assert 'value="t123"' in page
    assert "&#34;n&#34;: 123" in plain
    assert "1 match" in plain
    assert "data-events" not in plain


@pytest.mark.parametrize("query", [{"find": "(", "how": "matches"}, {"where": "x("}, {"partition": "9"}])
async def test_a_search_that_makes_no_sense_says_so(
    console: httpx.AsyncClient, query: dict[str, str]
) -> None:
    page, answer = await console.get(path("", **query)), await console.get(path(**query))

    assert 'role="alert"' in page.text
    assert events(answer.text)[-1][0] == "failed"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_no_search_begins_for_a_page_of_another_site(console: httpx.AsyncClient, site: str) -> None:
    headers = {"sec-fetch-site": site}
    answers = [await console.get(path(kind, find="u3"), headers=headers) for kind in ("/events", "/export")]
    page = (await console.get(path("", find="u3", plain="1"), headers=headers)).text
    own = (await console.get(path("", find="u3", plain="1"), headers={"sec-fetch-site": "none"})).text

    assert [answer.status_code for answer in answers] == [403, 403]
    assert "open the topic&#39;s records" in answers[1].text
    assert ('<tr id="r' in page, "Search without a script" in page) == (False, True)
    assert ('<tr id="r' in own, "Search without a script" in own) == (True, False)


async def test_a_search_without_a_script_ends_when_its_browser_goes_away(server: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(server.get(path("", find="u3", plain="1")))
        await until(some_run)
        (child,) = children()
        child.suspend()  # it would run for as long as a page may take
        left_s = monotonic()
        waiting.cancel()
        await until(none_left)

    assert monotonic() - left_s < READ_S - 10


async def some_run() -> bool:
    return bool(children())


def test_the_first_wish_of_each_person_comes_before_the_second_of_anybody() -> None:
    places = Places(2)
    eager = [places.enter("eager") for _ in range(4)]
    late, later = places.enter("late"), places.enter("later")

    assert [places.ahead(ticket) for ticket in (*eager, late, later)] == [0, 0, 3, 4, 1, 2]
    places.leave(eager[0])
    assert [places.ahead(ticket) for ticket in (*eager[1:], late, later)] == [0, 2, 3, 0, 1]
    places.leave(later)
    places.leave(late)
    assert [places.ahead(ticket) for ticket in eager[1:]] == [0, 0, 1]
    assert places.waiting == 1


async def test_a_person_has_a_bounded_number_of_searches_and_clusters_do_not_wait_for_each_other() -> None:
    searches = Searches(monotonic)
    anna, bob = (Viewer("anna", identity=identity) for identity in ("user:anna", "https://id.example.com#1"))
    search_job = Job("search", "127.0.0.1:1", ClientConfig(), "orders", (0,), Wanted())
    tail_job = replace(search_job, kind="tail")
    async with AsyncExitStack() as stack:
        for number in range(MOST_OF_A_PERSON):
            await stack.enter_async_context(searches.open(search_job, f"cluster-{number % 2}", anna))
        with pytest.raises(TooManySearches, match=f"you have {MOST_OF_A_PERSON} searches and exports open"):
            await stack.enter_async_context(searches.open(replace(search_job, kind="export"), "local", anna))
        await stack.enter_async_context(searches.open(tail_job, "cluster-0", anna))
        await stack.enter_async_context(searches.open(search_job, "cluster-0", bob))
        by_cluster = {searches.of_cluster(name)[0].places for name in ("cluster-0", "cluster-1")}
        assert len(by_cluster) == 2
    async with searches.open(search_job, "local", anna):
        pass


async def test_a_refusal_of_a_search_is_answered_in_one_line_with_its_status() -> None:
    async def parts(*, is_refused: bool = True) -> AsyncGenerator[bytes, None]:
        if is_refused:
            raise TooManySearches("you have 20 searches and exports open")
        yield b""

    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await StreamedResponse(parts(), "text/plain", None, (TooManySearches,))({"type": "http"}, receive, send)

    assert sent[0]["status"] == 429
    assert sent[1]["body"] == b"you have 20 searches and exports open\n"


async def test_found_records_are_exported_as_they_are(console: httpx.AsyncClient) -> None:
    query = {"from": "beginning", "where": "value.n < 5"}
    table = await console.get(path("/export", **query, format="csv"))
    lines = await console.get(path("/export", **query, format="jsonl"))

    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert sorted(json.loads(row["value"])["n"] for row in rows) == [0, 1, 2, 3, 4]
    assert sorted(json.loads(json.loads(line)["value"])["n"] for line in lines.text.splitlines()) == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert table.headers["content-disposition"] == 'attachment; filename="orders.csv"'
    assert (await console.get(path("/export", format="exe"))).status_code == 404
    assert len((await console.get(path("/export", most="7", format="jsonl"))).text.splitlines()) == 7


async def test_parquet_holds_the_bytes_of_records(console: httpx.AsyncClient) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    answer = await console.get(path("/export", key="k7", format="parquet"))

    table = parquet.read_table(io.BytesIO(answer.content))
    assert table.num_rows == COUNT // 50
    assert set(table.column("key").to_pylist()) == {b"k7"}
    assert table.column("headers")[0].as_py()[0]["name"] == "trace"


async def test_a_search_ends_with_its_page(server: httpx.AsyncClient) -> None:
    async with server.stream("GET", path(tail="1")) as answer:
        async for _ in answer.aiter_text():
            assert len(children()) == 1
            break

    await until(none_left)


async def test_a_tail_shows_new_records_and_goes_on_where_it_was(
    server: httpx.AsyncClient, address: str, admin: Admin
) -> None:
    await admin.topics.create("live", partitions=2)
    resumed = ""
    async with Producer(bootstrap_servers=address) as producer:
        for first in range(2):
            headers = {"last-event-id": resumed} if resumed else {}
            if resumed:
                await producer.send_and_wait("live", b"while nobody looked", partition=1)
            async with server.stream(
                "GET", "/c/local/topics/live/records/events?tail=1", headers=headers
            ) as answer:
                seen = ""
                async for part in answer.aiter_text():
                    if not seen and not first:
                        await producer.send_and_wait("live", b"<b>new</b>", partition=0)
                    seen += part
                    if "event: rows" in seen and seen.endswith("\n\n"):
                        break
            resumed = [line for line in seen.splitlines() if line.startswith("id: ")][-1].removeprefix("id: ")
            assert ("&lt;b&gt;new" in seen) is (first == 0)
            assert ("while nobody looked" in seen) is (first == 1)
    assert resumed == "0:1,1:1"


async def test_more_searches_than_places_wait_in_sight_and_can_be_cancelled(
    server: httpx.AsyncClient,
) -> None:
    async with asyncio.TaskGroup() as tasks:
        held = [tasks.create_task(hold(server)) for _ in range(9)]
        text = ""

        async def all_are_there() -> bool:
            nonlocal text
            text = (await server.get("/c/local/searches")).text
            return text.count("<td>tail</td>") == 9 and text.count("<td>runs</td>") == 6

        await until(all_are_there)
        assert text.count("waits for 1 other<") == 1
        token = text.split('name="token" value="')[1].split('"')[0]
        for link in [
            part.split('"')[0] for part in text.split('action="') if "/cancel" in part.split('"')[0]
        ]:
            assert (await server.post(link, data={"token": "no"})).status_code == 403
            assert (await server.post(link, data={"token": token})).status_code == 303
    assert [task.result() for task in held] == ["it was cancelled"] * 9
    await until(none_left)


async def hold(server: httpx.AsyncClient) -> str:
    """Follow a tail until it fails; return its reason."""
    answer = await server.get(path(tail="1"))
    kind, data = events(answer.text)[-1]
    assert kind == "failed"
    return str(data["reason"])


async def test_a_search_may_not_run_longer_than_its_bound(address: str, admin: Admin) -> None:
    await orders(address, admin)
    limits = Limits(wall_s=1)
    job = Job("tail", address, ClientConfig(), "orders", (0,), Wanted(is_tail=True), limits=limits)

    with pytest.raises(SearchFailed, match="it has run for 1 s"):
        async with Searches(monotonic).open(job, "local", OWNER) as search:
            async for _ in search.frames():
                pass


async def test_a_console_that_is_killed_leaves_no_search_behind(
    address: str, admin: Admin, tmp_path: Path
) -> None:
    await orders(address, admin)
    listen, history = f"127.0.0.1:{free_port()}", str(tmp_path / "history.sqlite")
    command = [sys.executable, "-m", "ottla.console", "-b", address, "--listen", listen, "--history", history]
    console = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert console.stdout is not None
    url = (await console.stdout.readline()).decode().split()[1]
    async with (
        httpx.AsyncClient(base_url=url, timeout=60) as client,
        client.stream("GET", path(tail="1")) as answer,
    ):
        async for _ in answer.aiter_text():
            break
        (search_process,) = psutil.Process(console.pid).children()
        console.kill()
        await console.wait()

    async def is_gone() -> bool:
        return not search_process.is_running() or search_process.status() == psutil.STATUS_ZOMBIE

    await until(is_gone)


async def test_a_process_that_is_killed_while_nobody_reads_it_ends_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    program = "import os\nwhile True: os.write(1, bytes(65536))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        limit=1_024,
    )  # fmt: skip
    assert process.stdout is not None
    await process.stdout.readexactly(1 << 20)
    await asyncio.sleep(0.1)  # by then the pipe is full, and no longer read
    process.kill()

    await ended(process)

    assert caplog.messages == []
    assert process.stdout.at_eof()


async def test_a_reader_that_takes_nothing_does_not_keep_a_stream() -> None:
    is_closed = asyncio.Event()

    async def parts() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"part"
        finally:
            is_closed.set()

    async def never(*_: object) -> Any:
        await asyncio.Event().wait()

    async with asyncio.timeout(60):
        await StreamedResponse(parts(), "text/plain", most_send_s=0.01)({}, never, never)

    assert is_closed.is_set()


async def test_a_person_of_a_provider_cancels_no_search_of_a_user_with_their_name() -> None:
    job = Job("search", "127.0.0.1:1", ClientConfig(), "t", (0,), Wanted())
    grants = (Grant(Role.VIEWER),)
    anna = Viewer("anna", grants, identity="user:anna")
    other = Viewer("anna", grants, identity="https://id.example.com#1")
    settings = ClusterSettings("local", "127.0.0.1:1", ClientConfig)

    async with (
        ShownClusters([settings], monotonic) as clusters,
        Searches(monotonic).open(job, "local", anna) as search,
    ):
        (cluster,) = clusters
        assert may_cancel(cluster.seen_by(anna, ()), search)
        assert not may_cancel(cluster.seen_by(other, ()), search)
