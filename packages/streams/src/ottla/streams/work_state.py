"""The state of a work over all its attempts, for handlers, outputs and failures."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ottla.streams.seams import Work


@dataclass(slots=True, eq=False)
class FinalFailure:
    """A failure after which the work is not handled again."""

    error: BaseException
    attempts: int
    sends: int = 0
    """How often its dead letters were sent."""


@dataclass(slots=True, eq=False)
class WorkState:
    """The state of a work, made when one of its parts first needs it."""

    outputs: list[Any] = field(default_factory=list)
    """The sends of the current attempt, as the `Outputs` keep them."""
    changelogs: Collection[str] = ()
    """The topics among those of its outputs that have state."""
    final: FinalFailure | None = None
    """Set once the work goes to the dead letters."""
    set_aside_offsets: set[int] = field(default_factory=set)
    """The records of a batch whose dead letters are acknowledged, because they cannot be decoded."""


def state_of(work: Work) -> WorkState:
    """Return the state of a work, and make it if there is none."""
    state = work.context
    if state is None:
        state = work.context = WorkState()
    assert isinstance(state, WorkState)
    return state
