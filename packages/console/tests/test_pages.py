"""The pages, of a real broker; and requests that the console refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from html import unescape
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.client.config import ClientConfig
from ottla.console.settings import ClusterSettings
from ottla.console.testing import ORIGIN, serving
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition

GROUP = "billing/<b>&\u202e 1"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data")) as started:
        yield started


@pytest.fixture
async def console(broker: BrokerProcess) -> AsyncIterator[httpx.AsyncClient]:
    address = f"127.0.0.1:{broker.port}"
    async with Admin(address) as admin:
        known = {topic.name for topic in await admin.topics.list()}
        if "orders" not in known:
            await admin.topics.create("orders", partitions=3, configs={"retention.ms": "1234567"})
            await admin.groups.commit(GROUP, {TopicPartition("orders", 0): 0})
    async with serving(ClusterSettings("local", address, ClientConfig)) as client:
        yield client


async def page(console: httpx.AsyncClient, path: str) -> str:
    answer = await console.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_the_first_page_of_one_cluster_is_that_cluster(console: httpx.AsyncClient) -> None:
    answer = await console.get("/")

    assert (answer.status_code, answer.headers["location"]) == (307, "/c/local/")


async def test_a_cluster_shows_its_brokers_and_that_it_is_well(console: httpx.AsyncClient) -> None:
    text = await page(console, "/c/local/")

    assert "No problem found" in text
    assert 'class="role leader">leader' in text


async def test_an_address_without_a_page_is_said_to_have_none(console: httpx.AsyncClient) -> None:
    answer = await console.get("/c/local/nothing")

    assert answer.status_code == 404
    assert answer.text.count("Not Found") == 2  # the title and the heading
    assert "The console has no page at this address." in answer.text


async def test_topics_are_searched_on_the_server(console: httpx.AsyncClient) -> None:
    assert "/c/local/topics/orders" in await page(console, "/c/local/topics")
    assert "No topic has “nothing”" in await page(console, "/c/local/topics?q=nothing")
    assert "__consumer_offsets" in await page(console, "/c/local/topics?internal=1")


async def test_a_topic_shows_its_partitions_and_its_settings(
    console: httpx.AsyncClient,
) -> None:
    text = await page(console, "/c/local/topics/orders")

    assert text.count('<th scope="row" class="number">') == 3
    assert "1234567" in text


async def test_a_group_of_any_name_shows_its_lag_without_running_what_its_name_holds(
    console: httpx.AsyncClient,
) -> None:
    listed = await page(console, "/c/local/groups")
    (link,) = [part.split('"')[0] for part in listed.split('href="') if "/group?" in part.split('"')[0]]

    text = await page(console, unescape(link))

    assert "<b>&" not in text
    assert "billing/&lt;b&gt;&amp;\\u202e 1" in text
    assert "orders-0" in text


@pytest.mark.parametrize(
    "path", ["/c/other/", "/c/local/topics/none", "/c/local/group", "/c/local/group?name=none", "/nothing"]
)
async def test_what_is_not_there_has_a_page_that_says_so(console: httpx.AsyncClient, path: str) -> None:
    answer = await console.get(path)

    assert answer.status_code == 404
    assert "<h1>Not Found</h1>" in answer.text


async def test_an_export_that_makes_no_sense_is_refused_as_such(console: httpx.AsyncClient) -> None:
    answer = await console.get("/c/local/topics/orders/records/export?from=nowhere")

    assert (answer.status_code, "nowhere" in answer.text) == (400, True)


async def test_htmx_gets_the_content_alone_and_nothing_while_it_has_not_changed(
    console: httpx.AsyncClient,
) -> None:
    whole = await console.get("/c/local/topics")
    content = await console.get("/c/local/topics", headers={"HX-Request": "true"})
    again = await console.get(
        "/c/local/topics", headers={"HX-Request": "true", "If-None-Match": content.headers["etag"]}
    )

    assert whole.text.startswith("<!doctype html>")
    assert content.text.lstrip().startswith("<h1>Topics</h1>")
    assert (again.status_code, again.content) == (304, b"")


async def test_nothing_is_loaded_from_elsewhere_and_no_script_stands_in_a_page(
    console: httpx.AsyncClient,
) -> None:
    answer = await console.get("/c/local/")

    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "http://" not in answer.text.replace("http://127.0.0.1", "")
    assert "https://" not in answer.text
    assert " style=" not in answer.text
    assert " onclick=" not in answer.text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8180", "", "localhost.:8180"])
async def test_a_request_under_a_foreign_name_is_refused(console: httpx.AsyncClient, host: str) -> None:
    answer = await console.get("/c/local/", headers={"host": host})

    assert answer.status_code == 403
    assert "--name adds a name" in answer.text
    assert (await console.get("/health", headers={"host": "localhost:8180"})).status_code == 200
    assert (await console.get("/health", headers={"host": "[::1]:8180"})).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
     {"origin": "null"}, {"origin": "http://127.0.0.1:9999"}],
)  # fmt: skip
async def test_a_change_that_another_site_asks_for_is_refused(
    console: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    assert (await console.post("/c/local/topics", headers=headers)).status_code == 403
    assert (await console.post("/c/local/topics", headers={"origin": ORIGIN})).status_code == 405


async def test_a_cluster_without_a_broker_has_a_page_that_says_why(tmp_path: Path) -> None:
    async with serving(
        ClusterSettings("one", "127.0.0.1:1", ClientConfig),
        ClusterSettings("two", "127.0.0.1:2", ClientConfig),
    ) as console:
        first = await console.get("/")
        answer = await console.get("/c/one/")

    assert first.status_code == 200
    assert "127.0.0.1:2" in first.text
    assert answer.status_code == 503
    assert "gave no answer yet" in answer.text


async def test_a_broker_that_went_away_leaves_the_last_state_on_the_page(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        async with serving(ClusterSettings("local", f"127.0.0.1:{broker.port}", ClientConfig)) as console:
            await page(console, "/c/local/")
            broker.kill()
            for _ in range(200):
                text = await page(console, "/c/local/")
                if "This is the state of" in text:
                    break
                await asyncio.sleep(0.1)

    assert "This is the state of" in text
    assert 'class="role leader">leader' in text or "Brokers" in text


async def test_two_hundred_tabs_are_answered_at_once(console: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(
        *(console.get("/c/local/", headers={"HX-Request": "true"}) for _ in range(200))
    )

    assert {answer.status_code for answer in answers} == {200}


async def test_a_profile_that_names_no_zookeeper_is_told_how_to(console: httpx.AsyncClient) -> None:
    assert '<code>zookeeper = "HOST:PORT"</code>' in await page(console, "/c/local/groups")
    assert "where the profile of the cluster names ZooKeeper" in await page(console, "/c/local/znodes")


OPENED = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


async def test_a_browser_that_opens_a_cluster_which_does_not_answer_yet_gets_a_page_at_once() -> None:
    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.close()

    released = asyncio.Event()
    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, serving(ClusterSettings("local", address, ClientConfig)) as console:
        opened = await console.get("/c/local/", headers=OPENED)
        released.set()
        server.close()
        rest = await console.get("/c/local/", headers={"hx-request": "true", "sec-fetch-mode": "cors"})
        again = await console.get("/c/local/", headers=OPENED)

    assert (opened.status_code, rest.status_code, again.status_code) == (200, 503, 503)
    assert 'hx-trigger="load"' in opened.text
    assert "data-live" in opened.text
    assert "gave no answer yet" in rest.text


async def test_a_browser_gets_the_whole_page_of_a_cluster_that_is_known(console: httpx.AsyncClient) -> None:
    await page(console, "/c/local/")
    opened = await console.get("/c/local/", headers=OPENED)

    assert "No problem found" in opened.text
    assert 'hx-trigger="load"' not in opened.text


async def test_a_group_has_an_address_with_its_name_in_the_path(console: httpx.AsyncClient) -> None:
    answer = await console.get(f"/c/local/groups/{quote(GROUP)}", follow_redirects=True)

    assert answer.status_code == 200, answer.text
    assert "billing/&lt;b&gt;&amp;" in answer.text
    assert (await console.get("/c/local/groups/none", follow_redirects=True)).status_code == 404


async def test_a_group_with_members_and_no_commits_is_not_shown_without_a_lag(
    console: httpx.AsyncClient, broker: BrokerProcess
) -> None:
    address = f"127.0.0.1:{broker.port}"
    async with Admin(address) as admin, Producer(bootstrap_servers=address) as producer:
        await admin.topics.create("unread", partitions=2)
        for number in range(22):
            await producer.send_and_wait("unread", b"x", partition=number % 2)
        async with Consumer(
            "unread", bootstrap_servers=address, group_id="fresh", enable_auto_commit=False
        ) as consumer:
            await consumer.getmany(timeout_ms=1_000)
            shown = await page(console, "/c/local/group?name=fresh")
            for _ in range(600):
                listed = await page(console, "/c/local/groups?q=fresh")
                if "/group?name=fresh" in listed:
                    break
                await asyncio.sleep(0.1)

    assert "It has committed nothing in 2 partitions, with 22 records" in shown
    assert '<td class="number">2</td><td class="number">≤ 22</td>' in shown  # the member's
    assert shown.count('<td class="number">≤ 11</td>') == 2
    assert "It has read everything" not in shown
    assert "(2 partitions without a commit)" in listed
