"""Stores that are loaded from topics of a real broker."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ottla.admin import LATEST, Admin
from ottla.broker.testing import BrokerProcess
from ottla.client.config import ClientConfig
from ottla.client.log_formats import facts_of
from ottla.consumer import ConsumerConfig
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from ottla.streams.state.memory import MemoryStore
from ottla.streams.state.sqlite import SqliteStore
from ottla.streams.state.store import Contents, Entry, StoreClosed, to_headers
from ottla.streams.state.topic_reader import TopicReader


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
async def admin(servers: str) -> AsyncIterator[Admin]:
    async with Admin(servers) as admin:
        yield admin


@pytest.fixture
async def reader(servers: str, admin: Admin) -> AsyncIterator[TopicReader]:
    config = ConsumerConfig(client=ClientConfig(bootstrap_servers=servers), group_id="never-joined")
    async with TopicReader(config, lambda some: admin.offsets.find(dict.fromkeys(some, LATEST))) as reader:
        yield reader


async def write(servers: str, topic: str, entries: list[tuple[bytes, Entry]], partition: int = 0) -> None:
    async with Producer(servers) as producer:
        for key, entry in entries:
            await producer.send(topic, entry.value, key, headers=to_headers(entry), partition=partition)


async def test_a_store_has_what_the_topic_had_when_loading_began(
    servers: str, admin: Admin, reader: TopicReader
) -> None:
    await admin.topics.create("loaded", partitions=1)
    await write(servers, "loaded", [(b"%d" % at, Entry(b"v", at)) for at in range(5_000)])
    store = MemoryStore()

    async with asyncio.timeout(60):
        await reader.load(TopicPartition("loaded", 0), store, follow=False)

    assert len(store) == 5_000
    assert await store.get(b"4999") == Entry(b"v", 4999)


async def test_an_empty_topic_is_loaded_at_once(admin: Admin, reader: TopicReader) -> None:
    await admin.topics.create("empty", partitions=1)

    async with asyncio.timeout(60):
        await reader.load(TopicPartition("empty", 0), MemoryStore(), follow=False)


async def test_a_file_goes_on_at_its_checkpoint(
    servers: str, admin: Admin, reader: TopicReader, tmp_path: Path
) -> None:
    await admin.topics.create("filed", partitions=1)
    partition = TopicPartition("filed", 0)
    await write(servers, "filed", [(b"a", Entry(b"1", 0)), (b"b", Entry(b"2", 1))])
    with ThreadPoolExecutor(1) as executor:
        first = SqliteStore(tmp_path / "0.sqlite", "id", executor)
        await first.open()
        async with asyncio.timeout(60):
            await reader.load(partition, first, follow=True)
        await reader.drop(partition, first)
        await first.close()
        await write(servers, "filed", [(b"a", Entry(b"3", 2))])

        second = SqliteStore(tmp_path / "0.sqlite", "id", executor)
        await second.open()
        resumed_at = second.checkpoint
        async with asyncio.timeout(60):
            await reader.load(partition, second, follow=True)

        assert resumed_at == 2
        assert second.checkpoint == 3
        assert await second.get(b"a") == Entry(b"3", 2)
        assert await second.get(b"b") == Entry(b"2", 1)
        await reader.drop(partition, second)
        await second.close()


async def test_a_file_that_is_ahead_of_its_topic_is_read_anew(
    servers: str, admin: Admin, reader: TopicReader, tmp_path: Path
) -> None:
    await admin.topics.create("shorter", partitions=1)
    await write(servers, "shorter", [(b"a", Entry(b"1", 0))])
    with ThreadPoolExecutor(1) as executor:
        store = SqliteStore(tmp_path / "0.sqlite", "id", executor)
        await store.open()
        await store.apply([(b"gone", Entry(b"x", 90))], 100)

        async with asyncio.timeout(60):
            await reader.load(TopicPartition("shorter", 0), store, follow=True)

        assert await store.get(b"gone") is None
        assert await store.get(b"a") == Entry(b"1", 0)
        await reader.drop(TopicPartition("shorter", 0), store)
        await store.close()


async def test_a_table_follows_its_topic(servers: str, admin: Admin, reader: TopicReader) -> None:
    await admin.topics.create("followed", partitions=1)
    table = _Told()
    async with asyncio.timeout(60):
        await reader.load(TopicPartition("followed", 0), table, Contents.TABLE, follow=True)

        await write(servers, "followed", [(b"a", Entry(b"1")), (b"b", Entry(b"2")), (b"a", Entry(None))])
        await table.reached(3)

    assert await table.get(b"a") is None
    assert await table.get(b"b") == Entry(b"2", 1)
    await reader.drop(TopicPartition("followed", 0), table)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a state file, as a backup or an inspection may."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def applied(store: SqliteStore, offset: int) -> None:
    async with asyncio.timeout(30):
        while (store.checkpoint or 0) < offset:  # noqa: ASYNC110 - a checkpoint is no event
            await asyncio.sleep(0.01)


async def test_a_locked_file_holds_up_no_other_and_catches_up(
    servers: str, admin: Admin, reader: TopicReader, tmp_path: Path
) -> None:
    await admin.topics.create("two-files", partitions=2)
    with ThreadPoolExecutor(1) as executor:
        stores = [SqliteStore(tmp_path / f"{at}.sqlite", "id", executor) for at in range(2)]
        for at, store in enumerate(stores):
            await store.open()
            async with asyncio.timeout(60):
                await reader.load(TopicPartition("two-files", at), store, follow=True)
        with locked(tmp_path / "0.sqlite"):
            for at in range(20):
                await write(servers, "two-files", [(b"k", Entry(b"%d" % at, at))], partition=0)
                await write(servers, "two-files", [(b"k", Entry(b"%d" % at, at))], partition=1)
                await applied(stores[1], at + 1)
            behind = stores[0].checkpoint
        await applied(stores[0], 20)

        assert behind is None
        assert await stores[0].get(b"k") == await stores[1].get(b"k") == Entry(b"19", 19)
        for at, store in enumerate(stores):
            await reader.drop(TopicPartition("two-files", at), store)
            await store.close()


async def test_a_reader_ends_while_a_file_is_locked(servers: str, admin: Admin, tmp_path: Path) -> None:
    await admin.topics.create("locked", partitions=1)
    config = ConsumerConfig(client=ClientConfig(bootstrap_servers=servers), group_id="never-joined")
    with ThreadPoolExecutor(1) as executor:
        store = SqliteStore(tmp_path / "0.sqlite", "id", executor)
        await store.open()
        with locked(tmp_path / "0.sqlite"):
            async with asyncio.timeout(60):
                async with TopicReader(
                    config, lambda some: admin.offsets.find(dict.fromkeys(some, LATEST))
                ) as reader:
                    await reader.load(TopicPartition("locked", 0), store, follow=True)
                    await write(servers, "locked", [(b"k", Entry(b"1", 0))])
                    await read_up_to(reader, TopicPartition("locked", 0), 1)
        await store.close()


async def read_up_to(reader: TopicReader, partition: TopicPartition, offset: int) -> None:
    """Wait until the reader has taken the records below an offset."""
    while await reader._consumer.position(partition) < offset:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


class _Told(MemoryStore):
    """A table that says how far it is."""

    def __init__(self) -> None:
        super().__init__(Contents.TABLE)
        self.moved = asyncio.Event()
        self.next_offset = 0

    async def apply(self, records: object, next_offset: int) -> None:
        await super().apply(records, next_offset)  # type: ignore[arg-type]
        self.next_offset = next_offset
        self.moved.set()

    async def reached(self, offset: int) -> None:
        while self.next_offset < offset:
            await self.moved.wait()
            self.moved.clear()


def damage(path: Path) -> None:
    """Overwrite all pages of a SQLite file but the first few, which have the header and the facts."""
    with path.open("r+b") as file:
        file.seek(8 * 4_096)
        left = path.stat().st_size - file.tell()
        assert left > 20 * 4_096
        file.write(b"\x5a" * left)


@pytest.mark.parametrize("contents", [Contents.STATE, Contents.TABLE])
async def test_a_file_that_is_damaged_behind_its_header_is_rebuilt_from_its_topic(
    servers: str,
    admin: Admin,
    reader: TopicReader,
    tmp_path: Path,
    contents: Contents,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = f"damaged-{contents.name}"
    partition, path, rows = TopicPartition(topic, 0), tmp_path / "0.sqlite", 2_000
    await admin.topics.create(topic, partitions=1)
    await write(servers, topic, [(b"%d" % at, Entry(b"v" * 200, at)) for at in range(rows)])
    with ThreadPoolExecutor(1) as executor:
        before = SqliteStore(path, "id", executor, contents)
        await before.open()
        async with asyncio.timeout(60):
            await reader.load(partition, before, contents, follow=True)
        await reader.drop(partition, before)
        await before.close()
        damage(path)

        store = SqliteStore(path, "id", executor, contents)
        await store.open()
        async with asyncio.timeout(60):
            await reader.load(partition, store, contents, follow=True)
            found = await asyncio.gather(*(store.get(b"%d" % at) for at in range(rows)))
            await write(servers, topic, [(b"later", Entry(b"1", rows))])
            while await store.get(b"later") is None:
                await asyncio.sleep(0.01)
                store._cache.clear()
        await reader.drop(partition, store)
        await store.close()

    assert [None if entry is None else entry.value for entry in found] == [b"v" * 200] * rows
    (line,) = (line for line in caplog.records if "a state file is damaged" in line.getMessage())
    assert facts_of(line) == {"file": str(path), "reason": "database disk image is malformed"}


async def test_a_damaged_file_is_rebuilt_when_writing_meets_the_damage(
    servers: str, admin: Admin, reader: TopicReader, tmp_path: Path
) -> None:
    partition, path, rows = TopicPartition("damaged-later", 0), tmp_path / "0.sqlite", 2_000
    await admin.topics.create(partition.topic, partitions=1)
    await write(servers, partition.topic, [(b"%d" % at, Entry(b"v" * 200, at)) for at in range(rows)])
    with ThreadPoolExecutor(1) as executor:
        before = SqliteStore(path, "id", executor)
        await before.open()
        async with asyncio.timeout(60):
            await reader.load(partition, before, follow=True)
        await reader.drop(partition, before)
        await before.close()
        damage(path)
        # What is written while nothing reads meets the damage in the load.
        await write(servers, partition.topic, [(b"%d" % at, Entry(b"w", rows + at)) for at in range(rows)])

        store = SqliteStore(path, "id", executor)
        await store.open()
        async with asyncio.timeout(60):
            await reader.load(partition, store, follow=True)
            found = await asyncio.gather(*(store.get(b"%d" % at) for at in range(rows)))
        await reader.drop(partition, store)
        await store.close()

    assert [None if entry is None else entry.value for entry in found] == [b"w"] * rows


async def test_a_store_that_is_dropped_while_it_is_rebuilt_stays_closed(
    servers: str, admin: Admin, reader: TopicReader, tmp_path: Path
) -> None:
    partition, path, rows = TopicPartition("dropped-damaged", 0), tmp_path / "0.sqlite", 2_000
    await admin.topics.create(partition.topic, partitions=1)
    await write(servers, partition.topic, [(b"%d" % at, Entry(b"v" * 200, at)) for at in range(rows)])
    with ThreadPoolExecutor(1) as executor:
        before = SqliteStore(path, "id", executor)
        await before.open()
        async with asyncio.timeout(60):
            await reader.load(partition, before, follow=True)
        await reader.drop(partition, before)
        await before.close()
        damage(path)
        store = SqliteStore(path, "id", executor)
        await store.open()
        async with asyncio.timeout(60):
            await reader.load(partition, store, follow=True)
            reads = [asyncio.create_task(store.get(b"%d" % at)) for at in range(rows)]
            while store._is_whole.is_set():  # noqa: ASYNC110 - until one of them meets the damage
                await asyncio.sleep(0.001)
            await reader.drop(partition, store)
            await store.close()
            found = await asyncio.gather(*reads, return_exceptions=True)

    entries = [read for read in found if not isinstance(read, BaseException)]
    assert all(isinstance(read, StoreClosed) for read in found if isinstance(read, BaseException))
    assert len(entries) < rows
    assert all(entry is not None and entry.value == b"v" * 200 for entry in entries)
