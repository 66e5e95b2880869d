"""Changed rules of the product. The simulation has to notice each of them, or it proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

Undo = Callable[[], None]
MUTANTS: Final[dict[str, Callable[[], Undo]]] = {}
"""Each makes one change and returns what undoes it."""


@contextmanager
def applied(name: str | None) -> Iterator[None]:
    """Run with one changed rule, or with none."""
    undo = MUTANTS[name]() if name is not None else lambda: None
    try:
        yield
    finally:
        undo()
