"""Schedules of the simulation that every change must pass; `nox -s simulation` runs many more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.schedule import run_schedule

SEEDS_IN_A_TEST = 10
SEEDS_THAT_FAILED: dict[int, str] = {}
"""Schedules beyond the first ones that found a defect of the product, and which."""
TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("first", range(1, 61, SEEDS_IN_A_TEST))
def test_a_cluster_survives_its_faults(first: int) -> None:
    acks = 0
    for seed in range(first, first + SEEDS_IN_A_TEST):
        outcome = run_schedule(seed)
        assert outcome.violation is None, "\n".join([f"seed {seed}", *outcome.trace[-60:]])
        acks += outcome.acks
    assert acks > 100 * SEEDS_IN_A_TEST  # clients did write


def test_what_a_seed_has_found_stays_mended() -> None:
    for seed, defect in SEEDS_THAT_FAILED.items():
        assert run_schedule(seed).violation is None, defect


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
