"""Schedules of the simulation that every change must pass; `nox -s simulation` runs many more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SEEDS_IN_A_TEST = 10
TESTS = Path(__file__).parents[1]


def simulation(*options: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Run schedules in a process of their own, with which all that killed brokers leave behind goes."""
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-m", "simulation", "--without-shrinking", *options],
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("first", range(1, 61, SEEDS_IN_A_TEST))
def test_a_cluster_survives_its_faults(first: int) -> None:
    done = simulation("--seeds", f"{first}:{first + SEEDS_IN_A_TEST - 1}")

    assert done.returncode == 0, done.stdout[-5000:]
    acknowledged = re.findall(r"(\d+) records acknowledged", done.stdout)
    assert int(acknowledged[-1]) > 100 * SEEDS_IN_A_TEST  # clients did write


def test_a_schedule_is_the_same_in_every_process() -> None:
    for seeds in ("3:3", "7:7", "11:11"):
        said = {
            tuple(re.findall(r"trace \w+", simulation("--seeds", seeds, "--trace", hash_seed=one).stdout))
            for one in ("0", "1", "2")
        }
        assert len(said) == 1
        assert said != {()}
