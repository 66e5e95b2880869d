"""Rows of global tables whose keys are in several partitions, with stores of the test."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from ottla.protocol.topics import TopicPartition
from ottla.streams.language.declarations import StoreKind, TableNode
from ottla.streams.language.serdes import serde_of
from ottla.streams.language.stores import StoreFactory, Tables
from ottla.streams.state.memory import MemoryStore
from ottla.streams.state.sqlite import SqliteStore
from ottla.streams.state.store import Contents, Entry, KeyedStore, row_of


class OwnStores:
    """Opens stores that the test fills."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._executor = ThreadPoolExecutor(1)
        self.stores: list[KeyedStore] = []

    async def open(self, kind: StoreKind, partition: TopicPartition, contents: Contents) -> KeyedStore:
        store: KeyedStore = MemoryStore(contents)
        if kind == "sqlite":
            path = self._folder / f"{partition.partition}.sqlite"
            store = file = SqliteStore(path, "id", self._executor, contents)
            await file.open()
        self.stores.append(store)
        return store

    async def close(self, partition: TopicPartition, store: KeyedStore) -> None:
        await store.close()

    def end(self) -> None:
        self._executor.shutdown()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OwnStores]:
    stores = OwnStores(tmp_path)
    yield stores
    stores.end()


@pytest.fixture(params=["memory", "sqlite"])
def names(request: pytest.FixtureRequest) -> TableNode:
    return TableNode("names", serde_of(bytes), serde_of(bytes), request.param, is_global=True)


async def row(tables: Tables, names: TableNode, key: bytes) -> bytes | None:
    found = tables.row(names, range(2), key)
    return found if found is None or isinstance(found, bytes) else await found


async def test_the_newest_row_wins_by_its_timestamp_and_then_by_when_it_was_read(
    opened: OwnStores, names: TableNode
) -> None:
    tables = Tables(cast("StoreFactory", opened))
    await tables.open(names, range(2))
    first, second = opened.stores

    await first.apply([(b"a", row_of(b"old", 1, 0)), (b"b", row_of(b"new", 9, 1))], 2)
    await second.apply([(b"a", row_of(b"new", 2, 2)), (b"b", row_of(b"old", 8, 3))], 2)
    await second.apply([(b"c", row_of(b"first", 5, 4))], 3)
    await first.apply([(b"c", row_of(b"second", 5, 5))], 3)

    assert [await row(tables, names, key) for key in (b"a", b"b", b"c", b"d")] == [
        b"new", b"new", b"second", None,
    ]  # fmt: skip
    await tables.close(names, range(2))


async def test_a_row_of_a_partition_replaces_the_one_before_even_with_an_older_timestamp(
    opened: OwnStores, names: TableNode
) -> None:
    """As a table of one partition has it, and as compaction leaves it."""
    tables = Tables(cast("StoreFactory", opened))
    await tables.open(names, range(2))

    await opened.stores[0].apply([(b"a", row_of(b"1", 9, 0))], 1)
    await opened.stores[0].apply([(b"a", row_of(b"2", 3, 1))], 2)

    assert await row(tables, names, b"a") == b"2"
    await tables.close(names, range(2))


async def test_a_tombstone_removes_the_older_rows_of_other_partitions_and_goes(
    opened: OwnStores, names: TableNode
) -> None:
    tables = Tables(cast("StoreFactory", opened))
    await tables.open(names, range(2))
    first, second = opened.stores
    await first.apply([(b"gone", row_of(b"old", 1, 0)), (b"back", row_of(b"new", 9, 1))], 2)
    await second.apply([(b"gone", row_of(None, 5, 2)), (b"back", row_of(None, 5, 3))], 2)
    before = [await row(tables, names, key) for key in (b"gone", b"back")]

    await tables.drop_tombstones(names, range(2))

    assert before == [None, b"new"]
    assert [await row(tables, names, key) for key in (b"gone", b"back")] == [None, b"new"]
    assert not await second.tombstones()
    assert await first.entries([b"gone", b"back"]) == {b"back": row_of(b"new", 9, 1)}
    await tables.close(names, range(2))


async def test_what_changed_meanwhile_is_not_removed(opened: OwnStores, names: TableNode) -> None:
    store = await opened.open(names.store, TopicPartition("names", 0), Contents.GLOBAL_TABLE)
    await store.apply([(b"a", row_of(None, 1, 0))], 1)
    dead = await store.tombstones()
    await store.apply([(b"a", row_of(b"again", 2, 1))], 2)

    await store.remove(dead)

    assert await store.get(b"a") == Entry(b"again", stamp=1, revision=2)
    await store.close()
