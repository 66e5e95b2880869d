"""Schedules of the simulation that every change must pass; `nox -s simulation` runs many more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.scenarios import OF_TRANSACTIONS, SCENARIOS

SEEDS_IN_A_TEST = 10
PROCESSES = (
    {"hash_seed": "0"},
    {"hash_seed": "1", "malloc": "malloc"},
    {"hash_seed": "2", "malloc": "malloc"},  # its objects are at other addresses: the system moves the heap
)
TESTS = Path(__file__).parents[1]


def simulation(*options: str, hash_seed: str = "0", malloc: str = "") -> subprocess.CompletedProcess[str]:
    """Run schedules in a process of their own."""
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-m", "simulation", "--without-shrinking", *options],
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path, "PYTHONMALLOC": malloc},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("first", range(1, 61, SEEDS_IN_A_TEST))
def test_a_cluster_survives_its_faults(first: int) -> None:
    done = simulation("--seeds", f"{first}:{first + SEEDS_IN_A_TEST - 1}")

    assert done.returncode == 0, done.stdout[-5000:]
    acknowledged = re.findall(r"(\d+) records acknowledged", done.stdout)
    assert int(acknowledged[-1]) > 100 * SEEDS_IN_A_TEST  # clients did write


@pytest.mark.long
@pytest.mark.parametrize("first", range(1, 21, SEEDS_IN_A_TEST))
def test_transactions_survive_the_faults_of_a_cluster(first: int) -> None:
    done = simulation("--transactions", "--seeds", f"{first}:{first + SEEDS_IN_A_TEST - 1}")

    assert done.returncode == 0, done.stdout[-5000:]
    committed = re.findall(r"(\d+) transactions", done.stdout)
    assert int(committed[-1]) > 10 * SEEDS_IN_A_TEST


@pytest.mark.long
@pytest.mark.parametrize("first", range(1, 41, SEEDS_IN_A_TEST))
def test_a_cluster_survives_full_disks_among_its_faults(first: int) -> None:
    done = simulation("--full-disks", "--seeds", f"{first}:{first + SEEDS_IN_A_TEST - 1}")

    assert done.returncode == 0, done.stdout[-5000:]
    acknowledged = re.findall(r"(\d+) records acknowledged", done.stdout)
    assert int(acknowledged[-1]) > 100 * SEEDS_IN_A_TEST


def test_a_replica_that_found_no_room_to_begin_gets_there_once_there_is_some() -> None:
    """Seed 86: its log was the first write without room, of which the controller was told too late."""
    done = simulation("--full-disks", "--seeds", "86:86")

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_a_cluster_survives_a_scenario(scenario: str) -> None:
    clients = ("--transactions",) if scenario in OF_TRANSACTIONS else ()
    done = simulation("--scenario", scenario, "--seeds", "1:2", *clients)

    assert done.returncode == 0, done.stdout[-5000:]


def test_a_broker_that_sleeps_before_it_is_told_of_the_cluster_serves_nobody() -> None:
    """Seed 79: between its registration and its first UpdateMetadata, a broker had no lease."""
    done = simulation("--seeds", "79:79")

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("seed", [832, 962])
def test_a_broker_that_cannot_tell_who_is_a_broker_gets_its_roles_later(seed: int) -> None:
    """It refused the controller while ZooKeeper was away, and kept its roles of an earlier leader epoch."""
    done = simulation("--seeds", f"{seed}:{seed}")

    assert done.returncode == 0, done.stdout


def test_a_replica_that_is_truncated_when_it_is_first_looked_at_has_its_records() -> None:
    """Seed 1093: the simulation read the empty segment that stands in the place of the one that is cut."""
    done = simulation("--seeds", "1093:1093")

    assert done.returncode == 0, done.stdout


def test_a_coordinator_that_was_replaced_unnoticed_answers_no_stable_offsets() -> None:
    """Without the confirmation, a worker gets an old offset here, and its transaction repeats records."""
    done = simulation("--transactions", "--scenario", "replaced unnoticed", "--seeds", "56:56")

    assert done.returncode == 0, done.stdout


def test_a_schedule_is_the_same_in_every_process() -> None:
    said = {
        tuple(re.findall(r"trace \w+", simulation("--seeds", "11:12", "--trace", **process).stdout))
        for process in PROCESSES
    }

    assert len(said) == 1
    assert len(said.pop()) == 2
