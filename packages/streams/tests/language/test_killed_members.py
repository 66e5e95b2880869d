"""Members that are killed at any moment: tables, joins, totals and windows equal a recomputation."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from ottla.admin import LATEST, Admin
from ottla.broker.testing import BrokerProcess
from ottla.consumer import Consumer, ConsumerRecord
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from peers.stream_program import APP, GRACE_MS, SIZE_MS, Order, Priced, Sum

PARTITIONS = 3
CUSTOMERS = 40
TESTS = Path(__file__).parents[4] / "tests"


class Sent(NamedTuple):
    """An order as it was sent."""

    key: str
    order: Order
    timestamp_ms: int


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[str]:
    settings = {
        "group.min.session.timeout.ms": "1000",
        "group.initial.rebalance.delay.ms": "0",
        "log.retention.ms": "-1",  # timestamps are of 1970, and old records are looked for after 5 minutes
    }
    with BrokerProcess(tmp_path / "broker", settings) as broker:
        yield broker.bootstrap_servers


def orders(count: int, chance: random.Random) -> list[Sent]:
    """Make orders in rising time, some out of order within the grace, and some hopelessly late."""
    sent = []
    for number in range(count):
        behind = 3 * SIZE_MS if chance.random() < 0.05 else chance.randrange(GRACE_MS // 2)
        order = Order(number, chance.choice(["north", "south", "west"]), chance.randrange(1, 10))
        key = f"customer-{chance.randrange(CUSTOMERS)}"
        sent.append(Sent(key, order, 10_000 + number * 10 - behind))
    return sent


async def write(servers: str, sent: list[Sent]) -> None:
    async with Producer(servers) as producer:
        for each in sent:
            value = msgspec.json.encode(each.order)
            await producer.send("orders", value, each.key, timestamp_ms=each.timestamp_ms)


async def prepare(servers: str) -> None:
    async with Admin(servers) as admin:
        for topic in ("orders", "customers", "priced", "totals", "sums", "regions"):
            await admin.topics.create(topic, partitions=PARTITIONS)
    async with Producer(servers) as producer:
        for number in range(CUSTOMERS):
            await producer.send("customers", b"nobody", f"customer-{number}")
            await producer.send("customers", f"name {number}".encode(), f"customer-{number}")


# --- what was written


async def contents(servers: str, topic: str) -> list[ConsumerRecord]:
    """Return the records of a topic up to its end, in the order of each partition."""
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        found: list[ConsumerRecord] = []
        while any([await consumer.position(each) < end for each, end in ends.items()]):
            fetched = await consumer.getmany(timeout_ms=500)
            found += [record for records in fetched.values() for record in records]
        return found


async def newest(servers: str, topic: str) -> dict[str, int]:
    """Return the newest value of each key, of a changelog without what it says about itself."""
    records = [each for each in await contents(servers, topic) if not each.key.startswith(b"\x00")]
    return {record.key.decode(): int(record.value) for record in records}


async def is_done(admin: Admin) -> bool:
    """Return whether all that was written is handled, in both parts of the program."""
    topics = ("orders", "by-region")
    partitions = [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]
    ends = await admin.offsets.find(dict.fromkeys(partitions, LATEST))
    committed = await admin.groups.committed(APP)
    return all(
        end == 0 or ((found := committed.get(each)) is not None and found[0] == end)
        for each, end in ends.items()
    )


# --- members


@asynccontextmanager
async def member(servers: str, folder: Path, seed: int) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = (sys.executable, "-m", "peers.stream_program", servers, str(folder), str(seed))
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def handled(process: asyncio.subprocess.Process, orders: int) -> None:
    """Return when a member has handled so many orders; it may have begun before the last rebalance."""
    assert process.stdout is not None
    async for line in process.stdout:
        if int(line) >= orders:
            return
    raise AssertionError("the member ended by itself")


async def live_and_die(
    servers: str, folder: Path, chance: random.Random, done: asyncio.Event, longest_life: int
) -> int:
    """Start members one after the other, each killed after some orders, until all is done; return how many.

    Lives are counted in orders, not in seconds: on a busy machine none would come to anything.
    """
    lives = 0
    while not done.is_set():
        lives += 1
        async with (
            member(servers, folder, chance.randrange(1_000_000)) as process,
            asyncio.TaskGroup() as life,
        ):
            living = life.create_task(handled(process, chance.randrange(longest_life)))
            ending = life.create_task(done.wait())
            await asyncio.wait([living, ending], return_when=asyncio.FIRST_COMPLETED)
            for task in (living, ending):
                task.cancel()
    return lives


async def feed(servers: str, sent: list[Sent], pause_s: float) -> None:
    for start in range(0, len(sent), 200):
        await write(servers, sent[start : start + 200])
        await asyncio.sleep(pause_s)


async def kill_until_done(
    servers: str,
    folder: Path,
    sent: list[Sent],
    seed: int,
    pause_s: float,
    longest_life: int,
    members: int = 2,
) -> int:
    done = asyncio.Event()
    async with Admin(servers) as admin, asyncio.TaskGroup() as tasks:
        lives = [
            # They have one folder, as processes on one machine: files move with their partitions.
            tasks.create_task(live_and_die(servers, folder, random.Random(seed + number), done, longest_life))
            for number in range(members)
        ]
        await feed(servers, sent, pause_s)
        while not await is_done(admin):  # noqa: ASYNC110 - nothing tells us that a group is done
            await asyncio.sleep(0.3)
        done.set()
    return sum(each.result() for each in lives)


# --- the recomputation


def windows(sent: list[Sent]) -> tuple[dict[tuple[str, int], set[int]], set[tuple[str, int]]]:
    """Return the sums that each window may have, and which windows the time of their own key has closed.

    A record that is late by the time of other keys, and not of its own, counts or not: its window is closed
    as that of an idle key, or its record was there before.
    """
    sums, times, newest_ms = Counter[tuple[str, int]](), dict[str, int](), -1
    either: dict[tuple[str, int], list[int]] = defaultdict(list)
    for each in sent:
        start_ms = each.timestamp_ms - each.timestamp_ms % SIZE_MS
        closes_ms, window = start_ms + SIZE_MS + GRACE_MS, (each.key, start_ms)
        if closes_ms > times.get(each.key, -1):
            if closes_ms > newest_ms:
                sums[window] += each.order.amount
            else:
                either[window].append(each.order.amount)
        newest_ms = max(newest_ms, each.timestamp_ms)
        times[each.key] = max(times.get(each.key, -1), each.timestamp_ms)
    closed = {(key, start) for key, start in sums if start + SIZE_MS + GRACE_MS <= times[key]}
    return {each: _with_some(sums[each], either[each]) for each in {*sums, *either}}, closed


def _with_some(certain: int, others: list[int]) -> set[int]:
    """Return a sum with any of the other amounts."""
    found = {certain}
    for amount in others:
        found |= {each + amount for each in found}
    return found


async def check(servers: str, sent: list[Sent]) -> None:
    priced = [msgspec.json.decode(each.value, type=Priced) for each in await contents(servers, "priced")]
    assert {each.number: each for each in priced} == {
        order.number: Priced(order.number, f"name {key.removeprefix('customer-')}", order.amount)
        for key, order, _ in sent
    }
    totals: Counter[str] = Counter()
    for each in sent:
        totals[each.key] += each.order.amount
    assert await newest(servers, "totals") == totals
    assert await newest(servers, f"{APP}-totals-changelog") == totals
    await check_regions(servers, sent)
    await check_windows(servers, sent)


async def check_regions(servers: str, sent: list[Sent]) -> None:
    """Compare the counts with the topic between the two parts, where a crash may repeat a record."""
    between = Counter(record.key.decode() for record in await contents(servers, "by-region"))
    assert await newest(servers, "regions") == between
    assert all(between[region] >= count for region, count in Counter(e.order.region for e in sent).items())


async def check_windows(servers: str, sent: list[Sent]) -> None:
    emitted: dict[tuple[str, int], set[int]] = defaultdict(set)
    for record in await contents(servers, "sums"):
        found = msgspec.json.decode(record.value, type=Sum)
        emitted[record.key.decode(), found.start_ms].add(found.amount)
    expected, closed = windows(sent)
    assert not {each: found for each, found in emitted.items() if not found <= expected.get(each, set())}
    assert closed <= emitted.keys()


@pytest.mark.long
async def test_members_killed_a_few_times_lose_and_repeat_nothing(servers: str, tmp_path: Path) -> None:
    seed = 12
    sent = orders(2_000, random.Random(seed))
    await prepare(servers)

    async with asyncio.timeout(180):
        lives = await kill_until_done(servers, tmp_path / "state", sent, seed, pause_s=0.7, longest_life=600)

    assert lives > 2, "no member was killed"
    await check(servers, sent)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_members_killed_for_minutes_lose_and_repeat_nothing(
    servers: str, tmp_path: Path, seed: int
) -> None:
    sent = orders(30_000, random.Random(seed))
    await prepare(servers)

    async with asyncio.timeout(1_000):
        lives = await kill_until_done(
            servers, tmp_path / "state", sent, seed, pause_s=0.8, longest_life=1_500, members=3
        )

    assert lives > 20, "few members were killed"
    await check(servers, sent)
