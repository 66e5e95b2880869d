"""Faults of a schedule of groups: a list drawn from the seed before anything runs, which can be shortened.

Each fault has its own chance, so leaving one out changes neither the others nor their times.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MOST_RUNS: Final = 80
_FIRST_AT_S: Final = 0.2
_NUMBERED: Final = re.compile(r"[\w.-]*\d[\w.-]*")


@dataclass(frozen=True)
class GroupFault:
    """One thing that happens at a time, with its own chance."""

    at_s: float
    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.at_s:.2f} s: {self.kind}"

    @property
    def chance(self) -> random.Random:
        """The chance that decides how it happens."""
        return random.Random(f"{self.kind} {self.number}")


def draw(seed: int, weights: Mapping[str, int], horizon_s: float, most_between_s: float) -> list[GroupFault]:
    """Draw the faults of a seed; each schedule favours some kinds."""
    chance = random.Random(f"faults {seed}")
    favoured = [weight * chance.choice((0, 1, 1, 3)) for weight in weights.values()]
    if not any(favoured):
        favoured = list(weights.values())
    faults, at_s = list[GroupFault](), _FIRST_AT_S
    while at_s < horizon_s:
        kind = chance.choices(list(weights), favoured)[0]
        faults.append(GroupFault(at_s, kind, chance.getrandbits(32)))
        at_s += chance.uniform(0, most_between_s)
    return faults


def shrink(
    faults: Sequence[GroupFault], violation: str, run: Callable[[Sequence[GroupFault]], str | None]
) -> tuple[list[GroupFault], str]:
    """Return fewer faults that fail alike, and their violation; `run` returns that of some faults."""
    best, found, size, runs = list(faults), violation, max(1, len(faults) // 2), 0
    while size and runs < MOST_RUNS:
        for start in range(0, len(best), size):
            runs += 1
            fewer = best[:start] + best[start + size :]
            tried = run(fewer)
            if tried is not None and kind_of(tried) == kind_of(violation):
                best, found = fewer, tried
                break
        else:
            size //= 2
    return best, found


def kind_of(violation: str) -> str:
    """Return a violation without the names and numbers that differ between schedules."""
    return _NUMBERED.sub("#", violation)
