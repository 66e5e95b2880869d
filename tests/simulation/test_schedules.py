"""Schedules of the simulation that every change must pass; `nox -s simulation` runs many more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.schedule import run_schedule

SEEDS_IN_A_TEST = 10
TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("first", range(1, 61, SEEDS_IN_A_TEST))
def test_a_cluster_survives_its_faults(first: int) -> None:
    acks = 0
    for seed in range(first, first + SEEDS_IN_A_TEST):
        outcome = run_schedule(seed)
        assert outcome.violation is None, "\n".join([f"seed {seed}", *outcome.trace[-60:]])
        acks += outcome.acks
    assert acks > 100 * SEEDS_IN_A_TEST  # clients did write


def test_a_schedule_is_the_same_in_every_process() -> None:
    code = (
        "import logging; logging.disable(50)\n"
        "from simulation.schedule import run_schedule\n"
        "print([run_schedule(one).trace_hash for one in (3, 7, 11)])"
    )
    said = set()
    for hash_seed in ("0", "1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            check=True,
            text=True,
            timeout=200,
        )
        said.add(done.stdout)
    assert len(said) == 1
