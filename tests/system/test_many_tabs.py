"""Two thousand tabs, and browsers that take nothing: a console's memory, files and processes are bounded."""

from __future__ import annotations

import asyncio
import re
import statistics
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic

import psutil
import pytest

from browser.running import ConsoleProcess, Running, running
from ottla.admin import Admin
from ottla.console.records.searches import TAILS_AT_ONCE
from ottla.producer import Producer
from ottla.registry.server.connections import BoundedConnection

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TABS, TAILS, ROUNDS = 2_000, 500, 3
"""Tabs, of which some follow a topic, and how often each of the others is updated."""
SLOW = 400
VALUE_BYTES = 4 << 20
WHOLE = "/c/local/topics/large/record?partition=0&offset=0&show=value"
MOST_MIB_OF_TABS = 150
MOST_MIB_OF_SLOW = 4 * (BoundedConnection.most_held_bytes >> 20)
"""Answers are also held while they are made; all of them together would be 1.6 GiB."""
MOST_MIB_OF_A_ROUND = 16
BOUND_S = 180.0
Record = Callable[[str, object], None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Running]:
    with running("ottla", tmp_path) as started:
        yield started


@pytest.fixture
def console(cluster: Running, tmp_path: Path) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(cluster.servers, tmp_path / "console") as started:
        yield started


class Tab:
    """A connection to a console, as a browser holds it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None
        self._reader = asyncio.StreamReader()

    async def ask(self, path: str, *headers: str) -> None:
        """Send a request, over a new connection where the last one has ended."""
        if self._writer is None or self._reader.at_eof():
            await self.close()
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        lines = (f"GET {path} HTTP/1.1", "host: 127.0.0.1", *headers, "", "")
        self._writer.write("\r\n".join(lines).encode())

    async def answer(self) -> bytes:
        """Return the head of an answer; its body is read."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        (length,) = re.findall(rb"content-length: (\d+)", head)
        await self._reader.readexactly(int(length))
        return head

    async def update(self) -> None:
        """Ask for a page as htmx does; a server may end a connection that was not used for seconds."""
        for _ in range(3):
            try:
                await self.ask("/c/local/topics", "hx-request: true")
                assert (await self.answer()).startswith(b"HTTP/1.1 200")
                return
            except (asyncio.IncompleteReadError, ConnectionError):
                await self.close()
        raise AssertionError("a connection ended three times before its answer")

    async def follow(self) -> bytes:
        """Follow a topic until the console ends the answer; return its last part."""
        await self.ask("/c/local/topics/orders/records/events?tail=1")
        last = b""
        while part := await self._reader.read(65_536):
            last = part
        return last

    async def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()
            self._writer = None


def mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / (1 << 20)


async def until(condition: Callable[[], bool], words: str) -> None:
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110 - there is no event for what another process does
            await asyncio.sleep(0.1)


async def test_two_thousand_tabs_cost_bounded_memory_and_end_without_a_trace(
    console: ConsoleProcess, record_property: Record
) -> None:
    process = psutil.Process(console.pid)
    first = Tab(console.port)
    for _ in range(20):
        await first.update()
    await first.close()
    before, files = mib(process), process.num_fds()
    after_rounds = []
    for _ in range(2):
        tails = [Tab(console.port) for _ in range(TAILS)]
        tabs = [Tab(console.port) for _ in range(TABS - TAILS)]
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(tail.follow()) for tail in tails]
            for _ in range(ROUNDS):
                await gather_all([tab.update for tab in tabs])
                after_rounds.append(mib(process))
            assert len(process.children()) <= TAILS_AT_ONCE
            person = Tab(console.port)
            began_s = monotonic()
            await person.update()
            took_s = monotonic() - began_s
            for task in following:
                task.cancel()
        await gather_all([tab.close for tab in [*tabs, *tails, person]])
        await until(lambda: process.num_fds() <= files + 8 and not process.children(), "the tabs end")

    record_property("figure", f"{before:.0f} MiB before; {after_rounds} MiB; a page in {took_s:.2f} s")
    print(f"{before:.0f} MiB before; {[round(size) for size in after_rounds]} MiB; a page in {took_s:.2f} s")
    assert max(after_rounds) - before <= MOST_MIB_OF_TABS
    assert after_rounds[-1] - after_rounds[ROUNDS - 1] <= MOST_MIB_OF_A_ROUND


async def gather_all(works: list[Callable[[], Awaitable[None]]]) -> None:
    async with asyncio.timeout(BOUND_S):
        await asyncio.gather(*(work() for work in works))


async def test_browsers_that_take_nothing_cost_bounded_memory_and_are_cut_off(
    console: ConsoleProcess, cluster: Running, record_property: Record
) -> None:
    async with Admin(cluster.servers) as admin:
        await admin.topics.create("large", configs={"max.message.bytes": str(2 * VALUE_BYTES)})
        async with Producer(bootstrap_servers=cluster.servers, max_request_size=2 * VALUE_BYTES) as producer:
            await producer.send_and_wait("large", b"x" * VALUE_BYTES)
    process, person = psutil.Process(console.pid), Tab(console.port)
    await person.update()
    before, files, sizes, waits_s = mib(process), process.num_fds(), list[float](), list[float]()
    slow = [Tab(console.port) for _ in range(SLOW)]
    await gather_all([partial(tab.ask, WHOLE) for tab in slow])
    began_s = monotonic()
    while process.num_fds() > files + 8 or monotonic() - began_s < 20:
        assert monotonic() - began_s < 2 * BOUND_S
        asked_s = monotonic()
        await person.update()
        waits_s.append(monotonic() - asked_s)
        sizes.append(mib(process))
        await asyncio.sleep(0.5)
    took_s = monotonic() - began_s
    await gather_all([tab.close for tab in [*slow, person]])

    figure = (
        f"{before:.0f} MiB before, {max(sizes):.0f} at most, {sizes[-1]:.0f} after {took_s:.0f} s; "
        f"a page in {statistics.median(waits_s):.2f} s, {max(waits_s):.2f} at most"
    )
    record_property("figure", figure)
    print(figure)
    assert "a connection is cut off" in (console.folder / "console.log").read_text()
    assert max(sizes) - before <= MOST_MIB_OF_SLOW
