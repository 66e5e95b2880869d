from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from ottla.broker.log.files.fake_files import Loss, MemoryFiles
from ottla.broker.log.log import AppendOrigin, Log
from ottla.broker.log.testing import append, batch, commit, idempotent, log_in, records_of, truncate_to
from ottla.protocol.records import ControlType, end_transaction_marker, read_headers
from ottla.protocol.records.legacy import LegacyRecord, encode_set
from ottla.protocol.storage.segments import SegmentFile, file_name

AT = Path("/data")
DIRECTORY = AT / "topic-0"


def written(files: MemoryFiles, count: int = 6, *, close: bool = False, **settings: Any) -> Log:
    log = log_in(AT, files, **settings)
    for number in range(count):
        append(log, b"value %d" % number * 8, leader_epoch=number // 3, timestamp_ms=1_000 + number)
    if close:
        log.close()
    return log


def reopened(files: MemoryFiles, *, clean: bool = False, **settings: Any) -> Log:
    """Open what the process left behind, on a copy."""
    return log_in(AT, files.crash(Random(0), Loss.KEPT), clean=clean, **settings)


class Listed(MemoryFiles):
    """Counts how often directories are listed."""

    listed = 0

    def list(self, path: Path) -> list[str]:
        self.listed += 1
        return super().list(path)


def test_the_first_log_in_a_new_directory_is_not_searched_for_files() -> None:
    files = Listed()

    log = log_in(AT, files)

    assert files.listed == 0
    assert files.list(DIRECTORY) == [
        file_name(0, kind) for kind in (SegmentFile.OFFSET_INDEX, SegmentFile.LOG, SegmentFile.TIME_INDEX)
    ]
    assert (log.log_start_offset, log.log_end_offset, append(log, b"value")) == (0, 0, 0)
    assert [one.value for one in records_of(reopened(files))] == [b"value"]


def test_a_clean_stop_and_start_keeps_everything_without_reading_it() -> None:
    files = MemoryFiles()
    log = log_in(AT, files, segment_bytes=300)
    for sequence in range(9):
        log.append(idempotent(sequence), leader_epoch=sequence // 4, now_ms=0)
    log.close()

    again = reopened(files, clean=True, segment_bytes=300)

    assert again.log_end_offset == again.recovery_point == 9
    assert again.leader_epochs.entries == log.leader_epochs.entries
    assert again.append(idempotent(8), leader_epoch=2, now_ms=0).duplicate
    assert again.append(idempotent(9), leader_epoch=2, now_ms=0).base_offset == 9


def test_every_flipped_byte_of_a_segment_is_found_or_harmless() -> None:
    files = MemoryFiles()
    log = written(files, 5)
    path, size = log.segments[0].path(SegmentFile.LOG), log.segments[0].size
    original = files.read(path)
    ends = [one.position + one.size_in_bytes for one in read_headers(original)]
    harmless = 0

    for position in range(size):
        changed = bytearray(original)
        changed[position] ^= 0x41
        fresh = MemoryFiles()
        fresh.make_dirs(DIRECTORY)
        fresh.open(path, create=True).pwrite(changed, 0)
        found = reopened(fresh)
        values = [one.value for one in records_of(found)] if found.log_end_offset else []
        whole = sum(1 for end in ends if end <= position)
        if len(values) == 5:
            harmless += 1  # the leader epoch is covered by no checksum, nor does it change a record
            at = position - (ends[whole - 1] if whole else 0)
            # Nor is the offset; where the last batch got a larger one, no batch behind it shows that.
            assert at in range(12, 16) or (whole == 4 and at in range(4, 8))
        else:
            assert len(values) == whole, f"byte {position}"
        assert values == [b"value %d" % number * 8 for number in range(len(values))]

    assert harmless <= 4 * 5 + 4


@pytest.mark.parametrize("tail", [bytes(1), bytes(61), bytes(5_000), b"\xff" * 100, b"garbage" * 9])
def test_a_tail_of_zeros_or_garbage_is_cut_off(tail: bytes) -> None:
    files = MemoryFiles()
    log = written(files)
    segment = log.segments[0]
    segment.file.pwrite(tail, segment.size)

    again = reopened(files)

    assert again.log_end_offset == 6
    assert again.files.size(segment.path(SegmentFile.LOG)) == segment.size
    assert append(again, b"more") == 6


def test_segments_behind_a_torn_one_are_deleted() -> None:
    files = MemoryFiles()
    log = written(files, 9, segment_bytes=300)
    assert len(log.segments) > 3
    second = log.segments[1]
    second.file.truncate(second.size - 1)

    again = reopened(files, segment_bytes=300)

    assert again.log_end_offset == log.segments[2].base_offset - 1
    assert [one.value for one in records_of(again)] == [
        b"value %d" % number * 8 for number in range(again.log_end_offset)
    ]


def test_a_missing_segment_in_between_ends_the_log() -> None:
    files = MemoryFiles()
    log = written(files, 9, segment_bytes=400)
    files.unlink(log.segments[1].path(SegmentFile.LOG))

    assert reopened(files, segment_bytes=400).log_end_offset == log.segments[1].base_offset


OFFSETS_OF_A_COPY = (0, 5, 9, 10, 11, 30, 31, 40)


def copied(files: MemoryFiles, **settings: Any) -> Log:
    """A log whose leader was compacted: a new replica has copied what that had left."""
    log = log_in(AT, files, cleanup_policy=("compact",), **settings)
    for offset in OFFSETS_OF_A_COPY:
        data = batch(b"value", keys=[b"key %d" % offset], base_offset=offset, partition_leader_epoch=0)
        log.append_as_follower(data, now_ms=1_000)
    commit(log)
    return log


@pytest.mark.parametrize("recovery_point", [0, 6, 11, 32, 41])
@pytest.mark.parametrize("segment_bytes", [100, 300, 1 << 20])
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_gaps_that_compaction_has_left_stay_whatever_the_policy_is_now(
    policy: str, segment_bytes: int, recovery_point: int
) -> None:
    files = MemoryFiles()
    copied(files, segment_bytes=segment_bytes)

    again = reopened(
        files, recovery_point=recovery_point, segment_bytes=segment_bytes, cleanup_policy=(policy,)
    )

    assert again.log_end_offset == 41
    assert tuple(one.offset for one in records_of(again)) == OFFSETS_OF_A_COPY


@pytest.mark.parametrize(
    ("recovery_point", "left"),
    [(6, [0, 5]), (9, [0, 5]), (10, [0, 5, 10, 11, 30, 31, 40])],
)
def test_a_missing_segment_ends_a_log_that_was_compacted_once_unless_all_before_the_next_was_flushed(
    recovery_point: int, left: list[int]
) -> None:
    files = MemoryFiles()
    log = copied(files, segment_bytes=100)
    assert [one.base_offset for one in log.segments][:4] == [0, 1, 6, 10]
    files.unlink(log.segments[2].path(SegmentFile.LOG))

    again = reopened(files, recovery_point=recovery_point, segment_bytes=100)

    assert [one.offset for one in records_of(again)] == left


def test_a_batch_with_a_damaged_offset_ends_a_log_without_gaps() -> None:
    files = MemoryFiles()
    log = written(files, 5)
    third = read_headers(log.segments[0].file.pread(log.segments[0].size, 0))[2]
    log.segments[0].file.pwrite((77).to_bytes(8, "big"), third.position)

    assert reopened(files).log_end_offset == 2


@pytest.mark.parametrize("kind", [SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX])
@pytest.mark.parametrize("damage", ["missing", "torn", "zeros", "garbage"])
@pytest.mark.parametrize("clean", [True, False])
def test_damaged_indexes_are_rebuilt(kind: SegmentFile, damage: str, clean: bool) -> None:
    files = MemoryFiles()
    settings = {"segment_bytes": 2_000, "index_interval_bytes": 100}
    log = written(files, 60, close=True, **settings)
    for segment in log.segments:
        path = segment.path(kind)
        if damage == "missing":
            files.unlink(path)
        elif damage == "torn":
            files.open(path).truncate(files.size(path) // 2 | 1)
        else:
            size = files.size(path)
            files.open(path).pwrite(bytes(size) if damage == "zeros" else b"\x7f" * size, 0)

    again = reopened(files, clean=clean, **settings)

    assert again.log_end_offset == 60
    for offset in range(60):
        assert records_of(again, offset)[0].offset == offset
        assert again.offset_for_timestamp(1_000 + offset) == (1_000 + offset, offset)


@pytest.mark.parametrize("content", [b"", b"0\n1\n3 0", b"0\n2\n0 0\n", b"\0\0\0", b"0\n1\nx y\n"])
def test_a_damaged_leader_epoch_file_is_rebuilt_from_the_log(content: bytes) -> None:
    files = MemoryFiles()
    log = written(files, close=True)
    file = files.open(DIRECTORY / "leader-epoch-checkpoint")
    file.truncate(0)
    file.pwrite(content, 0)

    assert reopened(files, clean=True).leader_epochs.entries == log.leader_epochs.entries


def test_damaged_snapshots_are_ignored() -> None:
    files = MemoryFiles()
    log = log_in(AT, files, segment_bytes=300)
    for sequence in range(9):
        log.append(idempotent(sequence), leader_epoch=0, now_ms=0)
    log.close()
    for name in files.list(DIRECTORY):
        if name.endswith(".snapshot"):
            files.open(DIRECTORY / name).pwrite(b"\xff", 12)

    again = reopened(files, clean=True, segment_bytes=300)

    assert again.append(idempotent(9), leader_epoch=0, now_ms=0).base_offset == 9


def test_leftovers_and_unfinished_compactions_are_deleted() -> None:
    files = MemoryFiles()
    written(files, close=True)
    for name in (
        f"{0:020d}.log.cleaned", f"{0:020d}.index.cleaned", f"{0:020d}.log.swap", f"{5:020d}.log.deleted",
        f"{77:020d}.index", f"{77:020d}.timeindex",
    ):  # fmt: skip
        files.open(DIRECTORY / name, create=True)

    again = reopened(files, clean=True)

    assert again.log_end_offset == 6
    names = again.files.list(DIRECTORY)
    assert not [name for name in names if name.endswith(("cleaned", "swap", "deleted"))]
    assert f"{77:020d}.index" not in names


def test_a_finished_swap_takes_the_place_of_the_segments_it_covers() -> None:
    files = MemoryFiles()
    log = written(files, 6, close=True, segment_bytes=150)
    assert len(log.segments) == 6
    first, third = (log.segments[number].file.pread(1000, 0) for number in (0, 2))
    swap = files.open(DIRECTORY / file_name(0, SegmentFile.LOG, ".swap"), create=True)
    swap.pwrite(first + third, 0)  # the second was compacted away

    again = reopened(files, clean=True, segment_bytes=150)

    assert [one.base_offset for one in again.segments] == [0, 3, 4, 5]
    assert [one.offset for one in records_of(again)] == [0, 2, 3, 4, 5]


def test_old_formats_are_read_and_followed() -> None:
    files = MemoryFiles()
    files.make_dirs(DIRECTORY)
    old = b"".join(encode_set([LegacyRecord(number, 5_000 + number, None, b"old")], 1) for number in range(3))
    files.open(DIRECTORY / file_name(0, SegmentFile.LOG), create=True).pwrite(old, 0)

    log = reopened(files)
    append(log, b"new")

    assert [one.value for one in records_of(log)] == [b"old", b"old", b"old", b"new"]
    assert log.offset_for_timestamp(5_002) == (5_002, 2)


def test_a_log_that_ends_below_its_start_drops_all_records() -> None:
    from ottla.broker.config import LogConfig
    from ottla.broker.log.recovery.recovery import open_log
    from ottla.broker.log.testing import PARTITION

    files = MemoryFiles()
    written(files)

    files = files.crash(Random(0), Loss.KEPT)
    log = open_log(files, DIRECTORY, PARTITION, LogConfig(), clean=False, log_start_offset=100)

    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    assert append(log, b"x") == 100


def test_recovery_of_an_emptied_log_ends_with_the_same_epochs_each_time() -> None:
    files = MemoryFiles()
    log = written(files, 4, segment_bytes=150)
    for one in log.segments.all[:-1]:
        files.unlink(one.path(SegmentFile.LOG))
    files.open(log.segments[-1].path(SegmentFile.LOG)).truncate(0)
    files.open(DIRECTORY / "leader-epoch-checkpoint").truncate(0)
    files.open(DIRECTORY / "leader-epoch-checkpoint").pwrite(b"0\n1\n0 0\n", 0)

    files = files.crash(Random(0), Loss.KEPT)
    once = log_in(AT, files, clean=False)
    twice = log_in(AT, files.crash(Random(0), Loss.KEPT), clean=False)

    assert len(records_of(once)) == 0
    assert once.leader_epochs.entries == twice.leader_epochs.entries == ()


@pytest.mark.parametrize("change", ["recovery", "truncation"])
def test_a_flush_brings_the_aborted_transactions_to_the_disk_that_a_copy_has_written(change: str) -> None:
    files = MemoryFiles()
    log = log_in(AT, files)
    log.append(idempotent(0, transactional=True), leader_epoch=0, now_ms=0)
    abort = end_transaction_marker(
        ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=5
    )
    log.append(abort, leader_epoch=0, now_ms=0, origin=AppendOrigin.COORDINATOR)
    append(log, b"one more")
    told = log.aborted_transactions(0, 2)
    assert len(told) == 1

    if change == "recovery":
        files = files.crash(Random(0), Loss.KEPT)
        damaged = files.open(log.segments[0].path(SegmentFile.TRANSACTION_INDEX))
        damaged.pwrite(b"\xff" * 8, 18)
        damaged.sync()
        log = log_in(AT, files, clean=False)
    else:
        truncate_to(log, 2)
    append(log, b"x" * 100)
    log.flush()
    files.sync_dir(Path("/"))

    again = log_in(AT, files.crash(Random(0), Loss.DROPPED), clean=True)
    assert again.aborted_transactions(0, 2) == told


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("damage", ["torn", "of another version"])
def test_a_damaged_transaction_index_is_rebuilt_from_the_markers(is_sealed: bool, damage: str) -> None:
    files = MemoryFiles()
    log = log_in(AT, files)
    log.append(idempotent(0, transactional=True), leader_epoch=0, now_ms=0)
    abort = end_transaction_marker(
        ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=5
    )
    log.append(abort, leader_epoch=0, now_ms=0, origin=AppendOrigin.COORDINATOR)
    told = log.aborted_transactions(0, 2)
    if is_sealed:
        log.roll(0)
        append(log, b"one more")
    path = log.segments[0].path(SegmentFile.TRANSACTION_INDEX)
    log.close()
    damaged = files.open(path)
    if damage == "torn":
        damaged.truncate(files.size(path) - 1)
    else:
        damaged.pwrite(b"\0\1", 0)

    again = log_in(AT, files, clean=True)

    assert again.aborted_transactions(0, 2) == told
    assert again.producers.entries() == log.producers.entries()
