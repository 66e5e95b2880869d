"""A cluster with something to see on each page: topics, records of all kinds, groups, transactions."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final

from ottla.admin import Admin
from ottla.console.watch.history import History, Series
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition

TOPICS: Final[Mapping[str, int]] = {
    "audit": 1, "clicks": 12, "inventory": 3, "invoices": 3, "orders": 6, "orders-dead": 1, "payments": 3,
    "shipments": 4,
}  # fmt: skip
HOSTILE: Final = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>\x1b[1m\u202egnirt'
"""A value that would run in a page which forgot to escape it."""
HOSTILE_GROUP: Final = "evil<script>window.hacked=1</script>"
CAUSE: Final = {
    "dead-reason": "no such city: Atlantis", "dead-exception": "ValueError", "dead-topic": "orders",
    "dead-partition": "0", "dead-offset": "7", "dead-attempts": "3",
}  # fmt: skip
"""Headers of a dead letter."""
SPAN_S: Final = 6 * 3_600
BOUND_S: Final = 60.0
_CITIES: Final = ("Lisbon", "Oslo", "Kyoto", "Quito", "Perth", "Turku")


async def fill(servers: str, replicas: int) -> None:
    """Write what the pages show; a cluster that has it already is left as it is."""
    async with Admin(servers) as admin:
        if "orders" in {topic.name for topic in await admin.topics.list()}:
            return
        for name, partitions in TOPICS.items():
            configs = {"cleanup.policy": "compact"} if name == "inventory" else {"retention.ms": "604800000"}
            await admin.topics.create(
                name, partitions=partitions, replication_factor=replicas, configs=configs
            )
        await _records(servers)
        await _transactions(servers)
        await admin.groups.commit("billing", {TopicPartition("orders", index): 20 for index in range(6)})
        await admin.groups.commit("shipping", {TopicPartition("payments", index): 40 for index in range(3)})
        await admin.groups.commit(HOSTILE_GROUP, {TopicPartition("audit", 0): 1})


async def _records(servers: str) -> None:
    async with Producer(bootstrap_servers=servers) as producer:
        for number in range(600):
            order = {
                "order": 9_007_199_254_740_993 + number, "city": _CITIES[number % 6], "total": number * 1.25,
                "lines": [{"sku": f"SKU-{number % 40:03}", "count": 1 + number % 4}],
            }  # fmt: skip
            await producer.send(
                "orders", json.dumps(order).encode(), key=f"customer-{number % 50}".encode(),
                headers=[("trace", f"{number:032x}".encode()), ("source", b"shop")],
            )  # fmt: skip
        for number in range(120):
            await producer.send("payments", f'{{"order":{number},"paid":true}}'.encode(), key=b"%d" % number)
            await producer.send("inventory", b"%d" % (number % 9), key=b"SKU-%03d" % (number % 40))
        await producer.send(
            "orders-dead", b'{"order":7,"city":"Atlantis"}', key=b"customer-7",
            headers=[(name, text.encode()) for name, text in CAUSE.items()],
        )  # fmt: skip
        for value in (HOSTILE.encode(), b"\xff\xfe\x00 not text", b"\x82\xa4city\xa4Oslo\xa1n\x05", None):
            await producer.send("audit", value, key=b"odd")


async def _transactions(servers: str) -> None:
    async with Producer(bootstrap_servers=servers, transactional_id="invoicing-1") as producer:
        async with producer.transaction():
            await producer.send("invoices", b'{"invoice":1}')
        with suppress(_Undone):
            async with producer.transaction():
                await producer.send_and_wait("invoices", b'{"invoice":2}')
                raise _Undone


class _Undone(Exception):
    """The reason for which a transaction of the demo is aborted."""


async def remember(path: Path, now_s: int) -> None:
    """Write a history of six hours: a group that fell behind at noon, and one that keeps up."""
    async with History(path) as history:
        for minute in range(SPAN_S // 60):
            late = max(0, minute - 150)
            lags = {
                Series("local", "lag", "billing"): 40 + 25 * (minute % 7) + 1.7 * late,
                Series("local", "lag", "shipping"): 30 + 20 * (minute % 5),
            }
            await history.add(now_s - SPAN_S + 60 * minute, lags)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run something on a thread: Playwright's loop runs on that of the tests."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


async def becomes(servers: str, condition: Callable[[Admin], Awaitable[bool]]) -> None:
    """Return once a cluster is as it is to be."""
    deadline_s = monotonic() + BOUND_S
    async with Admin(servers) as admin:
        while not await condition(admin):
            assert monotonic() < deadline_s, f"it did not come to be: {condition.__doc__}"
            await asyncio.sleep(0.1)


@contextmanager
def held_open(servers: str, transactional_id: str, topic: str) -> Iterator[None]:
    """Hold a transaction open with one record, and commit it at the end."""
    is_open, done = threading.Event(), threading.Event()

    async def hold() -> None:
        async with (
            Producer(bootstrap_servers=servers, transactional_id=transactional_id) as producer,
            producer.transaction(),
        ):
            await producer.send_and_wait(topic, b"open")
            is_open.set()
            await asyncio.to_thread(done.wait, BOUND_S)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(asyncio.run, hold())
        try:
            assert is_open.wait(BOUND_S)
            yield
        finally:
            done.set()
            holding.result()
