from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.broker.log.files.fake_files import MemoryFiles
from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.log import AppendOrigin, Log, OffsetsOutOfOrder
from ottla.broker.log.testing import append, batch, idempotent, log_in, records_of
from ottla.protocol.errors import (
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    KafkaStorageError,
    MessageTooLarge,
    OutOfOrderSequenceNumber,
    RecordListTooLarge,
)
from ottla.protocol.records import (
    Codec,
    ControlType,
    assign_offsets,
    end_transaction_marker,
    iter_records,
    read_header,
)

AT = Path("/data")


def test_batches_get_offsets_and_the_leader_epoch_in_one_write() -> None:
    log = log_in(AT)

    first = log.append(batch(b"a", b"b") + batch(b"c"), leader_epoch=4, now_ms=0)
    second = log.append(batch(b"d"), leader_epoch=5, now_ms=0)

    assert (first.base_offset, first.last_offset, first.log_append_time_ms) == (0, 2, -1)
    assert (second.base_offset, second.last_offset) == (3, 3)
    assert [(one.offset, one.value) for one in records_of(log)] == [
        (0, b"a"),
        (1, b"b"),
        (2, b"c"),
        (3, b"d"),
    ]
    assert [tuple(one) for one in log.leader_epochs.entries] == [(4, 0), (5, 3)]
    assert read_header(log.read(3, 1000, up_to=4).read()).partition_leader_epoch == 5


def test_a_writable_buffer_is_changed_in_place_and_bytes_are_left_alone() -> None:
    log = log_in(AT)
    append(log, b"before")
    mine, constant = bytearray(batch(b"a")), batch(b"b")

    log.append(mine, leader_epoch=0, now_ms=0)
    log.append(constant, leader_epoch=0, now_ms=0)
    log.append(memoryview(constant), leader_epoch=0, now_ms=0)

    assert read_header(mine).base_offset == 1
    assert read_header(constant).base_offset == 0
    assert [one.value for one in records_of(log)] == [b"before", b"a", b"b", b"b"]


def test_a_wrong_checksum_is_refused_and_nothing_is_appended() -> None:
    log = log_in(AT)
    torn = bytearray(batch(b"value"))
    torn[-1] ^= 1

    for bad in (torn, batch(b"x")[:-1], batch(b"x")[:40], b"", bytes(100)):
        with pytest.raises((CorruptMessage, InvalidRecord)):
            log.append(bad, leader_epoch=0, now_ms=0)

    assert log.log_end_offset == 0


def test_a_batch_above_max_message_bytes_is_too_large() -> None:
    log = log_in(AT, max_message_bytes=200)

    log.append(batch(b"x" * 120), leader_epoch=0, now_ms=0)
    with pytest.raises(MessageTooLarge):
        log.append(batch(b"x" * 200), leader_epoch=0, now_ms=0)


def test_more_than_a_segment_in_one_append_is_refused() -> None:
    log = log_in(AT, segment_bytes=300)

    with pytest.raises(RecordListTooLarge):
        log.append(batch(b"x" * 150) + batch(b"x" * 150), leader_epoch=0, now_ms=0)


def test_clients_cannot_write_control_batches() -> None:
    log = log_in(AT)
    marker = end_transaction_marker(
        ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
    )

    with pytest.raises(InvalidRecord):
        log.append(marker, leader_epoch=0, now_ms=0)
    log.append(marker, leader_epoch=0, now_ms=0, origin=AppendOrigin.COORDINATOR)


@pytest.mark.parametrize("batches", [1, 2])
def test_an_idempotent_batch_begins_with_a_sequence_number(batches: int) -> None:
    log = log_in(AT)
    without = idempotent(-1)

    for _ in range(2):  # the producer is unknown, then known
        with pytest.raises(InvalidRecord, match="begins with sequence -1"):
            log.append(without * batches, leader_epoch=0, now_ms=0)
        with pytest.raises(InvalidRecord, match="begins with sequence -1"):
            end = log.append_plain(bytearray(without * batches), 0, 0)
            assert end == -1
            log.append(bytearray(without * batches), leader_epoch=0, now_ms=0)
        log.append(idempotent(0), leader_epoch=0, now_ms=0)

    assert log.log_end_offset == 1


def test_a_compacted_topic_needs_keys() -> None:
    log = log_in(AT, cleanup_policy=("compact",))

    log.append(batch(b"a", keys=[b"k"]), leader_epoch=0, now_ms=0)
    for codec in (Codec.NONE, Codec.GZIP):
        with pytest.raises(InvalidRecord):
            log.append(batch(b"a", b"b", keys=[b"k", None], codec=codec), leader_epoch=0, now_ms=0)


def test_timestamps_too_far_from_the_clock_are_refused() -> None:
    log = log_in(AT, message_timestamp_difference_max_ms=100)

    log.append(batch(b"a", timestamp_ms=1_000), leader_epoch=0, now_ms=1_100)
    for now_ms in (1_101, 899):
        with pytest.raises(InvalidTimestamp):
            log.append(batch(b"a", timestamp_ms=1_000), leader_epoch=0, now_ms=now_ms)


def test_log_append_time_replaces_the_producers_time() -> None:
    log = log_in(AT, message_timestamp_type="LogAppendTime", message_timestamp_difference_max_ms=1)

    appended = log.append(batch(b"a", b"b", timestamp_ms=5), leader_epoch=0, now_ms=77_000)

    assert appended.log_append_time_ms == 77_000
    assert {one.timestamp_ms for one in records_of(log)} == {77_000}
    assert log.offset_for_timestamp(77_000) == (77_000, 0)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4])
def test_a_topic_with_a_codec_of_its_own_stores_with_that(codec: Codec) -> None:
    log = log_in(AT, compression_type="zstd")

    log.append(batch(*[b"value"] * 50, codec=codec), leader_epoch=3, now_ms=0)

    stored = log.read(0, 1 << 20, up_to=50).read()
    assert read_header(stored).codec is Codec.ZSTD
    assert [one.value for one in iter_records(stored)] == [b"value"] * 50


# ---- idempotent producers


def test_a_retry_of_one_of_the_last_five_batches_is_answered_with_its_offsets() -> None:
    log = log_in(AT)
    for sequence in range(0, 12, 2):
        log.append(idempotent(sequence, 2), leader_epoch=0, now_ms=0)

    again = log.append(idempotent(4, 2), leader_epoch=0, now_ms=0)

    assert (again.base_offset, again.last_offset, again.duplicate) == (4, 5, True)
    assert log.log_end_offset == 12
    with pytest.raises(OutOfOrderSequenceNumber):
        log.append(idempotent(0, 2), leader_epoch=0, now_ms=0)


def test_a_gap_in_the_sequence_is_refused() -> None:
    log = log_in(AT)
    log.append(idempotent(0), leader_epoch=0, now_ms=0)

    for bad in (2, 100):
        with pytest.raises(OutOfOrderSequenceNumber):
            log.append(idempotent(bad), leader_epoch=0, now_ms=0)


def test_a_newer_epoch_begins_at_sequence_zero_and_fences_the_older() -> None:
    log = log_in(AT)
    log.append(idempotent(0), leader_epoch=0, now_ms=0)

    with pytest.raises(OutOfOrderSequenceNumber):
        log.append(idempotent(1, epoch=1), leader_epoch=0, now_ms=0)
    log.append(idempotent(0, epoch=1), leader_epoch=0, now_ms=0)
    with pytest.raises(InvalidProducerEpoch):
        log.append(idempotent(1, epoch=0), leader_epoch=0, now_ms=0)


def test_sequences_wrap() -> None:
    log = log_in(AT)
    log.append(idempotent(2**31 - 2, 2), leader_epoch=0, now_ms=0)

    assert log.append(idempotent(0, 3), leader_epoch=0, now_ms=0).base_offset == 2


# ---- followers


def test_a_follower_keeps_offsets_and_epochs() -> None:
    log = log_in(AT)
    data = bytearray(batch(b"a", b"b"))
    assign_offsets(data, 0, 3)
    more = bytearray(batch(b"c"))
    assign_offsets(more, 5, 6)  # compaction has left a gap

    log.append_as_follower(bytes(data), 0)
    appended = log.append_as_follower(bytes(more), 0)

    assert (appended.base_offset, log.log_end_offset) == (5, 6)
    assert [tuple(one) for one in log.leader_epochs.entries] == [(3, 0), (6, 5)]
    with pytest.raises(OffsetsOutOfOrder):
        log.append_as_follower(bytes(more), 0)


# ---- full disks


def _fill(log: Log) -> int:
    with pytest.raises(KafkaStorageError):
        for _ in range(10_000):
            append(log, os.urandom(900))
    return log.log_end_offset


@pytest.mark.parametrize("segment_bytes", [1 << 30, 20_000])
def test_a_full_disk_fails_the_append_and_leaves_no_trace_of_it(segment_bytes: int) -> None:
    files = MemoryFiles(capacity_bytes=100_000)
    log = log_in(AT, files, segment_bytes=segment_bytes, segment_index_bytes=4096)

    end = _fill(log)

    assert end > 50
    assert log.offline is None
    assert len(records_of(log)) == end
    assert log.log_end.segment.file.size() == log.log_end.segment.size
    files.give(50_000)
    assert append(log, b"x" * 900) == end
    assert len(records_of(log)) == end + 1


_LIMITED = """
import resource, sys
from pathlib import Path
from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.testing import append, log_in, records_of
from ottla.protocol.errors import KafkaStorageError
log = log_in(Path(sys.argv[1]), DiskFiles(), segment_index_bytes=4096)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 23, 1 << 23))
count = 0
try:
    while True:
        append(log, bytes(99_991))
        count += 1
except KafkaStorageError:
    pass
assert log.log_end_offset == count == 83, count
assert log.log_end.segment.file.size() == log.log_end.segment.size < 1 << 23
append(log, b"small")
assert log.offline is None
assert len(records_of(log)) == count + 1
log.close()
print("rolled back")
"""


def test_a_file_that_may_not_grow_is_cut_back_to_its_last_whole_append(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout == "rolled back\n", done.stderr
    log = log_in(tmp_path, DiskFiles(), clean=False)
    assert log.log_end_offset == 84


def test_a_failed_fsync_is_never_tried_again(tmp_path: Path) -> None:
    files = MemoryFiles()
    log = log_in(AT, files)
    append(log, b"a")
    files.sync_error = OSError(errno.EIO, "Input/output error")

    with pytest.raises(KafkaStorageError):
        log.flush()
    files.sync_error = None

    assert log.offline is not None
    assert log.recovery_point == 0
    with pytest.raises(KafkaStorageError):
        append(log, b"b")
