"""Stores in memory and SQLite: both do the same, and what is restored equals what was written."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.log_formats import facts_of
from ottla.streams.state.memory import MemoryStore
from ottla.streams.state.sqlite import SqliteStore
from ottla.streams.state.store import (
    STATE_HEADER,
    Contents,
    Entry,
    KeyedStore,
    StoreClosed,
    from_record,
    to_headers,
)

Log = list[tuple[bytes, Entry]]
Kind = Literal["memory", "sqlite"]

keys = st.sampled_from([b"a", b"b", b"c", b"d"])
values = st.none() | st.binary(max_size=3)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


async def made(kind: Kind, folder: Path, executor: ThreadPoolExecutor, identity: str = "1") -> KeyedStore:
    if kind == "memory":
        return MemoryStore()
    store = SqliteStore(folder / "0.sqlite", identity, executor)
    await store.open()
    return store


class Failures(logging.Handler):
    """Keeps the messages of state files, and says when there is one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.first = asyncio.Event()
        self.lines: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record)
        self.first.set()


@pytest.fixture
def failures() -> Iterator[Failures]:
    handler, logger = Failures(), logging.getLogger("ottla.streams.state.sqlite")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def told(failures: Failures) -> None:
    async with asyncio.timeout(30):
        await failures.first.wait()


async def restored(store: KeyedStore, log: Log) -> KeyedStore:
    start = store.checkpoint or 0
    await store.apply(log[start:], len(log))
    return store


async def contents(store: KeyedStore) -> dict[bytes, Entry | None]:
    return {key: await store.get(key) for key in (b"a", b"b", b"c", b"d")}


@given(
    st.sampled_from(["memory", "sqlite"]),
    st.lists(st.tuples(keys, values, st.integers(-1, 30), st.integers(0, 3)), max_size=30),
)
@settings(max_examples=60)
def test_what_is_restored_after_a_crash_equals_what_was_written(
    kind: Kind, writes: list[tuple[bytes, bytes | None, int, int]]
) -> None:
    async def check(folder: Path, executor: ThreadPoolExecutor) -> None:
        store, log = await made(kind, folder, executor), Log()
        for offset, (key, value, due_ms, returned) in enumerate(writes):
            entry = Entry(value, offset, 0, due_ms)
            log.append((key, entry))
            store.put(key, entry)
            if kind == "sqlite" and returned == 0:  # some of the changelog has come back
                await restored(store, log)
        before = await contents(store)
        due = set(await store.due(15, 100))
        await store.close()

        other = await restored(await made(kind, folder, executor), log)

        assert await contents(other) == before
        assert set(await other.due(15, 100)) == due
        assert due == {key for key, entry in before.items() if entry and 0 <= entry.due_ms <= 15}
        await other.close()

    with TemporaryDirectory() as folder, ThreadPoolExecutor(1) as executor:
        asyncio.run(check(Path(folder), executor))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_an_older_entry_of_the_changelog_replaces_nothing(
    kind: Kind, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    store = await made(kind, tmp_path, executor)
    log = [(b"a", Entry(b"new", 7, 1)), (b"a", Entry(b"old", 7, 0)), (b"b", Entry(b"late", 3))]

    await restored(store, log)

    assert await store.get(b"a") == Entry(b"new", 7, 1)
    assert await store.get(b"b") == Entry(b"late", 3)
    await store.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_tombstone_keeps_its_stamp_until_its_record_is_committed(
    kind: Kind, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    store = await made(kind, tmp_path, executor)
    await restored(store, [(b"a", Entry(None, 5)), (b"b", Entry(b"stays", 4))])

    await store.forget(5)
    at_first = await store.get(b"a")
    await store.forget(6)

    assert at_first == Entry(None, 5)
    assert await store.get(b"a") is None
    assert await store.get(b"b") == Entry(b"stays", 4)
    await store.close()


async def test_the_file_is_never_ahead_of_the_changelog(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    store = await made("sqlite", tmp_path, executor)
    await store.apply([(b"a", Entry(b"1", 1))], 1)
    store.put(b"a", Entry(b"2", 2))  # its transaction is aborted: it never comes back

    seen = await store.get(b"a")
    await store.close()
    other = await made("sqlite", tmp_path, executor)

    assert seen == Entry(b"2", 2)
    assert await other.get(b"a") == Entry(b"1", 1)
    assert other.checkpoint == 1
    await other.close()


async def test_a_file_of_another_log_is_emptied(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    store = await made("sqlite", tmp_path, executor)
    await store.apply([(b"a", Entry(b"1", 1))], 1)
    await store.close()

    other = await made("sqlite", tmp_path, executor, identity="2")

    assert (await other.get(b"a"), other.checkpoint) == (None, None)
    await other.close()


@pytest.mark.parametrize(("hours", "kept"), [(11, True), (13, False)])
async def test_a_file_that_was_closed_too_long_is_emptied(
    hours: int, kept: bool, tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    first = SqliteStore(tmp_path / "0.sqlite", "1", executor, clock=lambda: 1_000)
    await first.open()
    await first.apply([(b"a", Entry(b"1", 1))], 1)
    await first.close()

    second = SqliteStore(tmp_path / "0.sqlite", "1", executor, clock=lambda: 1_000 + hours * 3_600_000)
    await second.open()

    assert (await second.get(b"a") is not None, second.checkpoint) == (kept, 1 if kept else None)
    await second.close()


async def test_a_damaged_file_is_made_anew(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    (tmp_path / "0.sqlite").write_bytes(b"no database, whatever its name says" * 100)

    store = await made("sqlite", tmp_path, executor)

    assert store.checkpoint is None
    await store.close()


async def test_a_table_drops_removed_keys_at_once(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    table = SqliteStore(tmp_path / "table.sqlite", "1", executor, Contents.TABLE)
    await table.open()
    await table.apply([(b"a", Entry(b"1", 0)), (b"b", Entry(b"2", 1))], 2)
    before = await table.get(b"a")

    await table.apply([(b"a", Entry(None, 2)), (b"b", Entry(b"3", 3))], 4)

    assert before == Entry(b"1", 0)
    assert (await table.get(b"a") or Entry(None)).value is None
    assert await table.get(b"b") == Entry(b"3", 3)
    await table.close()


async def test_many_keys_are_read_at_once(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    names = [b"%d" % number for number in range(2_000)]
    store = await made("sqlite", tmp_path, executor)
    await store.apply([(name, Entry(name, at)) for at, name in enumerate(names)], len(names))
    await store.close()
    other = await made("sqlite", tmp_path, executor)

    found = await asyncio.gather(*(other.get(name) for name in names))

    assert [entry.value for entry in found if entry] == names
    await other.close()


async def test_while_the_file_is_locked_calls_wait_and_one_line_says_so(
    tmp_path: Path, executor: ThreadPoolExecutor, failures: Failures
) -> None:
    store = await made("sqlite", tmp_path, executor)
    other = sqlite3.connect(tmp_path / "0.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    writing = asyncio.create_task(store.apply([(b"a", Entry(b"1", 1))], 1))
    await told(failures)
    waits = not writing.done()
    other.execute("ROLLBACK")
    other.close()
    await asyncio.wait_for(writing, 30)

    assert waits
    (line,) = failures.lines
    assert line.getMessage() == "a state file does not work: records that need it wait until it does"
    assert facts_of(line) == {"file": str(tmp_path / "0.sqlite"), "reason": "database is locked"}
    await store.close()


async def test_calls_that_wait_for_a_locked_file_end_when_the_partition_goes(
    tmp_path: Path, executor: ThreadPoolExecutor, failures: Failures
) -> None:
    store = await made("sqlite", tmp_path, executor)
    other = sqlite3.connect(tmp_path / "0.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(store.apply([(b"a", Entry(b"1", 1))], 1))
    await told(failures)

    store.give_up()

    with pytest.raises(StoreClosed):
        await asyncio.wait_for(writing, 30)
    other.close()
    await store.close()


@given(values, st.integers(-1, 2**62), st.integers(0, 9), st.integers(-1, 2**62))
def test_an_entry_comes_back_from_its_record(
    value: bytes | None, stamp: int, revision: int, due_ms: int
) -> None:
    entry = Entry(value, stamp, revision, due_ms)

    assert from_record(value, to_headers(entry)) == entry


@pytest.mark.parametrize("data", [None, b"", b"123"])
def test_a_record_with_a_damaged_header_has_no_stamp(data: bytes | None) -> None:
    assert from_record(b"v", [(STATE_HEADER, data)]) == Entry(b"v")
