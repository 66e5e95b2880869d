"""Make a failing schedule shorter: leave out faults for as long as it violates the same invariant."""

from __future__ import annotations

from typing import Final

from simulation.faults import Fault
from simulation.schedule import Outcome, run_schedule

MOST_RUNS: Final = 80


def shrink(outcome: Outcome, *, transactions: bool = False) -> Outcome:
    """Return a schedule of the same seed with fewer faults that fails alike, or the given one."""
    best, size, runs = outcome, max(1, len(outcome.faults) // 2), 0
    while size and runs < MOST_RUNS:
        shorter = None
        for start in range(0, len(best.faults), size):
            runs += 1
            faults = _without(best.faults, start, size)
            tried = run_schedule(best.seed, faults, transactions=transactions)
            if _kind(tried) == _kind(outcome):
                shorter = tried
                break
        if shorter is not None:
            best = shorter
        else:
            size //= 2
    return best


def _without(faults: list[Fault], start: int, size: int) -> list[Fault]:
    return faults[:start] + faults[start + size :]


def _kind(outcome: Outcome) -> str | None:
    return outcome.violation.split()[0] if outcome.violation is not None else None
