"""Files of state and of marks on a disk that is full: nothing counts as written that is not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.client.log_formats import facts_of
from ottla.streams.dedupe import SqliteStore as MarksStore
from ottla.streams.dedupe.errors import StoreUnavailable
from ottla.streams.dedupe.store import Scope
from ottla.streams.state.sqlite import SqliteStore
from ottla.streams.state.store import Entry
from peers.small_disk import SmallDisk, small_disk

SCOPE = Scope("orders", 0)
VALUE = bytes(10_000)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 4) as disk:
        yield disk


async def test_state_waits_for_room_on_a_full_disk(disk: SmallDisk, caplog: pytest.LogCaptureFixture) -> None:
    with ThreadPoolExecutor(1) as executor:
        store = SqliteStore(disk.folder / "0.sqlite", "id", executor)
        await store.open()
        await store.apply([(b"before", Entry(b"1", 0))], 1)
        disk.fill()
        with caplog.at_level(logging.ERROR, "ottla.streams.state.sqlite"):
            writing = asyncio.create_task(
                store.apply([(b"%d" % at, Entry(VALUE, at)) for at in range(1, 100)], 100)
            )
            async with asyncio.timeout(60):
                while not caplog.records:  # noqa: ASYNC110 - a line in a log is no event
                    await asyncio.sleep(0.01)
        waits, checkpoint = not writing.done(), store.checkpoint
        disk.free()
        async with asyncio.timeout(60):
            await writing

        assert (waits, checkpoint, store.checkpoint) == (True, 1, 100)
        assert len(caplog.records) == 1
        reason = facts_of(caplog.records[0])["reason"]
        assert "full" in reason or "disk" in reason
        await store.close()
        again = SqliteStore(disk.folder / "0.sqlite", "id", executor)
        await again.open()
        assert again.checkpoint == 100
        assert await again.get(b"99") == Entry(VALUE, 99)
        await again.close()


async def test_marks_on_a_full_disk_are_refused_and_none_counts(disk: SmallDisk) -> None:
    async with MarksStore(disk.folder / "marks.db") as store:
        await store.mark(SCOPE, [b"before"])
        disk.fill()
        many = [b"%d" % number for number in range(5_000)]

        with pytest.raises(StoreUnavailable, match=r"full|disk"):
            await store.mark(SCOPE, many)

        assert await store.seen(SCOPE, [b"before", *many]) == {b"before"}
        disk.free()
        await store.mark(SCOPE, many)
        assert await store.seen(SCOPE, many) == set(many)
