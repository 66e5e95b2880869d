"""A hosted partition: both ways to append take the same steps, and the core hears of the log."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import ottla.broker
from ottla.broker.api.testing import DataPlane, batch_of
from ottla.broker.replication.hosted_partition import HostedPartition
from ottla.protocol.errors import NotEnoughReplicas, NotLeaderOrFollower
from ottla.protocol.topics import TopicPartition

T0 = TopicPartition("t", 0)


@pytest.fixture
async def partition(tmp_path: Path) -> HostedPartition:
    plane = DataPlane(tmp_path)
    await plane.lead("t")
    hosted = plane.replicas.leader(T0)
    for _ in range(4):
        hosted.append(batch_of(b"x"), now_ms=0)
    return hosted


def bounds(partition: HostedPartition) -> tuple[int, int, int]:
    return partition.log.log_start_offset, partition.high_watermark, partition.log.log_end_offset


async def test_a_truncation_of_the_log_lowers_the_high_watermark(partition: HostedPartition) -> None:
    assert bounds(partition) == (0, 4, 4)

    assert await partition.truncate_to(2) == 2

    assert bounds(partition) == (0, 2, 2)
    assert partition.core.log_end_offset == 2


async def test_a_log_that_begins_anew_takes_its_high_watermark_along(partition: HostedPartition) -> None:
    await partition.truncate_fully_and_start_at(500)

    assert bounds(partition) == (500, 500, 500)
    assert partition.core.log_start_offset == partition.core.log_end_offset == 500


async def test_log_and_core_read_the_same_high_watermark(partition: HostedPartition) -> None:
    assert partition.log.watermark is partition.core.watermark
    assert partition.log.high_watermark == partition.core.high_watermark == 4


# ---- both ways to append


Append = Callable[[HostedPartition, bytes, int], int]


def generally(partition: HostedPartition, data: bytes, acks: int) -> int:
    return partition.append(data, required_acks=acks, now_ms=0).base_offset


def plainly(partition: HostedPartition, data: bytes, acks: int) -> int:
    return partition.append_plain(bytearray(data), acks, 0)


BOTH = pytest.mark.parametrize("append", [generally, plainly])


@BOTH
async def test_an_append_moves_the_high_watermark_and_wakes_who_reads(
    partition: HostedPartition, append: Append
) -> None:
    woken: list[str] = []
    partition.watchers[lambda: woken.append("watcher")] = None
    waiting = asyncio.create_task(partition.replicated(5))
    await asyncio.sleep(0)

    assert append(partition, batch_of(b"y"), -1) == 4

    await waiting
    assert woken == ["watcher"]
    assert bounds(partition) == (0, 5, 5)


@BOTH
async def test_a_follower_takes_no_append(partition: HostedPartition, append: Append) -> None:
    partition.stop()

    with pytest.raises(NotLeaderOrFollower):
        append(partition, batch_of(b"y"), 1)
    assert bounds(partition) == (0, 4, 4)


@BOTH
async def test_acks_all_needs_the_minimum_isr(tmp_path: Path, append: Append) -> None:
    partition = await DataPlane(tmp_path).lead(isr=(1,), replicas=(1, 2), min_insync_replicas="2")
    partition.append(batch_of(b"x"), required_acks=1, now_ms=0)

    with pytest.raises(NotEnoughReplicas):
        append(partition, batch_of(b"y"), -1)
    assert append(partition, batch_of(b"y"), 1) == 1


@BOTH
async def test_with_followers_an_append_alone_commits_nothing(tmp_path: Path, append: Append) -> None:
    partition = await DataPlane(tmp_path).lead(isr=(1, 2), replicas=(1, 2))
    partition.append(batch_of(b"x"), now_ms=0)
    woken: list[str] = []
    partition.watchers[lambda: woken.append("watcher")] = None

    assert append(partition, batch_of(b"y"), -1) == 1

    assert bounds(partition) == (0, 0, 2)
    assert partition.core.log_end_offset == 2
    assert woken == ["watcher"]


async def test_a_batch_that_is_not_plain_is_left_to_the_general_path(partition: HostedPartition) -> None:
    damaged = bytearray(batch_of(b"y"))
    damaged[-1] ^= 1

    assert partition.append_plain(damaged, -1, 0) == -1
    assert bounds(partition) == (0, 4, 4)


def test_the_tail_of_a_log_is_appended_to_through_the_hosted_partition_only() -> None:
    root = Path(ottla.broker.__path__[0])
    callers = {
        str(path.relative_to(root))
        for path in root.rglob("*.p*")
        if path.suffix in {".py", ".pyx"}
        and re.search(r"(log|log_end)\.append_plain\(|append_failed\(", path.read_text())
    }

    assert {one for one in callers if not one.startswith("log/")} == {"replication/_append.pyx"}
