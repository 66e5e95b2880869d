"""Streams apps and pipelines on their pages; dead letters with their cause, edited and sent again."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest

from ottla.admin import Admin
from ottla.client.config import ClientConfig
from ottla.console.clusters.applications import (
    MOST_BYTES,
    PartitionLine,
    Pipeline,
    Place,
    Processor,
    Shown,
    StreamsApp,
    parse_place,
    pipeline,
    read_documents,
    streams_app,
)
from ottla.console.clusters.connections import Connection, ShownCluster
from ottla.console.clusters.samples import Sample
from ottla.console.logins.access import OWNER, Grant, Role, Viewer
from ottla.console.pages.streams import seen_place, without_values
from ottla.console.records.dead_letters import dead_letter, likely_topics
from ottla.console.records.masking import HIDDEN_CAUSE, MaskRule
from ottla.console.records.reading import ShownRecord, newest
from ottla.console.registry.processes import DecodingProcess
from ottla.console.settings import ClusterSettings
from ottla.console.testing import ORIGIN, serving
from ottla.pipeline.jobs.progress_report import STATUS, Batch, ProgressReport
from ottla.producer import Producer
from ottla.streams import App


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("127.0.0.1:9465", Place("streams", "http://127.0.0.1:9465/status")),
        ("prod=127.0.0.1:9465", Place("streams", "http://127.0.0.1:9465/status", "prod")),
        ("https://app.example.com/orders/", Place("streams", "https://app.example.com/orders")),
    ],
)
def test_an_app_is_named_by_its_address_and_cluster(text: str, place: Place) -> None:
    assert parse_place("streams", text) == place


def test_pipelines_are_named_by_a_folder_or_an_address() -> None:
    assert parse_place("pipelines", "prod=/var/check=points") == Place(
        "pipelines", "/var/check=points", "prod"
    )
    assert parse_place("pipelines", "http://h:1").at == "http://h:1/status"
    with pytest.raises(ValueError, match="is no address"):
        parse_place("streams", "ftp://h:1")


# --- what they claim is not trusted


@pytest.mark.parametrize(
    "document",
    [
        {"processors": [{"name": 7, "reasons": "x", "partitions": [1, {"topic": None}], "oldest": []}]},
        {"processors": [{"lanes": True, "in_flight": 1e300, "retrying": [{}, {"attempt": "x"}]}, 7]},
        {"app": "a", "monotonic_ms": "x", "processors": [{"record_handled_total": -1, "last_failure": 1}]},
    ],
)
def test_an_app_that_lies_is_shown_without_what_makes_no_sense(document: dict[str, object]) -> None:
    app = streams_app(document, document)

    assert app.processors[0].handled_per_s is None
    assert "lanes" not in app.processors[0].numbers
    assert "in_flight" not in app.processors[0].numbers


def test_rates_follow_from_two_readings() -> None:
    def document(handled: int, now_ms: int) -> dict[str, object]:
        return {"monotonic_ms": now_ms, "processors": [{"name": "a", "record_handled_total": handled}]}

    assert streams_app(document(30, 2_000), document(10, 1_000)).processors[0].handled_per_s == 20
    assert streams_app(document(3, 2_000), document(10, 1_000)).processors[0].handled_per_s is None


class Pages:
    """A server of one answer."""

    def __init__(self, body: bytes, status: int = 200, location: str = "") -> None:
        self.asked: list[str | None] = []
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pages.asked.append(self.headers.get("authorization"))
                self.send_response(status)
                if location:
                    self.send_header("location", location)
                self.end_headers()
                with suppress(OSError):  # the reader has seen enough
                    self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/status"


@contextmanager
def serve(pages: Pages) -> Iterator[Pages]:
    thread = threading.Thread(target=pages.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield pages
    finally:
        pages.server.shutdown()
        thread.join()
        pages.server.server_close()


def test_a_token_goes_to_its_address_and_follows_no_redirect(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-secret-token\n")
    with serve(Pages(b"{}")) as other, serve(Pages(b"", 302, other.url)) as first:
        with pytest.raises(ValueError, match="it answered 302"):
            read_documents(Place("streams", first.url, token_file=token))
        assert first.asked == ["Bearer a-secret-token"]
        assert other.asked == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>", "does not hold JSON"), (b"[1]", "does not hold a status"), (b"[" * 100_000, "JSON"),
        (b" " * (MOST_BYTES + 70_000), "longer than"),
    ],
)  # fmt: skip
def test_a_status_that_is_none_says_so(body: bytes, reason: str) -> None:
    with serve(Pages(body)) as pages, pytest.raises(ValueError, match=reason):
        read_documents(Place("streams", pages.url))


# --- masks


def test_the_words_of_a_failure_are_hidden_where_values_are_masked() -> None:
    line = PartitionLine("orders", 0, 1, 0, 0, 0, False, None)
    processor = Processor("take", "g", (), {}, None, None, (), "cannot read 4111", 1.0, "dead", (line,))
    free = replace(processor, partitions=(replace(line, topic="plain"),), last_failure="it is away")
    unknown = replace(processor, partitions=())
    failed = Pipeline("p", "streaming", "failed", "cannot read 4111", None, ())
    parts = (StreamsApp("app", (processor, free, unknown)), failed)
    place = Shown(parse_place("streams", "127.0.0.1:1"), Sample(parts, 0.0, ""))
    rules = (MaskRule(("card",), topics=("orders",)),)

    settings = ClusterSettings("local", "127.0.0.1:1", ClientConfig)
    connection = Connection(settings, asyncio.TaskGroup(), AsyncExitStack(), lambda: 0.0, DecodingProcess())

    def words(viewer: Viewer, rules: tuple[MaskRule, ...]) -> list[str]:
        shown = without_values(ShownCluster(connection, viewer, rules), place)
        assert shown.sample is not None
        app, failed = shown.sample.value
        assert isinstance(app, StreamsApp)
        assert isinstance(failed, Pipeline)
        return [*(found.last_failure for found in app.processors), failed.failure]

    vera = Viewer("vera", (Grant(Role.VIEWER),))
    assert words(vera, rules) == [HIDDEN_CAUSE, "it is away", HIDDEN_CAUSE, HIDDEN_CAUSE]
    assert words(OWNER, rules) == words(vera, ()) == words(vera, (MaskRule(headers=("token",)),))
    assert words(OWNER, rules)[0] == "cannot read 4111"


# --- a real app


@pytest.fixture
async def app(admin: Admin, address: str) -> AsyncIterator[App]:
    app = App("shop", bootstrap_servers=address, status="127.0.0.1:0")
    handled: list[bytes | None] = []
    app.handled_values = handled  # type: ignore[attr-defined]
    release = asyncio.Event()

    @app.handle(
        "incoming", group_id="shop-incoming", dead_letter_topic="incoming-dead", auto_offset_reset="earliest",
        retries=1, retry_backoff_ms=1,
    )  # fmt: skip
    async def take(value: bytes) -> None:
        if value == b"slow":
            await release.wait()
        if value.startswith(b"bad"):
            raise ValueError(f"cannot read {value!r}")
        handled.append(value)

    await admin.topics.create("incoming")
    await admin.topics.create("incoming-dead")
    async with Producer(bootstrap_servers=address) as producer:
        await producer.send_and_wait("incoming", b"bad <b>", key=b"k1", headers=[("trace", b"t")])
        await producer.send_and_wait("incoming", b"slow", key=b"k2")
    async with app:
        yield app
        release.set()


async def test_an_app_and_its_dead_letters_are_shown_and_one_is_sent_again_after_an_edit(
    app: App, admin: Admin, address: str
) -> None:
    cluster = ClusterSettings("local", address, ClientConfig)
    places = (parse_place("streams", app.status_url or ""), parse_place("streams", "127.0.0.1:1"))
    async with serving(cluster, allows_changes=True, places=places) as console, asyncio.timeout(60):
        await until(lambda: newest(admin, "incoming-dead", [0], 1))
        page = (await console.get("/c/local/streams")).text
        letters = (await console.get("/c/local/topics/incoming-dead/dead-letters")).text
        sent = await send_again(console, letters, value="good now")
        await until(lambda: is_handled(app, b"good now"))
        records = await newest(admin, "incoming", [0], 10)

    assert '<th scope="row" class="name">take</th>' in page
    assert "incoming-0 at 1" in page  # the oldest in flight
    assert "ValueError: cannot read" in page
    assert "/c/local/topics/incoming-dead/dead-letters" in page
    assert "127.0.0.1:1" in page
    assert "ValueError: cannot read b&#39;bad &lt;b&gt;&#39;" in letters
    assert "after 2 attempts" in letters
    assert "incoming-0 at 0" in letters
    assert "The record is at offset" in sent
    again = records[0]
    assert (again.key, again.value, again.headers) == (b"k1", b"good now", (("trace", b"t"),))


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    for _ in range(1_000):
        if await holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen")


async def is_handled(app: App, value: bytes) -> bool:
    return value in app.handled_values  # type: ignore[attr-defined]


async def send_again(console: httpx.AsyncClient, letters: str, *, value: str) -> str:
    """Do what a user does: open the form of the dead letter, edit its value, and send it."""
    opened = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', letters))
    headers = {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"}
    form = {**opened, "value": value, "partition": "by key"}
    preview = await console.post("/c/local/change/produce", content=urlencode(form), headers=headers)
    token = re.findall(r'name="token" value="([^"]+)"', preview.text)[0]
    form = {name: text for name, text in form.items() if name != "preview"} | {"token": token}
    return (await console.post("/c/local/change/produce", content=urlencode(form), headers=headers)).text


# --- dead letters


CAUSE = (
    ("dead-reason", b"ValueError: no"), ("dead-topic", b"orders"), ("dead-partition", b"3"),
    ("dead-offset", b"7"), ("dead-attempts", b"2"), ("dead-group", b"billing"),
)  # fmt: skip


def test_a_dead_letter_is_known_by_its_headers() -> None:
    letter = dead_letter(ShownRecord(0, 0, 0, b"k", b"v", (("own", b"x"), ("dead-line", b"soon"), *CAUSE)))

    assert letter is not None
    assert (letter.reason, letter.origin, letter.owner) == ("ValueError: no", "orders-3 at 7", "billing")
    assert letter.original.headers == (("own", b"x"), ("dead-line", b"soon"))
    assert dead_letter(ShownRecord(0, 0, 0, b"k", b"v", (("own", b"x"),))) is None


def test_headers_that_lie_are_text() -> None:
    lies = (
        ("dead-topic", b"\xff<b>"),
        ("dead-partition", b"-1"),
        ("dead-offset", b"9" * 40),
        ("dead-reason", None),
    )
    letter = dead_letter(ShownRecord(0, 0, 0, None, None, lies))

    assert letter is not None
    assert (letter.partition, letter.offset, letter.origin) == (None, None, "�<b>")


def test_topics_of_dead_letters_are_those_that_apps_name_or_that_are_called_so() -> None:
    assert likely_topics(["orders", "orders-DLQ", "odd", "x"], ["odd", "gone", ""]) == ["odd", "orders-DLQ"]


# --- pipelines


class Job:
    """The facts of a job."""

    name, kind, adds_up = "logs <b>", "logs", True

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = str(checkpoint)


async def test_pipelines_are_shown_with_batch_times_rows_lag_and_their_failure(
    address: str, tmp_path: Path
) -> None:
    report = ProgressReport(Job(tmp_path / "logs"), None)
    report.add("main", Batch(4, 1_200, 1_500, 77))
    report.publish("failed", "query main failed: no such table")
    other = ProgressReport(Job(tmp_path / "killed"), None)
    other.publish("running")
    status = tmp_path / "killed" / STATUS
    status.write_text(json.dumps(json.loads(status.read_text()) | {"updated_s": 5}))
    (tmp_path / "odd").mkdir()

    places = (parse_place("pipelines", str(tmp_path)),)
    async with serving(ClusterSettings("local", address, ClientConfig), places=places) as console:
        page = (await console.get("/c/local/streams")).text

    assert "<b>logs &lt;b&gt;</b> failed: query main failed: no such table" in page
    assert '<td class="number">77</td>' in page
    assert '<td class="number">1\u202f500</td>' in page  # the time of a batch
    assert "killed" in page


def test_the_page_of_a_run_is_what_its_file_has(tmp_path: Path) -> None:
    report = ProgressReport(Job(tmp_path), None)
    report.add("main", Batch(4, 1_200, 1_500, 77))
    well, health = report.page("/status"), report.page("/health")
    report.publish("failed", "no such table")

    found = pipeline(json.loads(well.body), json.loads(well.body)["updated_s"])
    assert (found.state, found.queries[0].lag, found.queries[0].rows) == ("running", 77, 1_200)
    assert (health.status, report.page("/health").status, report.page("/x").status) == (200, 503, 404)
    assert json.loads(report.page("/health").body)["reasons"] == ["no such table"]


def test_topics_that_a_viewer_may_not_see_are_left_out_of_an_app() -> None:
    def work(topic: str) -> dict[str, object]:
        return {"topic": topic, "partition": 0, "offset": 7, "age_ms": 1_000}

    document = {"app": "shop", "processors": [{
        "name": "take", "group": "billing", "reasons": ["payments-0 stands still"],
        "last_failure": {"text": "no payments"}, "dead_letter_topic": "payments-dead",
        "oldest": work("payments"), "retrying": [work("orders"), work("payments")],
        "partitions": [{"topic": "orders", "partition": 0}, {"topic": "payments", "partition": 0}],
    }]}  # fmt: skip
    shown = Shown(Place("streams", "http://a"), Sample((streams_app(document),), 0.0), "")
    some = Viewer("oskar", (Grant(Role.OPERATOR, topics=("orders*",), groups=("billing",)),))
    other = Viewer("otto", (Grant(Role.OPERATOR, topics=("*",), groups=("audit",)),))

    seen = seen_place(some, "local", shown)

    assert seen.sample is not None
    (app,) = seen.sample.value
    assert isinstance(app, StreamsApp)
    assert "payments" not in repr(app)
    assert [part.topic for part in app.processors[0].partitions] == ["orders"]
    assert [found.where for found in app.processors[0].retrying] == ["orders-0 at 7"]
    assert app.processors[0].reasons != ()
    assert seen_place(other, "local", shown).sample == Sample((), 0.0)
    assert seen_place(OWNER, "local", shown) == shown
