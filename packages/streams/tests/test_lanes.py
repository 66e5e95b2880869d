from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.streams.scheduling.frontier import Frontier
from ottla.streams.scheduling.lanes import Lanes


def test_one_item_of_a_key_is_at_work_at_a_time() -> None:
    lanes: Lanes[str, int] = Lanes()
    for number, key in enumerate(["a", "a", "b"]):
        lanes.put(key, number)

    assert [lanes.take(), lanes.take(), lanes.take()] == [("a", 0), ("b", 2), None]

    lanes.done("a")
    assert lanes.take() == ("a", 1)


def test_items_without_a_key_wait_for_nobody() -> None:
    lanes: Lanes[str, int] = Lanes()
    lanes.put(None, 0)
    lanes.put(None, 1)

    assert lanes.ready_count == 2


@given(st.lists(st.sampled_from("abcd"), max_size=60), st.integers(), st.integers(1, 5))
def test_each_key_is_worked_at_in_order_and_nothing_is_left(keys: list[str], seed: int, workers: int) -> None:
    chance = random.Random(seed)
    lanes: Lanes[str, int] = Lanes()
    frontier = Frontier()
    for offset, key in enumerate(keys):
        lanes.put(key, offset)
        frontier.start(offset)
    at_work: list[tuple[str | None, int]] = []
    finished: list[int] = []

    while len(lanes):
        while len(at_work) < workers and (item := lanes.take()) is not None:
            at_work.append(item)
        done, offset = at_work.pop(chance.randrange(len(at_work)))
        lanes.done(done)
        frontier.finish(offset)
        finished.append(offset)
        assert frontier.position == min(set(range(len(keys))) - set(finished), default=len(keys))

    for key in set(keys):
        assert [n for n in finished if keys[n] == key] == [n for n, k in enumerate(keys) if k == key]


def test_the_frontier_passes_gaps_in_the_log() -> None:
    frontier = Frontier(10)
    frontier.start(12)
    frontier.start(20)

    assert (frontier.position, frontier.span) == (12, 9)
    assert not frontier.finish(20)
    assert frontier.finish(12)
    assert (frontier.position, frontier.unfinished) == (21, 0)


def test_the_frontier_does_not_go_back() -> None:
    frontier = Frontier(10)

    with pytest.raises(ValueError, match="too low"):
        frontier.start(9)
    with pytest.raises(KeyError):
        frontier.finish(10)
