"""Kafka's own dump judges the replicas of a cluster under chaos: equal, other and damaged ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cluster_dump import judged

from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.testing import append, log_in

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

BATCHES = 40


def replica(folder: Path, *, segment_bytes: int = 2_000, leader_epoch: int = 3) -> Path:
    """The log of `t-0` in a directory of its own, with some segments."""
    made = log_in(folder / "made", DiskFiles(), segment_bytes=segment_bytes)
    for number in range(BATCHES):
        append(made, b"value %d" % number * 5, timestamp_ms=10_000, leader_epoch=leader_epoch)
    made.close()
    shutil.copytree(made.directory, folder / "t-0")
    return folder


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "t-0").glob("*.log"))


def test_replicas_with_other_segments_and_equal_batches_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = {name: replica(tmp_path / name, segment_bytes=size) for name, size in (("a", 2_000), ("b", 3_000))}

    assert len(segments(held["a"])) > len(segments(held["b"])) > 1
    assert judged(held, "t", 1) == []
    assert f"{BATCHES} batches of 2 brokers" in capsys.readouterr().out


def test_replicas_with_another_leader_epoch_or_one_batch_less_disagree(tmp_path: Path) -> None:
    one, other = replica(tmp_path / "a"), replica(tmp_path / "b", leader_epoch=4)
    shorter = replica(tmp_path / "c")
    segments(shorter)[-1].write_bytes(b"")

    assert "t-0 differ: one has baseOffset: 0" in judged({"one": one, "other": other}, "t", 1)[0]
    assert "shorter nothing" in judged({"one": one, "shorter": shorter}, "t", 1)[0]


def test_replicas_that_are_damaged_alike_are_not_accepted(tmp_path: Path) -> None:
    held = {name: replica(tmp_path / name) for name in ("a", "b")}
    for directory in held.values():
        data = bytearray(segments(directory)[0].read_bytes())
        data[70] ^= 1
        segments(directory)[0].write_bytes(data)

    assert any("isvalid: false" in line for line in judged(held, "t", 1))
    assert judged(dict.fromkeys(held, tmp_path), "t", 1) == ["Kafka's dumps have no batches"]
