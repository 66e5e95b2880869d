"""Stores that are loaded from topics of a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from ottla.client.admin import LATEST, Admin
from ottla.client.config import ClientConfig
from ottla.consumer import ConsumerConfig
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from ottla.streams.state.entry import Entry, to_headers
from ottla.streams.state.memory import MemoryStore
from ottla.streams.state.sqlite import SqliteStore
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


async def write(servers: str, topic: str, entries: list[tuple[bytes, Entry]]) -> None:
    async with Producer(servers) as producer:
        for key, entry in entries:
            await producer.send(topic, entry.value, key, headers=to_headers(entry), partition=0)


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
        await reader.load(TopicPartition("followed", 0), table, follow=True, is_table=True)

        await write(servers, "followed", [(b"a", Entry(b"1")), (b"b", Entry(b"2")), (b"a", Entry(None))])
        await table.reached(3)

    assert await table.get(b"a") is None
    assert await table.get(b"b") == Entry(b"2", 1)
    await reader.drop(TopicPartition("followed", 0), table)


class _Told(MemoryStore):
    """A table that says how far it is."""

    def __init__(self) -> None:
        super().__init__(keeps_stamps=False)
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
