"""Long loops of the machine, in slices that leave the event loop to others in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from ottla.broker.runtime.frozen_classes import frozen

T = TypeVar("T")

SLICE: Final = 128
"""Partitions of one slice: deciding about one takes some 10 µs."""


@frozen
class LetOthersRun:
    """Let other tasks run, if this step has kept them waiting for some milliseconds."""


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """Divide items, in their order; a `LetOthersRun` belongs behind each slice."""
    rest = iter(items)
    while some := list(islice(rest, SLICE)):
        yield some
