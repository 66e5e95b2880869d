"""Stores that are locked, full, gone or damaged: nothing is marked that is not."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerThread
from ottla.client.log_formats import facts_of
from ottla.protocol.topics import TopicPartition
from ottla.streams.dedupe import (
    Dedupe,
    DedupeMisconfigured,
    RedisStore,
    SqliteStore,
    StoreUnavailable,
    TopicStore,
)
from ottla.streams.dedupe.store import Scope
from ottla.streams.seams import Retry
from peers.dedupe_work import Clock, Member, SomeWork, until
from peers.redis import Redis, missing_redis

SCOPE = Scope("orders", 0)


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ottla.streams.dedupe")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock of a SQLite file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, object]]]:
    return [(line.getMessage(), facts_of(line)) for line in caplog.records]


async def test_a_locked_file_pauses_handling_with_one_line_and_resumes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "marks.db"
    async with Dedupe(SqliteStore(path, busy_timeout_ms=10)) as dedupe:
        member = Member(dedupe)
        await member.run(SomeWork(b"a"))

        with locked(path):
            first = asyncio.ensure_future(member.run(SomeWork(b"b", offset=1)))
            await until(lambda: "unavailable" in caplog.text)
            more = [asyncio.ensure_future(member.run(SomeWork(b"%d" % n, offset=n))) for n in range(2, 30)]
            await asyncio.sleep(0.3)
            assert member.effects.handled == [b"a", b"b"]
            assert not first.done()
        await asyncio.gather(first, *more)

        assert len(member.effects.handled) == 30
    assert lines(caplog) == [
        (
            "a dedupe store is unavailable",
            {
                "store": str(path), "reason": "database is locked",
                "consequence": "nothing more is handled",
            },
        ),
        ("a dedupe store is available again", {"store": str(path)}),
    ]  # fmt: skip


async def test_a_locked_file_does_not_block_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "marks.db"
    async with SqliteStore(path, busy_timeout_ms=500) as store:
        await store.mark(SCOPE, [b"a"])
        with locked(path):
            marking = asyncio.ensure_future(store.mark(SCOPE, [b"b"]))
            turns = 0
            while not marking.done():
                await asyncio.sleep(0)
                turns += 1
            with pytest.raises(StoreUnavailable, match="database is locked"):
                await marking

        assert turns > 100
        assert await store.seen(SCOPE, [b"a", b"b"]) == {b"a"}


async def test_a_full_file_marks_nothing_and_works_again_when_there_is_room(
    tmp_path: Path, clock: Clock
) -> None:
    async with SqliteStore(tmp_path / "marks.db", ttl_ms=1_000, max_bytes=40 * 4_096, clock=clock) as store:
        marked: list[bytes] = []
        with pytest.raises(StoreUnavailable, match="full"):
            for number in range(10_000):
                one = [b"%d-%d" % (number, n) for n in range(50)]
                await store.mark(SCOPE, one)
                marked += one

        assert await store.seen(SCOPE, marked) == set(marked)
        assert await store.seen(SCOPE, one) == set()

        clock.advance(1_000)
        await store.mark(SCOPE, one)
        assert await store.seen(SCOPE, [*marked, *one]) == set(one)


async def test_a_file_that_is_gone_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    path, aside = tmp_path / "marks.db", tmp_path / "aside.db"
    async with SqliteStore(path) as store:
        await store.mark(SCOPE, [b"a"])
    async with SqliteStore(path) as store:
        assert await store.seen(SCOPE, [b"a"]) == {b"a"}
        path.rename(aside)

        with pytest.raises(StoreUnavailable, match="the file is gone: put it back, or restart"):
            await store.mark(SCOPE, [b"b"])
        assert not path.exists()
        aside.rename(path)

        assert await store.seen(SCOPE, [b"a", b"b"]) == {b"a"}
        await store.mark(SCOPE, [b"b"])
        assert await store.seen(SCOPE, [b"a", b"b"]) == {b"a", b"b"}


async def test_a_damaged_file_is_reported_and_a_good_one_in_its_place_is_used(tmp_path: Path) -> None:
    path = tmp_path / "marks.db"
    path.write_bytes(b"this is no database, and long enough to be looked at" * 200)
    async with SqliteStore(path) as store:
        with pytest.raises(StoreUnavailable, match="file is not a database"):
            await store.seen(SCOPE, [b"a"])
        path.unlink()

        await store.mark(SCOPE, [b"a"])

        assert await store.seen(SCOPE, [b"a"]) == {b"a"}


async def test_a_folder_that_does_not_exist_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(
        DedupeMisconfigured, match=r"the folder of .*missing/marks\.db does not exist: make it"
    ):
        await SqliteStore(tmp_path / "missing" / "marks.db").__aenter__()
    with pytest.raises(DedupeMisconfigured, match="is a folder: name a file in it"):
        await SqliteStore(tmp_path).__aenter__()


MARKING = """
import asyncio, sys
from ottla.streams.dedupe import Scope, SqliteStore

async def main():
    async with SqliteStore(sys.argv[1]) as store:
        for number in range(1_000_000):
            await store.mark(Scope("orders", 0), [b"%d" % number])
            print(number, flush=True)

asyncio.run(main())
"""


def killed_while_it_marks(path: Path) -> list[bytes]:
    """Return the identities that a process reported as marked before it was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", MARKING, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(50)]
        process.kill()
        printed += process.stdout.read().splitlines()
    return [line.strip().encode() for line in printed]


async def test_a_crash_of_the_process_keeps_every_mark_that_was_acknowledged(tmp_path: Path) -> None:
    marked = await asyncio.to_thread(killed_while_it_marks, tmp_path / "marks.db")

    async with SqliteStore(tmp_path / "marks.db") as store:
        assert await store.seen(SCOPE, marked) == set(marked)


async def test_a_time_out_while_the_store_is_unavailable_is_no_failure_of_the_record(tmp_path: Path) -> None:
    path = tmp_path / "unmounted" / "marks.db"
    path.parent.mkdir()
    async with Dedupe(SqliteStore(path)) as dedupe:
        path.parent.rmdir()
        member, work = Member(dedupe), SomeWork(b"a")
        running = asyncio.ensure_future(member.guard.handler(work))
        await asyncio.sleep(0.2)
        running.cancel()
        await asyncio.wait([running])

        assert isinstance(member.guard.failures.decide(work, TimeoutError(), 0), Retry)
        assert member.failures.asked == []

        path.parent.mkdir()
        await member.run(work)
        assert member.effects.handled == [b"a"]


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Redis]:
    if (missing := missing_redis()) is not None:
        pytest.skip(missing)
    with Redis(tmp_path / "redis") as server:
        yield server


async def test_a_redis_that_is_killed_pauses_handling_and_comes_back_with_its_marks(
    own_redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with Dedupe(RedisStore(own_redis.url, name="shop")) as dedupe:
        member = Member(dedupe)
        await member.run(SomeWork(b"a"))
        own_redis.kill()

        first = asyncio.ensure_future(member.run(SomeWork(b"b", offset=1)))
        await until(lambda: "unavailable" in caplog.text)
        more = [asyncio.ensure_future(member.run(SomeWork(b"%d" % n, offset=n))) for n in range(2, 20)]
        await asyncio.sleep(0.3)
        assert len(member.effects.handled) == 2
        await asyncio.to_thread(own_redis.start)
        await asyncio.gather(first, *more)
        await member.run_all(SomeWork(b"a", offset=30), SomeWork(b"b", offset=31))

        assert len(member.effects.handled) == 20
    assert len(lines(caplog)) == 2
    assert lines(caplog)[0][1]["store"] == own_redis.url


async def test_a_redis_without_memory_marks_nothing(own_redis: Redis) -> None:
    async with RedisStore(own_redis.url, name="shop") as store:
        await store.mark(SCOPE, [b"a"])
        own_redis.command("CONFIG", "SET", "maxmemory", "1")

        with pytest.raises(StoreUnavailable, match="used memory > 'maxmemory'"):
            await store.mark(SCOPE, [b"b"])
        own_redis.command("CONFIG", "SET", "maxmemory", "0")

        assert await store.seen(SCOPE, [b"a", b"b"]) == {b"a"}


@pytest.mark.parametrize(
    "url",
    ["redis://anna:secret@shop:6379/1", "redis://shop:6379/1?username=anna&password=secret"],
)
async def test_a_password_is_not_in_messages(url: str) -> None:
    assert str(RedisStore(url, name="shop")) == "redis://shop:6379/1"


async def test_a_partition_that_is_given_up_takes_no_memory(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "broker", {"num.partitions": "2"}) as broker:
        store = TopicStore(broker.bootstrap_servers, name="shop")
        async with Dedupe(store) as dedupe:
            member = Member(dedupe)
            await member.run_all(SomeWork(b"a"), SomeWork(b"b", partition=1))
            assert store.remembered == 2

            member.guard.outputs.revoked(TopicPartition("orders", 0))
            assert store.remembered == 1
            await store.mark(Scope("orders", 0), [b"late"])
            assert store.remembered == 1

            await member.run_all(SomeWork(b"a", b"late", offset=1), SomeWork(b"b", partition=1, offset=1))
            assert set(member.effects.handled) == {b"a", b"b"}
            assert len(member.effects.handled) == 2


async def test_marks_of_a_topic_wait_for_a_broker_that_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with BrokerThread(tmp_path / "broker", {"num.partitions": "1"}) as broker:
        async with Dedupe(TopicStore(broker.bootstrap_servers, name="shop")) as dedupe:
            member = Member(dedupe)
            await member.run(SomeWork(b"a"))
            await asyncio.to_thread(broker.stop)

            second = asyncio.ensure_future(member.run(SomeWork(b"b", offset=1)))
            await until(lambda: "unavailable" in caplog.text)
            assert not second.done()
            await asyncio.to_thread(broker.start)
            await second
            await member.run_all(SomeWork(b"a", offset=2), SomeWork(b"b", offset=3))

            assert member.effects.handled == [b"a", b"b"]
