"""The native searches in segments find what walking over every entry finds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ottla.broker.api.testing import DataPlane, batch_of
from ottla.broker.log.segments.offset_lookup import (
    find_entry,
    find_entry_by_walking,
    whole_end,
    whole_end_by_walking,
)


@pytest.mark.parametrize("seed", range(6))
async def test_native_searches_and_walking_agree(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    plane = DataPlane(tmp_path)
    partition = await plane.lead(segment_bytes="60000", index_interval_bytes=str(rng.choice([1, 500, 4096])))
    for _ in range(60):
        values = [b"v" * rng.choice([0, 20, 900, 9000]) for _ in range(rng.randrange(1, 4))]
        partition.append(batch_of(*values), now_ms=1)
    log = partition.log

    for _ in range(400):
        segment = rng.choice(log.segments)
        index = segment.offsets
        offset = rng.randrange(segment.base_offset, log.log_end_offset + 2)
        found = find_entry(segment.file, index, segment.size, offset, wait=rng.random() < 0.5)
        assert found == find_entry_by_walking(segment.file, index, segment.size, offset)
        if found is None:
            continue
        limit, at_least_one = found.position + rng.randrange(-10, 40_000), rng.random() < 0.5
        end = whole_end(
            segment.file, index, found.position, limit, segment.size, at_least_one=at_least_one, wait=False
        )
        assert end == whole_end_by_walking(
            segment.file, index, found.position, limit, segment.size, at_least_one=at_least_one
        )
    plane.logs.close()


async def test_reading_without_waiting_gives_the_same_as_reading(plane_of_one: DataPlane) -> None:
    rng = random.Random(1)
    partition = await plane_of_one.lead(segment_bytes="60000")
    for _ in range(60):
        partition.append(batch_of(b"v" * rng.choice([0, 900, 9000])), now_ms=1)
    log, native = partition.log, 0

    for _ in range(400):
        up_to = rng.randrange(1, log.log_end_offset + 1)
        offset, max_bytes = rng.randrange(up_to), rng.randrange(-1, 30_000)
        found = log.log_end.read_now(offset, max_bytes, up_to)
        expected = log.read(offset, max_bytes, up_to=up_to)
        if found is not None:
            native += 1
            assert (found.file, found.position, found.length) == (
                expected.file,
                expected.position,
                expected.length,
            )
    assert native


@pytest.fixture
def plane_of_one(tmp_path: Path) -> DataPlane:
    return DataPlane(tmp_path)
