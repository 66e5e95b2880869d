"""Exactly once through `ottla.streams`, as a consumer of committed records sees it."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.admin import Admin
from ottla.consumer import Consumer, ConsumerRecord
from ottla.producer import Producer
from ottla.streams import App, Context, Processor
from ottla.streams.dedupe import Dedupe, MemoryStore, by_function
from ottla.streams.errors import TransactionsRefused
from ottla.streams.exactly_once.outcome import TransactionsFenced
from peers.denied_transactions import denied_transactions

if TYPE_CHECKING:
    from sdk.conftest import Cluster

WORKER = Path(__file__).with_name("exactly_once_worker.py")
RECORDS, KEYS = 600, 40


@pytest.fixture
async def topics(cluster: Cluster, admin: Admin, fresh: Callable[[str], str]) -> tuple[str, str]:
    """Make a source with records, a target and its dead-letter topic."""
    source, target = fresh("in"), fresh("out")
    for name in (source, target, f"{target}.dead"):
        await admin.topics.create(name, partitions=3, replication_factor=1)
    async with Producer(cluster.bootstrap_servers) as producer:
        numbers = range(RECORDS)
        await (
            await producer.send_many(
                source, [b"%d" % each for each in numbers], keys=[b"k%d" % (each % KEYS) for each in numbers]
            )
        )
    return source, target


def is_refused(number: int) -> bool:
    return number % 50 == 13


async def committed(cluster: Cluster, topic: str, count: int) -> list[ConsumerRecord]:
    """Read `count` committed records, and see that no more come."""
    found: list[ConsumerRecord] = []
    async with Consumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        async with asyncio.timeout(150):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=1_000)).values():
                    found += records
        assert not await consumer.getmany(timeout_ms=1_000)
    return found


Start = Callable[..., Awaitable[Process]]


@pytest.fixture
async def started() -> AsyncIterator[Start]:
    """Start workers, and leave none behind."""
    workers: list[Process] = []

    async def start(*arguments: str) -> Process:
        worker = await asyncio.create_subprocess_exec(
            sys.executable, str(WORKER), *arguments, stdout=PIPE, limit=1024
        )
        workers.append(worker)
        return worker

    yield start
    for each in workers:
        if each.returncode is None:
            each.kill()
            await each.communicate()


async def handled(worker: Process, count: int) -> None:
    """Wait until a worker has handled so many records."""
    assert worker.stdout is not None
    async with asyncio.timeout(90):
        async for line in worker.stdout:
            if int(line) >= count:
                return
    raise AssertionError(f"the worker ended with {await worker.wait()}")


async def stopped(worker: Process) -> int:
    """End a worker in an orderly way; return its exit code."""
    with suppress(ProcessLookupError):
        worker.send_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        await worker.communicate()
    assert worker.returncode is not None
    return worker.returncode


async def assert_exact_image(cluster: Cluster, target: str) -> None:
    taken = [each for each in range(RECORDS) if not is_refused(each)]
    seen = await committed(cluster, target, 2 * len(taken))
    expected = [f"{number} {part}" for number in taken for part in ("first", "second")]
    assert sorted(each.value.decode() for each in seen) == sorted(expected)
    for key in range(KEYS):
        of_key = [each.value.decode() for each in seen if each.key == b"k%d" % key]
        assert of_key == [each for each in expected if int(each.split()[0]) % KEYS == key]
    refused = [each for each in range(RECORDS) if is_refused(each)]
    dead = await committed(cluster, f"{target}.dead", len(refused))
    assert sorted(int(each.value) for each in dead) == refused


@pytest.mark.timeout(240)
async def test_the_output_is_the_exact_image_of_the_input_though_workers_are_killed(
    cluster: Cluster, topics: tuple[str, str], fresh: Callable[[str], str], started: Start
) -> None:
    group = fresh("group")
    arguments = (cluster.bootstrap_servers, *topics, group, "group_instance_id=one")

    for kill_after in (50, 200):
        worker = await started(*arguments)
        await handled(worker, kill_after)
        worker.kill()
        await worker.wait()
    last = await started(*arguments)
    try:
        await assert_exact_image(cluster, topics[1])
    finally:
        assert await stopped(last) == 0


@pytest.mark.timeout(240)
async def test_members_that_come_go_and_die_write_nothing_twice(
    cluster: Cluster, topics: tuple[str, str], fresh: Callable[[str], str], started: Start
) -> None:
    arguments = (cluster.bootstrap_servers, *topics, fresh("group"), "max_concurrency=2")

    first, second = await started(*arguments), await started(*arguments)
    await handled(first, 20)
    third = await started(*arguments)  # partitions move to it
    first.kill()
    await first.wait()
    await handled(third, 1)
    assert await stopped(second) == 0
    try:
        await assert_exact_image(cluster, topics[1])
    finally:
        assert await stopped(third) == 0


@pytest.mark.timeout(120)
async def test_outputs_of_a_handler_that_has_not_finished_are_not_committed(
    cluster: Cluster, topics: tuple[str, str], fresh: Callable[[str], str]
) -> None:
    source, target = topics
    app = App(fresh("app"), cluster.bootstrap_servers, processing_guarantee="exactly-once")
    others, release = asyncio.Semaphore(0), asyncio.Event()

    @app.handle(source)
    async def image(record: ConsumerRecord, context: Context) -> None:
        await context.send(target, record.value)
        if int(record.value) < KEYS // 2:  # the first record of half of the keys
            await release.wait()
        others.release()

    async with app:
        finished = sum(each % KEYS >= KEYS // 2 for each in range(RECORDS))
        for _ in range(finished):
            await asyncio.wait_for(others.acquire(), 60)
        visible = {int(each.value) for each in await committed(cluster, target, finished)}
        release.set()
        assert visible == {each for each in range(RECORDS) if each % KEYS >= KEYS // 2}
        await committed(cluster, target, RECORDS)


@pytest.mark.timeout(120)
async def test_a_fenced_app_stops_with_one_line(
    cluster: Cluster, topics: tuple[str, str], fresh: Callable[[str], str]
) -> None:
    name = fresh("app")
    app = App(name, cluster.bootstrap_servers, processing_guarantee="exactly-once", transactional_id=name)
    begun = asyncio.Event()

    @app.handle(topics[0])
    async def image(record: ConsumerRecord, context: Context) -> None:
        await context.send(topics[1], record.value)
        begun.set()
        await asyncio.sleep(0.05)

    with pytest.raises(TransactionsFenced, match="the processor stops, because its transactions were fenced"):
        async with asyncio.timeout(90), app:
            await begun.wait()
            async with Producer(cluster.bootstrap_servers, transactional_id=name):
                await app.wait()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("by", ["app", "processor"])
async def test_copies_have_one_output_or_one_dead_letter_with_dedupe(
    cluster: Cluster, topics: tuple[str, str], fresh: Callable[[str], str], by: str
) -> None:
    (source, target), group = topics, fresh("group")
    async with Producer(cluster.bootstrap_servers) as producer:
        for number in range(RECORDS - 20, RECORDS):
            await producer.send(source, b"%d" % number, key=b"k%d" % (number % KEYS))  # a second time
    settings: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "processing_guarantee": "exactly-once",
        "retries": 0,
        "dead_letter_topic": f"{target}.dead",
    }

    async def image(record: ConsumerRecord, context: Context) -> None:
        await context.send(target, record.value, key=record.key)
        if is_refused(int(record.value)):
            raise ValueError(f"{record.value!r} is refused")

    dedupe = Dedupe(MemoryStore(), by_function(lambda record: record.value))
    running: AbstractAsyncContextManager[object]
    if by == "app":
        app = running = App(group, **settings)
        app.handle(source, dedupe=dedupe)(image)
    else:
        running = Processor(image, source, group_id=group, dedupe=dedupe, **settings)

    async with running:
        taken = [each for each in range(RECORDS) if not is_refused(each)]
        seen = await committed(cluster, target, len(taken))
        assert sorted(int(each.value) for each in seen) == taken
        dead = await committed(cluster, f"{target}.dead", RECORDS - len(taken))
        assert {int(each.value) for each in dead} == {each for each in range(RECORDS) if is_refused(each)}
        async with asyncio.timeout(60):
            while dedupe.statistics.duplicates < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not dedupe.in_flight


async def test_a_cluster_that_denies_transactions_refuses_exactly_once_at_the_start() -> None:
    async with denied_transactions() as servers:
        app = App("app", servers, processing_guarantee="exactly-once")

        @app.handle("orders")
        async def image(record: ConsumerRecord) -> None:
            pytest.fail("it was let in")

        words = r'processing_guarantee="exactly-once" needs.*Leave out'
        with pytest.raises(TransactionsRefused, match=words):
            await app.run_async()


async def test_a_record_whose_output_is_too_large_for_its_topic_is_a_dead_letter_once(
    cluster: Cluster, admin: Admin, fresh: Callable[[str], str]
) -> None:
    """Its transaction was aborted at each restart."""
    source, target, failed = fresh("in"), fresh("out"), fresh("failed")
    for name, configs in ((source, None), (target, {"max.message.bytes": "1000"}), (failed, None)):
        await admin.topics.create(name, partitions=1, configs=configs)
    async with Producer(cluster.bootstrap_servers) as producer:
        for size in (10, 2_000, 20):
            await producer.send(source, b"%d" % size, b"key")

    async def handle(value: int, context: Context) -> None:
        await context.send(target, bytes(value), key=b"key")

    async with Processor(
        handle,
        source,
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=fresh("group"),
        processing_guarantee="exactly-once",
        transaction_interval_ms=50,
        dead_letter_topic=failed,
    ):
        written = await committed(cluster, target, 2)
        (letter,) = await committed(cluster, failed, 1)

    assert [len(record.value) for record in written] == [10, 20]
    assert letter.value == b"2000"
    assert (
        f"topic '{target}' takes no record of this size"
        in (dict(letter.headers)["dead-reason"] or b"").decode()
    )
