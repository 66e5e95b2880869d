"""The combination of batches of share partitions' state: which of two has won at an offset."""

from __future__ import annotations

import random

import pytest

from ottla.broker.share.in_flight import StateBatch
from ottla.broker.share.state import combined

AVAILABLE, ACKED, ARCHIVED = 0, 2, 4


def test_of_two_states_the_one_with_more_deliveries_wins() -> None:
    before = (StateBatch(0, 9, AVAILABLE, 1),)

    assert combined(before, [StateBatch(3, 5, AVAILABLE, 2)], 0) == (
        StateBatch(0, 2, AVAILABLE, 1), StateBatch(3, 5, AVAILABLE, 2), StateBatch(6, 9, AVAILABLE, 1),
    )  # fmt: skip
    assert combined((StateBatch(0, 9, ACKED, 1),), [StateBatch(0, 9, AVAILABLE, 1)], 0) == (
        StateBatch(0, 9, ACKED, 1),
    )


def test_offsets_below_the_start_offset_are_dropped() -> None:
    assert combined((StateBatch(0, 9, ACKED, 1), StateBatch(20, 29, ACKED, 1)), [], 25) == (
        StateBatch(25, 29, ACKED, 1),
    )


def test_batches_of_half_the_offsets_there_are_combine_at_once() -> None:
    whole = StateBatch(0, 2**63 - 1, AVAILABLE, 1)

    assert combined((), [whole, StateBatch(5, 2**63 - 1, ACKED, 1)], 0) == (
        StateBatch(0, 4, AVAILABLE, 1), StateBatch(5, 2**63 - 1, ACKED, 1),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(200))
def test_combined_batches_hold_what_wins_at_each_offset(seed: int) -> None:
    chance = random.Random(seed)
    expected: dict[int, tuple[int, int]] = {}
    batches: tuple[StateBatch, ...] = ()
    start = 0
    for _ in range(30):
        changes = []
        for _ in range(chance.randint(1, 4)):
            first = chance.randint(0, 40)
            change = StateBatch(
                first,
                first + chance.randint(0, 12),
                chance.choice([AVAILABLE, ACKED, ARCHIVED]),
                chance.randint(1, 3),
            )
            changes.append(change)
            for offset in range(change.first_offset, change.last_offset + 1):
                won = (change.delivery_count, change.delivery_state)
                expected[offset] = max(expected.get(offset, won), won)
        start = max(start, chance.randint(-20, 40))
        expected = {offset: won for offset, won in expected.items() if offset >= start}
        batches = combined(batches, changes, start)

        found = {
            offset: (batch.delivery_count, batch.delivery_state)
            for batch in batches
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        assert found == expected, f"seed {seed}"
        assert list(batches) == sorted(batches), f"seed {seed}"
