"""A hosted partition: what becomes of its log reaches its core."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.handlers.testing import DataPlane, batch_of
from ottla.broker.replication.hosted import HostedPartition
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

    assert partition.truncate_to(2) == 2

    assert bounds(partition) == (0, 2, 2)
    assert partition.core.log_end_offset == 2


async def test_a_log_that_begins_anew_takes_its_high_watermark_along(partition: HostedPartition) -> None:
    partition.truncate_fully_and_start_at(500)

    assert bounds(partition) == (500, 500, 500)
    assert partition.core.log_start_offset == partition.core.log_end_offset == 500


async def test_log_and_core_read_the_same_high_watermark(partition: HostedPartition) -> None:
    assert partition.log.watermark is partition.core.watermark
    assert partition.log.high_watermark == partition.core.high_watermark == 4
