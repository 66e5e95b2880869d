"""Cleanings: the work on threads of the cleaner, and the event loop meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from threading import Event, current_thread

import pytest

from ottla.broker.config import LogConfig
from ottla.broker.log.compaction.cleaner import Cleaner
from ottla.broker.log.compaction.cleaner_testing import DIRECTORY, clean, fill, registry
from ottla.broker.log.compaction.offset_map import OffsetMap
from ottla.broker.log.files.fake_files import MemoryFile, MemoryFiles
from ottla.broker.runtime.threads import CleanerThreads
from ottla.protocol.topics import TopicPartition

PARTITION = TopicPartition("compacted", 0)
BOUND_S = 60.0


async def test_the_memory_of_the_offset_map_is_given_back_on_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released: list[str] = []

    class Noting(OffsetMap):
        def release(self) -> None:
            released.append(current_thread().name)
            super().release()

    monkeypatch.setattr("ottla.broker.log.compaction.offset_map.OffsetMap", Noting)
    async with registry() as logs:
        fill(logs.create(PARTITION), 100)
        assert await clean(logs) == 1

    assert [name.startswith("log-cleaner") for name in released] == [True]


class _ThreadsOfUnlinks(MemoryFiles):
    """Notes whether threads of the cleaner unlink cleaned segments."""

    def __init__(self) -> None:
        super().__init__()
        self.by_cleaner: list[bool] = []

    def unlink(self, path: Path) -> None:
        if path.name.endswith(".log.cleaned"):
            self.by_cleaner.append(current_thread().name.startswith("log-cleaner"))
        super().unlink(path)


async def test_copies_of_segments_that_lose_nothing_are_unlinked_on_a_thread() -> None:
    files = _ThreadsOfUnlinks()
    async with registry(files) as logs:
        fill(logs.create(PARTITION), 100, keys=100)

        assert await clean(logs) == 1

        assert files.by_cleaner
        assert all(files.by_cleaner)
        assert not [name for name in files.list(DIRECTORY / str(PARTITION)) if name.endswith(".cleaned")]


class _CreatedFiles(MemoryFiles):
    """Notes the kinds of the cleaned files that are made, and tells of each."""

    def __init__(self, made: Callable[[str], None]) -> None:
        super().__init__()
        self._made = made

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        opened = super().open(path, create=create)
        if create and path.name.endswith(".cleaned"):
            self._made(path.name.split(".")[1])
        return opened


async def test_the_event_loop_makes_no_file_of_a_cleaned_segment() -> None:
    made: list[tuple[str, str]] = []
    files = _CreatedFiles(lambda kind: made.append((kind, current_thread().name)))
    async with registry(files) as logs:
        fill(logs.create(PARTITION), 100)

        assert await clean(logs) == 1

    assert {kind for kind, _ in made} == {"log", "index", "timeindex"}
    assert all(name.startswith("log-cleaner") for _, name in made)


async def test_a_cleaning_that_is_stopped_while_it_makes_files_leaves_none() -> None:
    made: list[str] = []

    def stop(kind: str) -> None:
        made.append(kind)
        log.configure(LogConfig())  # compacted no more

    files = _CreatedFiles(stop)
    async with registry(files) as logs:
        log = logs.create(PARTITION)
        fill(log, 100)

        await Cleaner(logs).clean_next(10_000)

        assert made == ["log", "index", "timeindex"]
        assert not [name for name in files.list(log.directory) if name.endswith(".cleaned")]


async def test_a_wait_that_is_cancelled_twice_ends_with_the_work() -> None:
    threads, begun, goes_on = CleanerThreads(), Event(), Event()

    def work() -> None:
        begun.set()
        goes_on.wait(BOUND_S)

    waiting = asyncio.create_task(threads.run(work))
    await asyncio.to_thread(begun.wait, BOUND_S)
    for _ in range(3):
        waiting.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert threads.stopping.is_set()
    assert not waiting.done()

    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    threads.close()
