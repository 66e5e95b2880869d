"""Logs that change while they are cleaned, and the files that a stopped cleaning leaves."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

import pytest

from ottla.broker.config import LogConfig
from ottla.broker.log.compaction.cleaner import Cleaner
from ottla.broker.log.compaction.cleaner_testing import DIRECTORY, clean, fill, registry
from ottla.broker.log.files.fake_files import MemoryFiles
from ottla.broker.log.log import Log
from ottla.broker.log.retention import retention
from ottla.broker.log.retention.passes import LogPasses
from ottla.broker.log.state.outcomes import Compacted
from ottla.broker.log.testing import batch, commit, records_of, truncate_to
from ottla.broker.runtime.environment import Environment
from ottla.broker.runtime.loop_budget import LoopBudget
from ottla.protocol.storage.checkpoints import CLEANER_OFFSETS_FILE, decode_offset_checkpoint
from ottla.protocol.topics import TopicPartition

PARTITION = TopicPartition("compacted", 0)


def names(log: Log) -> list[str]:
    return [name for name in log.files.list(log.directory) if name.endswith((".cleaned", ".swap"))]


class Meddling(MemoryFiles):
    """A disk on which the loop does something once, before or after a cleaned segment gets its files."""

    def __init__(self, *, before_files: bool = False) -> None:
        super().__init__()
        self.act: Any = None
        self._before_files = before_files
        self._loop = asyncio.get_running_loop()

    def open(self, path: Path, *, create: bool = False) -> Any:
        meddles = path.name.endswith(".log.cleaned") and self.act is not None
        if meddles and self._before_files:
            self._meddle()
        opened = super().open(path, create=create)
        if meddles and not self._before_files:
            self._meddle()
        return opened

    def _meddle(self) -> None:
        act, self.act = self.act, None
        done = Event()

        def meddle() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(meddle)
        assert done.wait(60)


@pytest.mark.parametrize("before_files", [True, False])
@pytest.mark.parametrize("meddle", ["truncate", "delete", "recreate", "policy"])
async def test_a_log_that_changes_meanwhile_is_left_as_it_is(meddle: str, *, before_files: bool) -> None:
    files = Meddling(before_files=before_files)
    async with registry(files) as logs:
        log = logs.create(PARTITION)
        fill(log, 100)

        def act() -> None:
            if meddle == "truncate":
                truncate_to(log, 30)
            elif meddle == "policy":
                log.configure(LogConfig(segment_bytes=1_000))
            else:
                logs.delete(PARTITION)
                if meddle == "recreate":
                    fill(logs.create(PARTITION), 10)

        files.act = act
        cleaner = Cleaner(logs)
        await cleaner.clean_next(10_000)

        found = logs.get(PARTITION)
        assert log.cleaned_offset is None
        if found is None:
            return
        assert names(found) == []
        expected = {"truncate": 30, "recreate": 10, "policy": 100}[meddle]
        assert [one.offset for one in records_of(found)] == list(range(expected))


async def test_a_log_that_is_truncated_after_it_was_chosen_keeps_its_committed_records() -> None:
    async with registry() as logs:
        log = logs.create(PARTITION)
        log.append(batch(b"committed", keys=[b"solo"]), leader_epoch=0, now_ms=0)
        fill(log, 60)
        for number in range(100):  # others have their turn after a look at so many logs
            logs.create(TopicPartition("empty", number))

        def meddle() -> None:
            truncate_to(log, 30)
            commit(log)
            log.append(batch(b"not committed", keys=[b"solo"]), leader_epoch=9, now_ms=0)

        asyncio.get_running_loop().call_soon(meddle)
        await Cleaner(logs).clean_next(10_000)

        assert log.log_end_offset == 31
        truncate_to(log, log.high_watermark)
        assert [one.value for one in records_of(log) if one.key == b"solo"] == [b"committed"]
        assert names(log) == []


async def test_a_log_that_retention_empties_after_it_was_chosen_is_compacted_later() -> None:
    resting = Environment(budget=LoopBudget(background_ms=0))  # a turn of the loop before each log
    policies = ("compact", "delete")
    async with registry(environment=resting, log_cleanup_policy=policies, log_retention_ms=60_000) as logs:
        log = logs.create(PARTITION)
        fill(log, 60)
        logs.create(TopicPartition("empty", 0))
        cleaner, loop = Cleaner(logs), asyncio.get_running_loop()

        loop.call_soon(loop.call_soon, lambda: retention.expire(log, 10**9))  # behind the look at this log
        assert await cleaner.clean_next(10_000) == PARTITION

        assert records_of(log) == []
        assert cleaner.figures.uncleanable == {}
        fill(log, 60)
        assert await cleaner.clean_next(10_000) == PARTITION


class Renamed(MemoryFiles):
    """A disk on which something happens once on the loop, when a thread renames files of one segment."""

    def __init__(self) -> None:
        super().__init__()
        self.base_offset = -1
        self.act: Any = None

    def rename(self, source: Path, target: Path) -> None:
        if target.name.endswith(".swap") and int(target.name[:20]) == self.base_offset:
            self.base_offset = -1
            self.act()
        super().rename(source, target)


async def test_a_truncation_that_waits_for_the_last_exchange_lowers_the_cleaner_offset() -> None:
    files, loop = Renamed(), asyncio.get_running_loop()
    async with registry(files) as logs:
        log = logs.create(PARTITION)
        fill(log, 60)

        async def truncate() -> int:
            await log.truncation.idle()
            return await log.truncation.run_on_thread(log.truncation.begin(20))

        truncating = loop.create_future()
        files.act = lambda: loop.call_soon_threadsafe(
            lambda: truncating.set_result(asyncio.ensure_future(truncate()))
        )
        files.base_offset = log.segments[-2].base_offset
        await Cleaner(logs).clean_next(10_000)
        end = await (await truncating)

        assert end == log.log_end_offset <= 20
        assert log.cleaned_offset is not None
        assert log.cleaned_offset <= end
        written = decode_offset_checkpoint(files.read(DIRECTORY / CLEANER_OFFSETS_FILE))
        assert written[PARTITION] <= end


class Written(MemoryFiles):
    """A disk on which something happens once when the cleaner offsets are written."""

    def __init__(self) -> None:
        super().__init__()
        self.act: Any = None

    def rename(self, source: Path, target: Path) -> None:
        if target.name == CLEANER_OFFSETS_FILE and self.act is not None:
            act, self.act = self.act, None
            act()
        super().rename(source, target)


async def test_a_cleaner_offset_that_is_lowered_while_it_is_written_is_written_again() -> None:
    files = Written()
    async with registry(files) as logs:
        log = logs.create(PARTITION)
        fill(log, 60)
        log.apply(Compacted(52))
        directory = logs.log_directories.of(log)
        lowering = Thread(target=directory.write_lowered)

        def lower() -> None:
            log.apply(Compacted(20))
            lowering.start()
            lowering.join(0.1)

        files.act = lower
        directory.write_cleaner_offsets()
        lowering.join(10)

        assert decode_offset_checkpoint(files.read(DIRECTORY / CLEANER_OFFSETS_FILE)) == {PARTITION: 20}


async def test_a_cleaning_whose_segments_retention_takes_is_tried_again_later() -> None:
    files = Meddling()
    async with registry(files, log_cleanup_policy=("compact", "delete"), log_retention_ms=60_000) as logs:
        log = logs.create(PARTITION)
        fill(log, 100)
        files.act = lambda: retention.expire(log, 1_000 + 50 + 60_000)
        cleaner = Cleaner(logs)

        await cleaner.clean_next(10_000)

        assert 0 < log.log_start_offset < log.segments[-1].base_offset
        assert log.cleaned_offset is None
        assert names(log) == []
        assert await clean(logs) == 1
        assert cleaner.figures.uncleanable == {}


class Unlinking(Meddling):
    """A disk that knows which threads unlink the log files of cleaned segments."""

    def __init__(self) -> None:
        super().__init__()
        self.unlinked_by: list[Thread] = []

    def unlink(self, path: Path) -> None:
        if path.name.endswith(".log.cleaned"):
            self.unlinked_by.append(current_thread())
        super().unlink(path)


async def test_the_event_loop_does_not_unlink_what_a_stopped_cleaning_has_written() -> None:
    files = Unlinking()
    async with registry(files) as logs:
        log = logs.create(PARTITION)
        fill(log, 100)
        files.act = lambda: truncate_to(log, 30)

        await Cleaner(logs).clean_next(10_000)

        assert names(log) == []
        assert len(files.unlinked_by) == 1
        assert current_thread() not in files.unlinked_by


class FullLater(MemoryFiles):
    """A disk on which there is room for some cleaned segments only."""

    left = 2

    def open(self, path: Path, *, create: bool = False) -> Any:
        if create and path.name.endswith(".log.cleaned"):
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, create=create)


async def test_what_a_failed_cleaning_has_replaced_is_deleted() -> None:
    files = FullLater()
    async with registry(files) as logs:
        log = logs.create(PARTITION)
        fill(log, 100)

        await Cleaner(logs).clean_next(10_000)

        assert log.cleaned_offset is None
        assert await LogPasses(logs).delete_due(10_000) > 0
        assert not [name for name in files.list(log.directory) if name.endswith(".deleted")]


class WithoutDescriptors(MemoryFiles):
    """A disk that opens only some more offset indexes."""

    left = 1 << 30

    def open(self, path: Path, *, create: bool = False) -> Any:
        if path.suffix == ".index" and not create:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.EMFILE, "Too many open files")
        return super().open(path, create=create)


async def test_old_segments_that_cannot_be_opened_only_delay_a_cleaning() -> None:
    files = WithoutDescriptors()
    async with registry(files) as logs:
        log = logs.create(PARTITION)
        fill(log, 60)
        log.configure(log.config.with_overrides({"segment.bytes": "10000"}))  # all of them in one group
        before = records_of(log)
        for segment in log.segments.all[:-1]:
            segment.close()

        files.left = 2
        await Cleaner(logs).clean_next(10_000)

        assert files.left < 0
        files.left = 1 << 30
        assert records_of(log) == before
        assert log.segments.replacing is None
        assert [one for one in log.segments if one.is_pinned] == []
        assert names(log) == []
        assert await clean(logs) == 1
        assert truncate_to(log, 50) <= 50
