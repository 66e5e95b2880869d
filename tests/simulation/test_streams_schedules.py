"""Schedules of streams groups keep their promises, and notice each changed rule."""

from __future__ import annotations

import pytest

from simulation.invariant_violated import InvariantViolated
from simulation.streams_groups import run_seeds
from simulation.streams_mutants import STREAMS_MUTANTS

WITHIN = 40


def test_schedules_of_streams_groups_keep_their_promises() -> None:
    assert run_seeds(range(1, 21)) > 0


@pytest.mark.parametrize("name", STREAMS_MUTANTS)
def test_a_changed_rule_of_streams_groups_is_noticed(name: str) -> None:
    patches = STREAMS_MUTANTS[name]()
    before = [(owner, key, owner.__dict__[key]) for owner, key, _ in patches]
    for owner, key, changed in patches:
        setattr(owner, key, changed)
    try:
        with pytest.raises((InvariantViolated, AssertionError)):
            run_seeds(range(1, WITHIN + 1))
    finally:
        for owner, key, original in before:
            setattr(owner, key, original)
