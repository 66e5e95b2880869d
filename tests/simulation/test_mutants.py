"""The simulation notices changed rules of the product: a few here, all with `-m slow`."""

from __future__ import annotations

import pytest

from simulation import controller_mutants, follower_mutants, replica_mutants, transaction_mutants
from simulation.mutants import MUTANTS, Mutant
from simulation.test_schedules import simulation

MODULES = (controller_mutants, follower_mutants, replica_mutants, transaction_mutants)
QUICK = (
    "leader_epoch_not_raised", "out_of_sync_leader_elected", "acknowledged_at_once",
    "lost_answer_taken_for_a_refusal",
)  # fmt: skip
CHANGED = [one for one in MUTANTS.values() if not one.equivalent]


def _is_noticed(one: Mutant) -> bool:
    """Whether a schedule has a violation, and not merely an error of the simulation."""
    options = ("--scenario", one.scenario) if one.scenario is not None else ()
    if one.full_disks:
        options = (*options, "--full-disks")
    done = simulation("--mutant", one.name, "--seeds", f"1:{one.within}", *options)
    return done.returncode == 1 and "the same again: --seeds" in done.stdout


@pytest.mark.parametrize("name", QUICK)
def test_a_changed_rule_is_noticed(name: str) -> None:
    assert _is_noticed(MUTANTS[name])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("one", CHANGED, ids=lambda one: one.name)
def test_every_changed_rule_is_noticed(one: Mutant) -> None:
    assert _is_noticed(one)


def test_a_rule_that_makes_no_difference_says_why() -> None:
    assert len(MUTANTS) >= 30
    for one in MUTANTS.values():
        assert one.equivalent == ("Equivalent" in one.why), one.name
