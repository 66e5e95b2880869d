"""Bytes that recovery cuts off: logged, and kept for a day."""

from __future__ import annotations

import errno
import struct
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ottla.broker.config import BrokerConfig
from ottla.broker.log.files.fake_files import Loss, MemoryFile, MemoryFiles, PowerLoss
from ottla.broker.log.files.file_system import Buffer
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import Log
from ottla.broker.log.recovery.cut_bytes import whole_batches
from ottla.broker.log.retention.passes import LogPasses
from ottla.broker.log.testing import PARTITION, append, log_in, records_of
from ottla.broker.runtime.environment import Environment
from ottla.protocol.records import read_headers
from ottla.protocol.storage.segments import SegmentFile

AT = Path("/data")
DIRECTORY = AT / "topic-0"


def written(files: MemoryFiles, count: int = 10, **settings: Any) -> Log:
    log = log_in(AT, files, **settings)
    for number in range(count):
        append(log, b"value %d" % number * 40, timestamp_ms=number)
    return log


def damaged(files: MemoryFiles, batch: int, **settings: Any) -> tuple[Log, bytes, int]:
    """A log with a damaged batch in its first segment; the segment's bytes, and where that batch begins."""
    log = written(files, **settings)
    file = log.segments[0].file
    position = read_headers(file.pread(log.segments[0].size, 0))[batch].position
    file.pwrite(b"?", position + 80)
    return log, file.pread(log.segments[0].size, 0), position


def recovered(files: MemoryFiles, **settings: Any) -> Log:
    return log_in(AT, files, clean=False, **settings)


def cut_files(files: MemoryFiles) -> list[str]:
    return [name for name in files.list(DIRECTORY) if name.endswith(".cut")]


def test_the_log_says_what_was_cut_and_what_behind_it_looks_whole(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    _, content, position = damaged(files, 4)
    files = files.crash(Random(0), Loss.KEPT)

    log = recovered(files)

    name = f"00000000000000000000.{position}.cut"
    assert log.log_end_offset == 4
    assert cut_files(files) == [name]
    assert files.read(DIRECTORY / name) == content[position:]
    [line] = [vars(record) for record in caplog.records if record.levelname == "WARNING"]
    whole = len(content) - read_headers(content)[5].position
    assert line["path"] == "/data/topic-0/00000000000000000000.log"
    assert (line["position"], line["bytes"], line["last_offset"]) == (position, len(content) - position, 3)
    assert line["found"] == f"5 batches in them, {whole} bytes with offsets 5 to 9, look whole"
    assert line["kept"] == f"they are kept for a day in {name}"
    assert append(log, b"more") == 4


def test_segments_behind_the_damage_are_kept_whole(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    before, content, position = damaged(files, 1, segment_bytes=1_100)
    rest = {one.base_offset: one.file.pread(one.size, 0) for one in before.segments.all[1:]}
    assert len(rest) > 1
    files = files.crash(Random(0), Loss.KEPT)

    assert recovered(files, segment_bytes=1_100).log_end_offset == 1

    kept = {name: files.read(DIRECTORY / name) for name in cut_files(files)}
    assert kept == {f"{0:020d}.{position}.cut": content[position:]} | {
        f"{base:020d}.0.cut": content for base, content in rest.items()
    }
    dropped = [vars(record) for record in caplog.records if "segment dropped" in record.getMessage()]
    assert len(dropped) == len(rest)
    assert all(facts["last_offset"] == 0 and "look whole" in facts["found"] for facts in dropped)


def test_zeros_of_a_preallocated_file_are_cut_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    log = written(files, 3)
    log.segments[0].file.truncate(100_000)
    files = files.crash(Random(0), Loss.KEPT)

    assert recovered(files).log_end_offset == 3

    assert cut_files(files) == []
    assert [one for one in caplog.records if one.levelname == "WARNING"] == []


@pytest.mark.parametrize("steps", range(4, 40))
def test_an_interrupted_recovery_leaves_the_bytes_once(steps: int) -> None:
    files = MemoryFiles()
    _, content, position = damaged(files, 4)
    files = files.crash(Random(0), Loss.KEPT)
    files.fail_after(steps, Random(steps))
    with suppress(PowerLoss):
        recovered(files)
    files = files.crash(Random(steps), Loss.KEPT)

    log = recovered(files)

    assert log.log_end_offset == 4
    [name] = cut_files(files)
    assert files.read(DIRECTORY / name) == content[position:]


def test_other_bytes_cut_at_the_same_place_get_a_name_of_their_own() -> None:
    files = MemoryFiles()
    _, content, position = damaged(files, 4)
    files = files.crash(Random(0), Loss.KEPT)
    log = recovered(files)
    append(log, b"other")
    log.segments[0].file.pwrite(b"?", log.segments[0].size - 1)
    files = files.crash(Random(0), Loss.KEPT)

    recovered(files)

    kept = [files.read(DIRECTORY / name) for name in cut_files(files)]
    assert cut_files(files) == [f"{0:020d}.{position}-2.cut", f"{0:020d}.{position}.cut"]
    assert kept[1] == content[position:]
    assert kept[0].endswith(b"?")


class NoRoomForCuts(MemoryFiles):
    """A full disk, for the files that keep bytes."""

    def open(self, path: Path, *, create: bool = False):  # type: ignore[no-untyped-def]
        file = super().open(path, create=create)
        return _Full(self, path, file._node) if path.name.endswith(".cut") else file


class _Full(MemoryFile):
    def pwrite(self, data: Buffer, position: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_without_room_for_the_bytes_is_recovered_without_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = NoRoomForCuts()
    damaged(files, 4)
    after = files.crash(Random(0), Loss.KEPT)
    after.__class__ = NoRoomForCuts

    log = recovered(after)

    assert log.log_end_offset == 4
    assert cut_files(after) == []
    assert "they are not kept: No space left on device" in [vars(record)["kept"] for record in caplog.records]


async def test_the_bytes_are_deleted_after_a_day(tmp_path: Path) -> None:
    config = BrokerConfig(log_dirs=(str(tmp_path),))
    environment = Environment()
    now_ms = environment.clock.now_ms()
    async with LogRegistry(config, environment) as logs:
        log = logs.create(PARTITION)
        append(log, b"first")
        log.flush()
        path = log.segments[0].path(SegmentFile.LOG)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    with path.open("ab") as file:
        file.write(b"no batch")
    for clean in (False, True):
        async with LogRegistry(config, environment) as logs:
            [kept] = [one for one in path.parent.iterdir() if one.suffix == ".cut"]
            assert kept.read_bytes() == b"no batch"
            assert kept.stat().st_mode & 0o777 == 0o600
            passes = LogPasses(logs)
            assert await passes.delete_due(now_ms + 23 * 3_600_000) == 0
            if clean:
                assert await passes.delete_due(now_ms + 25 * 3_600_000) == 1
            found = logs.get(PARTITION)
            assert found is not None
            assert [one.value for one in records_of(found)] == [b"first"]
    assert not kept.exists()


def test_values_that_look_like_large_batches_do_not_hold_up_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end, read = 1 << 20, list[int]()
    files = MemoryFiles()
    files.make_dirs(AT)
    file = files.open(AT / "log", create=True)
    content = bytearray(end)
    for at in range(0, end - 1000, 61):
        struct.pack_into(">qiib", content, at, 0, end - at - 100, 0, 2)
    file.pwrite(bytes(content[:-1]) + b"?", 0)
    pread = MemoryFile.pread

    def counted(self: MemoryFile, size: int, position: int) -> bytes:
        read.append(size)
        return pread(self, size, position)

    monkeypatch.setattr(MemoryFile, "pread", counted)

    assert whole_batches(file, 0, end, 0).batches == 0
    assert sum(read) < 20 * end
