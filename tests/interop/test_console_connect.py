"""The console and a worker of Kafka Connect, unpatched, whose Kafka is a broker of ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest

from ottla.broker.testing import BrokerProcess
from ottla.client.config import ClientConfig
from ottla.console.clusters.services import Service
from ottla.console.settings import ClusterSettings
from ottla.console.testing import ORIGIN, serving
from peers.connect_worker import BOUND_S, Worker, wait_until
from peers.transactional_brokers import transactional_broker

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

HTML = {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"}
SOURCE = "connector.class=FileStreamSource\ntasks.max=1"
_PROVIDER = "org.apache.kafka.common.config.provider.FileConfigProvider"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with transactional_broker("ottla", tmp_path_factory.mktemp("broker")) as running:
        assert isinstance(running, BrokerProcess)
        yield running.bootstrap_servers


@pytest.fixture(scope="module")
def worker(servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("worker")
    found = Worker(servers, folder, {"config.providers": "file", "config.providers.file.class": _PROVIDER})
    with found.process():
        wait_until(found.is_ready)
        yield found


@pytest.fixture
async def console(servers: str, worker: Worker, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    connects = (Service("etl", ("http://127.0.0.1:1", worker.url)), Service("away", ("http://127.0.0.1:1",)))
    cluster = ClusterSettings("local", servers, ClientConfig, None, connects)
    async with serving(cluster, allows_changes=True, audit=tmp_path / "audit.jsonl") as client:
        yield client


async def do(console: httpx.AsyncClient, change: str, **form: str) -> str:
    """Send the form of a change; again while the worker's cluster rebalances, as its page advises."""
    page = (await console.get("/c/local/change/create-connector?connect=etl")).text
    token = await _token(console, page)
    content = urlencode({"connect": "etl", **form, "token": token})
    for _ in range(60):
        done = (await console.post(f"/c/local/change/{change}", content=content, headers=HTML)).text
        if "409" not in done and "gave no answer" not in done:
            return done
        await asyncio.sleep(1)
    raise AssertionError(done)


async def _token(console: httpx.AsyncClient, page: str) -> str:
    found = re.search(r'name="token" value="(\w+)"', page)
    if found is None:
        made = await console.get("/c/local/change/create-topic?topic=x&partitions=1&replicas=1")
        found = re.search(r'name="token" value="(\w+)"', made.text)
    assert found is not None
    return found[1]


async def until(look: Callable[[], Awaitable[str]], *words: str) -> str:
    """Return a page once it has all words, as somebody sees it who waits for it."""
    async with asyncio.timeout(BOUND_S):
        while True:
            text = await look()
            if all(word in text for word in words):
                return text
            await asyncio.sleep(0.5)


def looking_at(console: httpx.AsyncClient, name: str) -> Callable[[], Awaitable[str]]:
    """Return the question for the page of a connector."""

    async def ask() -> str:
        return (await console.get(f"/c/local/connect/connector?connect=etl&name={name}")).text

    return ask


async def test_connectors_are_created_fail_are_mended_paused_stopped_and_deleted(
    console: httpx.AsyncClient, tmp_path: Path
) -> None:
    given, taken = tmp_path / "given.txt", tmp_path / "later" / "taken.txt"
    secret = tmp_path / "secret.properties"
    await asyncio.to_thread(given.write_text, "one\ntwo\n")
    await asyncio.to_thread(secret.write_text, "topic=lines\n")
    source = f"{SOURCE}\nfile={given}\ntopic=${{file:{secret}:topic}}\ndatabase.password=hunter2"
    sink = f"connector.class=FileStreamSink\ntasks.max=1\nfile={taken}\ntopics=lines"
    look = partial(looking_at, console)

    async def listed() -> str:
        return (await console.get("/c/local/connect")).text

    wrong = await do(console, "create-connector", name="reads", config="connector.class=FileStreamSource")
    created = await do(console, "create-connector", name="reads", config=source)
    await do(console, "create-connector", name="writes", config=sink)
    reads = await until(look("reads"), "RUNNING", "/topics/lines", "position")
    failed = await until(look("writes"), "FAILED", "ConnectException", "taken.txt")
    overview = await until(listed, "1 connector has failures", "1 of 1 failed")
    await asyncio.to_thread(taken.parent.mkdir)
    restarted = await do(console, "restart-connector", name="writes", parts="that which failed of both")
    await until(look("writes"), "<b>0</b><span>failed", "RUNNING")
    paused = await do(console, "pause-connector", name="reads")
    await until(look("reads"), "PAUSED")
    await do(console, "resume-connector", name="reads")
    await until(look("reads"), '<b class="good">RUNNING')
    stopped = await do(console, "stop-connector", name="reads")
    await until(look("reads"), "STOPPED", "<b>0</b><span>tasks")
    changed = await do(console, "set-connector-setting", name="writes", key="tasks.max", value="2")
    await until(look("writes"), "<code>tasks.max</code>", ">2<")
    deleted = await do(console, "delete-connector", name="reads", typed="reads")
    await until(look("reads"), "has no connector &#39;reads&#39;")

    assert "topic" in wrong
    assert "Done" not in wrong
    assert "Connector reads is created." in created
    assert "hunter2" not in reads
    assert "${file:" in reads
    assert "from file" in reads
    assert "Failures" in failed
    assert "version 3.9.1" in overview
    assert "the Connect cluster away at http://127.0.0.1:1 cannot be reached" in overview
    assert "Restarted that which failed of both of writes." in restarted
    assert "Connector reads pauses." in paused
    assert "Connector reads stops." in stopped
    assert "tasks.max of writes is changed." in changed
    assert "Connector reads is deleted." in deleted
    assert "hunter2" not in await asyncio.to_thread((tmp_path / "audit.jsonl").read_text)
