"""The simulation notices changed rules of the product: a few here, all with `-m slow`."""

from __future__ import annotations

import pytest

from simulation import controller_mutants, follower_mutants, replica_mutants
from simulation.mutants import MUTANTS, Mutant, applied
from simulation.schedule import run_schedule

MODULES = (controller_mutants, follower_mutants, replica_mutants)
QUICK = ("leader_epoch_not_raised", "out_of_sync_leader_elected", "acknowledged_at_once")
CHANGED = [one for one in MUTANTS.values() if one.noticed and not one.equivalent]


def _noticed_in(one: Mutant) -> int | None:
    """The first schedule with a violation."""
    with applied(one.name):
        for seed in range(1, one.within + 1):
            if run_schedule(seed).violation is not None:
                return seed
    return None


@pytest.mark.parametrize("name", QUICK)
def test_a_changed_rule_is_noticed(name: str) -> None:
    assert _noticed_in(MUTANTS[name]) is not None


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("one", CHANGED, ids=lambda one: one.name)
def test_every_changed_rule_is_noticed(one: Mutant) -> None:
    assert _noticed_in(one) is not None


def test_a_rule_that_makes_no_difference_says_why() -> None:
    assert len(MUTANTS) >= 30
    for one in MUTANTS.values():
        assert one.equivalent == ("Equivalent" in one.why), one.name
        assert one.noticed == ("Not noticed yet" not in one.why), one.name
