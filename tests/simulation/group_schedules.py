"""The command that runs schedules of groups, a seed each."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from ottla.broker.controller.testing import run_in_virtual_time
from simulation.invariant_violated import InvariantViolated
from simulation.mutants import Patch


class FailedSchedule(InvariantViolated):
    """The violation of a seed's schedule."""

    def __init__(self, seed: int, violation: str) -> None:
        super().__init__(f"seed {seed}: {violation}")
        self.seed, self.violation = seed, violation


def run_each(seeds: range, schedule: Callable[[int], Coroutine[Any, Any, int]]) -> int:
    """Run the schedule of each seed in virtual time; return the sum. Raises InvariantViolated."""
    steps = 0
    for seed in seeds:
        try:
            steps += run_in_virtual_time(schedule(seed))
        except InvariantViolated as violated:
            raise FailedSchedule(seed, str(violated)) from violated
    return steps


def is_noticed(patches: list[Patch], run_seeds: Callable[[range], int], seeds: range) -> bool:
    """Return whether schedules with these changes of the product have a violation."""
    with changed(patches):
        try:
            run_seeds(seeds)
        except InvariantViolated:
            return True
    return False


@contextmanager
def changed(patches: list[Patch]) -> Iterator[None]:
    """Run with changed rules of the product."""
    before = [(owner, key, owner.__dict__[key]) for owner, key, _ in patches]
    for owner, key, value in patches:
        setattr(owner, key, value)
    try:
        yield
    finally:
        for owner, key, original in before:
            setattr(owner, key, original)


def command(
    about: str,
    name: str,
    run_seeds: Callable[[range], int],
    arguments: list[str],
    *,
    shorten: Callable[[FailedSchedule], str] | None = None,
) -> int:
    """Run the seeds that are asked for; print the steps, or the first violation, `shorten`ed too."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seeds", default="1:2000", help="the first and the last seed")
    first, _, last = parser.parse_args(arguments).seeds.partition(":")
    seeds = range(int(first), int(last or first) + 1)
    try:
        steps = run_seeds(seeds)
    except InvariantViolated as violated:
        print(violated)
        if shorten is not None and isinstance(violated, FailedSchedule):
            print(shorten(violated))
        return 1
    print(f"{len(seeds)} schedules of {name}, {steps} steps, no violation")
    return 0
