"""The command that runs schedules of groups, a seed each."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine
from typing import Any

from ottla.broker.controller.testing import run_in_virtual_time
from simulation.invariant_violated import InvariantViolated
from simulation.mutants import Patch


def run_each(seeds: range, schedule: Callable[[int], Coroutine[Any, Any, int]]) -> int:
    """Run the schedule of each seed in virtual time; return the sum. Raises InvariantViolated."""
    steps = 0
    for seed in seeds:
        try:
            steps += run_in_virtual_time(schedule(seed))
        except InvariantViolated as violated:
            raise InvariantViolated(f"seed {seed}: {violated}") from violated
    return steps


def is_noticed(patches: list[Patch], run_seeds: Callable[[range], int], seeds: range) -> bool:
    """Return whether schedules with these changes of the product have a violation."""
    before = [(owner, key, owner.__dict__[key]) for owner, key, _ in patches]
    for owner, key, changed in patches:
        setattr(owner, key, changed)
    try:
        run_seeds(seeds)
    except InvariantViolated:
        return True
    finally:
        for owner, key, original in before:
            setattr(owner, key, original)
    return False


def command(about: str, name: str, run_seeds: Callable[[range], int], arguments: list[str]) -> int:
    """Run the seeds that are asked for; print the steps, or the first violation."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seeds", default="1:2000", help="the first and the last seed")
    first, _, last = parser.parse_args(arguments).seeds.partition(":")
    seeds = range(int(first), int(last or first) + 1)
    try:
        steps = run_seeds(seeds)
    except InvariantViolated as violated:
        print(violated)
        return 1
    print(f"{len(seeds)} schedules of {name}, {steps} steps, no violation")
    return 0
