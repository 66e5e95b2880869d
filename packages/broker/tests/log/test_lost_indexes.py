"""Index files that another program cuts while they are mapped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import Log
from ottla.broker.log.retention.passes import LogPasses
from ottla.broker.log.segments._index_mapping import IndexMapping, losses
from ottla.broker.log.testing import PARTITION, append, log_in, records_of
from ottla.broker.runtime.environment import Environment
from ottla.protocol.storage.segments import SegmentFile

KINDS = (SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX)

CUT_WHILE_MAPPED = """
import os, sys
from pathlib import Path
from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.testing import append, log_in, records_of

log = log_in(Path(sys.argv[1]), DiskFiles(), index_interval_bytes=1, segment_index_bytes=100_000)
for number in range(2_000):
    append(log, b"value", timestamp_ms=number)
for path in Path(sys.argv[1]).rglob("*index"):
    os.truncate(path, 0)
for number in range(2_000, 4_000):
    append(log, b"value", timestamp_ms=number)
assert len(records_of(log, 1_990)) == 2_010
assert log.offset_for_timestamp(3_990).offset == 3_990
log.close()
again = log_in(Path(sys.argv[1]), DiskFiles())
assert again.segments[0].offsets.count > 60
assert again.offset_for_timestamp(1_990).offset == 1_990
print("served to the end")
"""


def test_a_cut_of_a_mapped_index_does_not_end_the_process(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CUT_WHILE_MAPPED, str(tmp_path)], capture_output=True, text=True, timeout=60
    )

    assert ran.returncode != -signal.SIGBUS
    assert (ran.stdout, ran.returncode) == ("served to the end\n", 0), ran.stderr


def test_a_mapping_outlives_its_descriptor_and_reads_zeros_where_the_file_was_cut(tmp_path: Path) -> None:
    path, before = tmp_path / "mapped", losses()
    path.write_bytes(b"x" * 20_000)
    descriptor = os.open(path, os.O_RDWR)
    mapping = IndexMapping(descriptor, 20_000, is_writable=True)
    os.close(descriptor)
    memoryview(mapping)[4:6] = b"yz"
    assert path.read_bytes()[:8] == b"xxxxyzxx"

    os.truncate(path, 8_192)
    view = memoryview(mapping)

    assert (bytes(view[8_190:8_194]), mapping.is_lost, losses()) == (b"xx\0\0", True, before + 1)
    assert bytes(view[12_000:]) == bytes(8_000)
    with pytest.raises(BufferError):
        mapping.close()
    del view
    mapping.close()
    with pytest.raises(ValueError, match="closed"):
        memoryview(mapping)


def test_a_bus_error_elsewhere_ends_the_process_as_before(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x" * 20_000)
    program = """
import mmap, os, sys
from ottla.broker.log.segments._index_mapping import IndexMapping
with open(sys.argv[1], "r+b") as file:
    IndexMapping(file.fileno(), 20_000, is_writable=False)
    other = mmap.mmap(file.fileno(), 20_000)
    file.truncate(0)
other[10_000]
"""
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path / "other")], timeout=60)

    assert ran.returncode == -signal.SIGBUS


def cut_indexes(log: Log) -> None:
    for segment in log.segments:
        for kind in KINDS:
            os.truncate(segment.path(kind), 0)


def lost_in(log: Log) -> int:
    return sum(segment.has_lost_index for segment in log.segments)


@pytest.mark.parametrize("segments", [1, 2])
async def test_lost_indexes_are_told_of_and_built_anew(
    tmp_path: Path, segments: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = LogConfig(index_interval_bytes=1, segment_index_bytes=100_000)
    async with LogRegistry(BrokerConfig(log_dirs=(str(tmp_path),)), Environment()) as logs:
        log, passes = logs.create(PARTITION, config=config), LogPasses(logs)
        for number in range(2_000 * segments):
            append(log, b"value", timestamp_ms=number, now_ms=number)
            if number == 2_000:
                log.roll(number)
        cut_indexes(log)
        append(log, b"value", timestamp_ms=9_999)
        assert len(records_of(log, 900)) == 2_000 * segments - 899

        await passes.flush_due(0)
        for number in range(5):
            append(log, b"value", timestamp_ms=10_000 + number)

        told = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        assert len(told) == segments
        assert all("another program has cut an index" in one for one in told)
        assert len(log.segments) == segments + 1
        found = [index.count for one in log.segments.all[:-1] for index in (one.offsets, one.times)]
        assert min(found) > 30
        assert len(records_of(log, 900)) == 2_000 * segments - 894
        at = log.offset_for_timestamp(1_234)
        assert at is not None
        assert at.offset == 1_234
        assert await passes.flush_due(0) == 0


async def test_a_lost_index_of_an_empty_segment_is_opened_anew(tmp_path: Path) -> None:
    async with LogRegistry(BrokerConfig(log_dirs=(str(tmp_path),)), Environment()) as logs:
        config = LogConfig(index_interval_bytes=1)
        log, passes = logs.create(PARTITION, config=config), LogPasses(logs)
        cut_indexes(log)
        assert bytes(memoryview(log.segments[0].offsets.mapping)[:1]) == b"\0"
        assert lost_in(log) == 1

        await passes.flush_due(0)

        assert lost_in(log) == 0
        for number in range(10):
            append(log, b"value", timestamp_ms=number)
        assert len(log.segments) == 1
        log.flush()
        assert log.segments[0].offsets.file.size() > 0
        assert log.segments[0].offsets.count == 9


def test_an_open_segment_has_one_descriptor(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    log = log_in(tmp_path, DiskFiles(), segment_bytes=300)
    for number in range(20):
        append(log, b"v" * 100, timestamp_ms=number)
    for one in log.segments:
        assert one.file
        assert one.offsets is not None
        assert one.times is not None

    assert len(set(os.listdir("/proc/self/fd")) - before) == len(log.segments) > 5
