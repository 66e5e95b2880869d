"""The figures of benchmarks in one form for programs: benchmarks keep them, the comparison page reads them.

A benchmark prints its tables for people, and calls `keep` with the figures of each round. They are written, a
line of JSON for each, to the file that `BENCH_FIGURES` names, and nowhere without it.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

FILE_VARIABLE = "BENCH_FIGURES"
Run = TypeVar("Run")


@dataclass(frozen=True)
class Figure:
    """One measure of one subject, such as a client: its value in each round."""

    table: str
    measure: str
    unit: str
    subject: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Figure:
        return cls(**{**found, "values": tuple(found["values"])})


def figure(
    table: str, measure: str, unit: str, subject: str, rounds: Iterable[Run], value: Callable[[Run], float]
) -> Figure:
    """Return the figure that `value` takes from the result of each round."""
    return Figure(table, measure, unit, subject, tuple(map(value, rounds)))


def keep(figures: Iterable[Figure]) -> None:
    """Append figures to the file that the environment names, if it does; those of no round are left out."""
    if place := os.environ.get(FILE_VARIABLE):
        with Path(place).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(found)) + "\n" for found in figures if found.values)


def kept(place: Path) -> list[Figure]:
    """Read the figures that benchmarks have kept in a file; there may be none."""
    lines = place.read_text(encoding="utf-8").splitlines() if place.exists() else []
    return [Figure.from_json(json.loads(line)) for line in lines]


def ratio(of: Figure, to: Figure) -> float:
    """Return the median of the ratios within rounds; where rounds are missing, the ratio of the medians."""
    if len(of.values) != len(to.values) or not all(to.values):
        return of.median / to.median if to.median else 0.0
    return statistics.median(one / other for one, other in zip(of.values, to.values, strict=True))


def number(value: float) -> str:
    """Write a figure with three digits that count, and whole thousands whole."""
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def spread(values: Sequence[float]) -> str:
    """Write the median of the rounds, and behind it the least and the most."""
    middle = number(statistics.median(values))
    least, most = number(min(values)), number(max(values))
    return middle if least == most else f"{middle} ({least} to {most})"
