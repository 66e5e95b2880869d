"""Changed rules of the product. The simulation has to notice each of them, or it proves nothing.

A mutant's docstring says what it breaks. One that no schedule can notice says why it is equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

Patch = tuple[Any, str, Any]
"""The owner of a name, the name, and what it stands for in the mutant."""


class NamedMutants(dict[str, Callable[[], list[Patch]]]):
    """Changed rules by the names of the functions that return them."""

    def add(self, patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        """Add a mutant."""
        self[patches.__name__] = patches
        return patches


@dataclass(frozen=True)
class Mutant:
    """One changed rule; `equivalent` where another rule makes up for it, so that nothing can be noticed."""

    name: str
    patches: Callable[[], list[Patch]]
    within: int
    equivalent: bool
    transactions: bool
    """Whether it takes clients of transactions."""
    full_disks: bool
    """Whether it takes disks that are full now and then."""
    scenario: str | None
    """The faults with which the seeds notice it, where those that they draw do not."""
    why: str


MUTANTS: Final[dict[str, Mutant]] = {}


def mutant(
    *,
    within: int = 100,
    equivalent: bool = False,
    transactions: bool = False,
    full_disks: bool = False,
    scenario: str | None = None,
) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    """Add a mutant that has to be noticed `within` so many schedules."""

    def add(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        name = patches.__name__
        why = patches.__doc__ or ""
        MUTANTS[name] = Mutant(name, patches, within, equivalent, transactions, full_disks, scenario, why)
        return patches

    return add


@contextmanager
def applied(name: str | None) -> Iterator[None]:
    """Run with one changed rule, or with none."""
    patches = MUTANTS[name].patches() if name is not None else []
    before = [(owner, key, owner.__dict__[key]) for owner, key, _ in patches]
    for owner, key, changed in patches:
        setattr(owner, key, changed)
    try:
        yield
    finally:
        for owner, key, original in before:
            setattr(owner, key, original)
