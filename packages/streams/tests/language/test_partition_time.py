"""The time of a partition's finished part."""

from __future__ import annotations

import random

import pytest

from ottla.streams.language.partition_state import PartitionTime


@pytest.mark.parametrize("seed", range(20))
def test_the_time_is_the_highest_below_the_committed_offset(seed: int) -> None:
    chance = random.Random(seed)
    offsets = sorted(chance.sample(range(20_000), 5_000))
    late = dict.fromkeys(chance.sample(offsets, 30))  # records that take long to handle
    times = {offset: offset + chance.randrange(500) for offset in offsets}
    ended = sorted(offsets, key=lambda each: each + chance.randrange(300) + 4_000 * (each in late))
    time, done = PartitionTime(), set[int]()

    for offset in ended:
        time.handled(offset, times[offset])
        done.add(offset)
        if chance.random() < 0.01:
            committed = next((each for each in offsets if each not in done), 20_000)
            time.commit(committed)
            assert time.time_ms == max((times[each] for each in offsets if each < committed), default=-1)

    time.commit(20_000)
    assert (time.time_ms, time.committed) == (max(times.values()), 20_000)


def test_a_commit_that_repeats_an_offset_changes_nothing() -> None:
    time = PartitionTime()
    time.handled(3, 50)
    time.handled(7, 40)

    for _ in range(2):
        time.commit(4)

    assert time.time_ms == 50
    time.commit(8)
    assert time.time_ms == 50
