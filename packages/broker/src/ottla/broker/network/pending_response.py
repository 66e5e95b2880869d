"""A request of a connection that was begun and has no response yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.network.response_queue import Part


class PendingResponse:
    """A request without its response, or the response of a Produce behind such a Produce."""

    __slots__ = ("cancel", "done", "only_waits", "parts", "stops_with_broker")

    def __init__(
        self,
        parts: list[Part] | None = None,
        *,
        done: bool = False,
        only_waits: bool = False,
        stops_with_broker: bool = False,
    ) -> None:
        self.parts = parts
        self.done = done
        self.only_waits = only_waits
        """Whether it may be dropped when the client disconnects."""
        self.stops_with_broker = stops_with_broker
        """Whether a stopping broker drops it at once."""
        self.cancel: Callable[[], object] | None = None
        """Ends the work on it, without a response."""


def are_worked_on(pending: Iterable[PendingResponse]) -> bool:
    """Return whether any of them is answered without waiting for records or for other clients."""
    return any(not one.done and not one.stops_with_broker for one in pending)
