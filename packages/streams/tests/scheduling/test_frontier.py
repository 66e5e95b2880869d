from __future__ import annotations

import random

import pytest

from ottla.streams.scheduling.frontier import Frontier


def test_offsets_that_do_not_exist_count_as_finished() -> None:
    frontier = Frontier(10)
    numbers = [frontier.start(offset) for offset in (12, 20, 500_000)]

    frontier.finish(numbers[1])
    assert frontier.position == 12
    assert frontier.finished_ranges() == [(20, 500_000)]
    frontier.finish(numbers[0])
    assert frontier.position == 500_000
    frontier.finish(numbers[2])
    assert frontier.position == 500_001
    frontier.advance(500_010)
    assert frontier.position == 500_010
    assert frontier.finished_ranges() == []


def test_records_that_an_earlier_reader_finished_are_not_started_again() -> None:
    frontier = Frontier(100, [(102, 104), (110, 120)])

    numbers = [frontier.start(offset) for offset in (100, 101, 102, 103, 104)]

    assert [number >= 0 for number in numbers] == [True, True, False, False, True]
    assert frontier.finished_ranges() == [(102, 104), (110, 120)]


def test_what_an_earlier_reader_finished_stays_known_until_it_is_passed() -> None:
    frontier = Frontier(100, [(102, 104), (110, 120)])
    first = frontier.start(100)

    frontier.finish(first)

    assert frontier.position == 101
    assert frontier.finished_ranges() == [(102, 104), (110, 120)]


def test_an_offset_below_an_earlier_one_is_refused() -> None:
    frontier = Frontier(5)
    frontier.start(7)

    with pytest.raises(ValueError, match="offset 7 is too low"):
        frontier.start(7)


def test_a_partition_without_commit_begins_with_its_first_record() -> None:
    frontier = Frontier()

    assert frontier.position is None
    frontier.start(40)
    assert frontier.position == 40


def test_the_memory_of_finished_offsets_is_given_back() -> None:
    frontier = Frontier(0)
    generator = random.Random(3)
    running: list[int] = []
    for offset in range(100_000):
        running.append(frontier.start(offset))
        if len(running) > 50:
            frontier.finish(running.pop(generator.randrange(50)))

    for number in running:
        frontier.finish(number)

    assert (frontier.position, frontier.unfinished, frontier.ahead) == (100_000, 0, 0)
    assert frontier.held < 20_000
