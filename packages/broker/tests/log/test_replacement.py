"""Replacing segments: power lost at any step leaves all old or all new ones.

`CRASH_STATES` says how many states are made: one of each kind of loss at each step for every 300.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from ottla.broker.config import LogConfig
from ottla.broker.log.append.log_end import LogEnd
from ottla.broker.log.files.fake_files import Loss, MemoryFiles, PowerLoss
from ottla.broker.log.files.file_system import DiskFiles, Files
from ottla.broker.log.log import Log
from ottla.broker.log.recovery.recovery import open_log
from ottla.broker.log.retention import retention
from ottla.broker.log.segments.segment import Segment
from ottla.broker.log.segments.segments import SegmentsChanged
from ottla.broker.log.state.outcomes import ReplacementSettled
from ottla.broker.log.testing import (
    PARTITION,
    begin_replace,
    commit,
    idempotent,
    records_of,
    replace_segments,
    truncate_to,
)
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.records import BatchHeader, read_header, read_headers
from ottla.protocol.storage.indexes import AbortedTransaction
from ottla.protocol.storage.segments import CLEANED_SUFFIX, SegmentFile, parse_file_name

DIRECTORY = Path("/logs/topic-0")
CONFIG = LogConfig(
    cleanup_policy=("compact",), segment_bytes=250, index_interval_bytes=100, segment_index_bytes=400
)
STATES_OF_A_STEP = max(1, int(os.environ.get("CRASH_STATES", "300")) // 300)

State = tuple[list[bytes], list[AbortedTransaction]]


@dataclass(frozen=True)
class Cleaning:
    """Which old segments are replaced, and into how many they are written."""

    old: int
    bases: tuple[int, ...]
    """Places of the old segments at whose base offsets the new ones begin."""
    step: int
    """Every how many batches one is kept."""
    keeps_aborted: bool = True
    """Whether the first new segment has an index of aborted transactions."""


CLEANINGS = (
    Cleaning(3, (0,), 3),
    Cleaning(1, (0,), 2),
    Cleaning(3, (0,), 3, keeps_aborted=False),
    Cleaning(1, (0,), 2, keeps_aborted=False),
    Cleaning(4, (0, 2), 4),
    Cleaning(4, (0, 2), 4, keeps_aborted=False),
    Cleaning(5, (0, 2, 3), 2),
)


def opened(files: Files, directory: Path = DIRECTORY, recovery_point: int = 0) -> Log:
    return open_log(files, directory, PARTITION, CONFIG, clean=False, recovery_point=recovery_point)


def filled(files: Files, directory: Path = DIRECTORY) -> Log:
    """A flushed log of many segments; the first one has an aborted transaction."""
    files.make_dirs(directory.parent)
    files.sync_dir(directory.parent.parent)
    log = open_log(files, directory, PARTITION, CONFIG, clean=True, is_new=True)
    for sequence in range(16):
        keys = [b"k%d" % (sequence % 5)]
        data = idempotent(sequence, keys=keys, timestamp_ms=1_000 + sequence)
        log.append(data, leader_epoch=sequence // 8, now_ms=0)
        if sequence == 2:
            log.segments[-1].transactions.append(AbortedTransaction(9, 0, sequence, sequence + 1))
    log.flush()
    commit(log)
    return log


def batches_in(segments: Sequence[Segment]) -> list[bytes]:
    found = []
    for segment in segments:
        data = segment.file.pread(segment.size, 0)
        found += [data[one.position : one.position + one.size_in_bytes] for one in read_headers(data)]
    return found


def state_of(log: Log) -> State:
    return batches_in(log.segments.all), [one for each in log.segments for one in each.transactions.entries]


def cleaned(log: Log, how: Cleaning) -> list[Segment]:
    """Write cleaned segments beside the old ones: every so many batches, and the last one."""
    old = log.segments.all[: how.old]
    kept = [one for at, one in enumerate(batches_in(old)) if at % how.step == 0 or at == count_of(old) - 1]
    bases = [old[place].base_offset for place in how.bases]
    new = []
    for base, following in itertools.pairwise([*bases, log.log_end_offset]):
        segment = Segment(log.files, log.directory, base, suffix=CLEANED_SUFFIX)
        segment.create()
        segment.activate(400, keep=False)
        log_end = LogEnd(segment, base, 0)
        log_end.limit(CONFIG, 0)
        for batch in kept:
            header: BatchHeader = read_header(batch)
            if base <= header.base_offset < following:
                log_end.append(batch, header.next_offset, header.max_timestamp, header.last_offset, 0)
        log_end.seal()
        segment.close()
        new.append(segment)
    if how.keeps_aborted:
        new[0].transactions.append(AbortedTransaction(11, 0, 1, 2))
        new[0].transactions.close()
    return new


def count_of(segments: Sequence[Segment]) -> int:
    return len(batches_in(segments))


def states_around(how: Cleaning) -> tuple[State, State]:
    """The batches of a log before and after the replacement."""
    log = filled(MemoryFiles())
    before = state_of(log)
    replace_segments(log, log.segments.all[: how.old], cleaned(log, how))
    return before, state_of(log)


def check(disk: MemoryFiles, states: tuple[State, State], chance: Random) -> int:
    """Recover a disk, sometimes interrupted by another loss of power; says which state was found."""
    for _ in range(chance.choice((0, 1, 1, 2))):
        disk.fail_after(chance.randrange(25), chance)
        try:
            opened(disk, recovery_point=16)
        except PowerLoss:
            pass
        else:
            disk.fail_after(1 << 60, chance)
        disk = disk.crash(chance)
    log = opened(disk, recovery_point=16)
    found = state_of(log)
    assert found in states
    names = [one for one in map(parse_file_name, disk.list(DIRECTORY)) if one is not None]
    assert not [one for one in names if one.suffix]
    for segment in log.segments:
        for header in read_headers(segment.file.pread(segment.size, 0)):
            located = segment.locate(header.base_offset)
            assert located is not None
            assert located.position == header.position
    assert [one.offset for one in records_of(log)] == [read_header(one).base_offset for one in found[0]]
    again = opened(disk.crash(Random(1)), recovery_point=16)
    assert state_of(again) == found
    return states.index(found)


@pytest.mark.parametrize("how", CLEANINGS)
def test_power_lost_at_any_step_leaves_all_old_or_all_new_segments(how: Cleaning) -> None:
    states = states_around(how)
    assert len(states[0][0]) > len(states[1][0])
    found: list[int] = []
    for steps in itertools.count():
        files = MemoryFiles()
        log = filled(files)
        new = cleaned(log, how)
        files.fail_after(steps, Random(steps))
        try:
            replace_segments(log, log.segments.all[: how.old], new)
            is_complete = True
        except PowerLoss:
            is_complete = False
        for loss, number in itertools.product(Loss, range(STATES_OF_A_STEP)):
            chance = Random(f"{steps} {loss} {number}")
            try:
                side = check(files.crash(chance, loss), states, chance)
            except BaseException as error:
                error.add_note(f"step {steps}, {loss}, state {number}")
                raise
            assert side == 1 or not is_complete
            found.append(side)
        if is_complete:
            break
    assert set(found) == {0, 1}


@pytest.mark.parametrize("how", CLEANINGS)
def test_a_log_reads_and_appends_after_a_replacement(tmp_path: Path, how: Cleaning) -> None:
    before, after = states_around(how)
    log = filled(DiskFiles(), tmp_path / "topic-0")
    assert state_of(log) == before

    paths = replace_segments(log, log.segments.all[: how.old], cleaned(log, how))

    assert state_of(log) == after
    assert all(path.name.endswith(".deleted") and path.exists() for path in paths)
    log.append(idempotent(16, keys=[b"new"]), leader_epoch=1, now_ms=0)
    assert [one.offset for one in records_of(log)][-2:] == [15, 16]
    log.close()
    again = opened(DiskFiles(), tmp_path / "topic-0", 17)
    assert state_of(again)[0][:-1] == after[0]
    again.close()


class FailingRenames(DiskFiles):
    """A disk on which no file gets the suffix `.deleted` while `failing` is set."""

    failing = False

    def rename(self, source: Path, target: Path) -> None:
        if self.failing and target.suffix == ".deleted":
            raise OSError(errno.EIO, "Input/output error")
        super().rename(source, target)


def test_a_log_whose_replacement_failed_can_be_closed_and_opened_again(tmp_path: Path) -> None:
    files = FailingRenames()
    log = filled(files, tmp_path / "topic-0")
    before = state_of(log)
    new = cleaned(log, CLEANINGS[0])
    files.failing = True

    with pytest.raises(OSError, match="Input/output error") as failure:
        replace_segments(log, log.segments.all[:3], new)
    log.fail(failure.value)

    assert log.segments.replacing is None
    assert state_of(log) == before
    log.close()
    files.failing = False
    again = opened(DiskFiles(), tmp_path / "topic-0")
    assert len(batches_in(again.segments.all)) < len(before[0])
    again.close()


async def test_old_segments_are_read_until_the_new_ones_take_their_place(tmp_path: Path) -> None:
    how = CLEANINGS[0]
    log = filled(DiskFiles(), tmp_path / "topic-0")
    before = state_of(log)
    held = log.read(0, 10_000, up_to=16)
    first = held.read()

    plan = begin_replace(log, log.segments.all[:3], cleaned(log, how))
    await asyncio.to_thread(plan.run)

    for segment in log.segments:  # more than stay open: the old ones are not closed for them
        log.segments.opening(segment)
        assert segment.file.size() >= 0
    assert state_of(log) == before
    assert [one.last_modified_ms > 0 for one in log.segments.all[:3]] == [True] * 3
    assert log.offset_for_timestamp(1_001) == (1_001, 1)
    assert retention.expire(log, 10**15) == []
    with pytest.raises(KafkaStorageError, match="are being changed"):
        truncate_to(log, 12)
    with pytest.raises(KafkaStorageError, match="are being changed"):
        log.close()
    with pytest.raises(ValueError, match="cannot be replaced now"):
        begin_replace(log, log.segments.all[:1], [])

    log.apply(ReplacementSettled(plan))

    assert held.read() == first
    assert len(batches_in(log.segments.all)) < len(before[0])
    log.close()


def test_a_segment_whose_indexes_are_built_anew_is_not_replaced_meanwhile() -> None:
    log = filled(MemoryFiles())
    new = cleaned(log, CLEANINGS[0])
    log.segments[1].pin()

    with pytest.raises(SegmentsChanged, match="cannot be replaced now"):
        begin_replace(log, log.segments.all[:3], new)

    assert [one.is_pinned for one in log.segments.all[:3]] == [False, True, False]
    log.segments[1].unpin()
    replace_segments(log, log.segments.all[:3], new)


@pytest.mark.parametrize("ends", [True, False])
async def test_a_truncation_or_deletion_waits_for_the_exchange_of_segments(ends: bool) -> None:
    log = filled(MemoryFiles())
    plan = begin_replace(log, log.segments.all[:3], cleaned(log, CLEANINGS[0]))
    waiting = asyncio.ensure_future(log.truncation.idle())
    await asyncio.sleep(0)
    assert not waiting.done()

    if ends:
        plan.run()
    log.apply(ReplacementSettled(plan))

    async with asyncio.timeout(10):
        await waiting


def test_segments_that_cannot_stand_for_the_old_ones_are_refused() -> None:
    log = filled(MemoryFiles())
    old = log.segments.all[:3]
    new = cleaned(log, CLEANINGS[0])

    for wrong_old, wrong_new in (
        (old, []),
        ([], new),
        (old[1:], new),
        ([old[0], old[2]], new),
        (log.segments.all, new),
        (old[:1], new),
        (log.segments.all[:5], new),
    ):
        with pytest.raises(ValueError, match=r"segments|replaced"):
            replace_segments(log, wrong_old, wrong_new)

    assert log.segments.replacing is None
    assert [one.path(SegmentFile.LOG).name.endswith(CLEANED_SUFFIX) for one in new] == [True]
