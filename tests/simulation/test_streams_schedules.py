"""Schedules of streams groups keep their promises, notice each changed rule, and can be shortened."""

from __future__ import annotations

import pytest

from simulation.group_faults import kind_of, shrink
from simulation.group_schedules import changed, is_noticed
from simulation.streams_groups import faults_of, run_seeds, violation_of
from simulation.streams_mutants import STREAMS_MUTANTS

WITHIN = 150
SHORT = range(1, 16)


def test_schedules_of_streams_groups_keep_their_promises() -> None:
    assert run_seeds(SHORT) > 100  # tasks did move


def test_a_failing_schedule_is_shortened_to_faults_that_fail_alike() -> None:
    seed, faults = 1, faults_of(1)
    with changed(STREAMS_MUTANTS["stable_members_do_not_move_on"]()):
        violation = violation_of(seed, faults)
        assert violation is not None

        fewer, found = shrink(faults, violation, lambda some: violation_of(seed, some))

        assert len(fewer) < len(faults) / 2
        assert violation_of(seed, fewer) == found
    assert kind_of(found) == kind_of(violation)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STREAMS_MUTANTS)
def test_a_changed_rule_of_streams_groups_is_noticed(name: str) -> None:
    assert is_noticed(STREAMS_MUTANTS[name](), run_seeds, range(1, WITHIN + 1))
