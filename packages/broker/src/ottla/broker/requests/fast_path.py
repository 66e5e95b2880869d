"""The interface between the network and the fast path that a route brings.

The network offers received bytes, and gets one of four outcomes; it knows no API. The classes are compiled
(`_fast_path.pyx`), and `_fast_path.pxd` is the contract for compiled modules of both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests._fast_path import (
    FastAnswers,
    FastPath,
    KnownTargets,
    ReceivedBytes,
    Tally,
    TurnClock,
)

if TYPE_CHECKING:
    from ottla.protocol.api import RequestHeader
    from ottla.protocol.schema import Message

__all__ = [
    "FastAnswers",
    "FastPath",
    "KnownTargets",
    "Outcome",
    "ReceivedBytes",
    "Tally",
    "TurnClock",
    "Wait",
]


class Outcome(IntEnum):
    """The outcome of a fast path for the first requests at hand; `_fast_path.pxd` has the same numbers."""

    GENERAL = 0
    """Nothing: the first request is one for the general path."""
    ANSWERED = 1
    BEGUN = 2
    """They have had their effects, in order; their responses have to be awaited."""
    WAITS = 3
    """It has taken one request, which waits for records."""


class Wait(Protocol):
    """One request that waits for records, without a task."""

    def begin(self, answered: Callable[[FastAnswers | None], None]) -> None:
        """Begin the wait, in the turn of the event loop in which the fast path returned it.

        `answered` is called once, with None when the general path has to serve the request.
        """
        ...

    def end(self) -> None:
        """End the wait without an answer."""
        ...

    def request(self, waited_ms: float) -> tuple[RequestHeader, Message, int]:
        """Return the request and its size for the general path, where it waits for the rest of its time."""
        ...
