"""The progress of incomplete frames: which are stuck, and which are slowest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

LOOK_EVERY_S: Final = 1.0
STUCK_AFTER_S: Final = 30.0
"""How long a frame may make no progress at all."""


class Receiver(Protocol):
    """A connection, as far as its frame is looked at."""

    last_active_s: float

    @property
    def kept_bytes(self) -> int:
        """Bytes received that were not taken as requests yet."""
        ...

    @property
    def is_receiving(self) -> bool:
        """Whether the frame waits for its client; if not, it waits for the broker."""
        ...


class _Look(NamedTuple):
    kept_bytes: int
    last_active_s: float
    idle_s: float
    bytes_per_s: float


C = TypeVar("C", bound=Receiver)


class FrameProgress(Generic[C]):
    """Looks at incomplete frames, about once a second. Remembers those of the last look only."""

    def __init__(self) -> None:
        self._looks: dict[C, _Look] = {}
        self._looked_s = float("-inf")

    def look(self, now_s: float, connections: Iterable[C]) -> list[C]:
        """Note how far every frame has come; return the connections whose frames are stuck."""
        # A process that did not run for a while could not receive, either: that time does not count.
        elapsed_s = max(0.001, min(now_s - self._looked_s, 2 * LOOK_EVERY_S))
        self._looked_s = now_s
        self._looks = {
            connection: self._next(connection, elapsed_s)
            for connection in connections
            if connection.kept_bytes and connection.is_receiving
        }
        return [
            topic_partition for topic_partition, look in self._looks.items() if look.idle_s >= STUCK_AFTER_S
        ]

    def _next(self, connection: C, elapsed_s: float) -> _Look:
        kept_bytes, active_s = connection.kept_bytes, connection.last_active_s
        before = self._looks.get(connection)
        if before is None:
            return _Look(kept_bytes, active_s, 0.0, kept_bytes / elapsed_s)
        if before.last_active_s == active_s:
            return _Look(kept_bytes, active_s, before.idle_s + elapsed_s, 0.0)
        # Not more than before: that frame was completed, and this is another.
        gained = kept_bytes - before.kept_bytes
        return _Look(kept_bytes, active_s, 0.0, (gained if gained > 0 else kept_bytes) / elapsed_s)

    def slowest_first(self, connections: Iterable[C]) -> list[C]:
        """Order connections by the cost of closing them: first those that hold much and receive little.

        The bytes that a frame holds count twice, so that a slow link with a small part of a frame stays while
        others hold large ones. Frames that wait for the broker, and not for their client, come last.
        """
        return sorted((connection for connection in connections if connection.kept_bytes), key=self._rank)

    def _rank(self, connection: C) -> tuple[bool, float, int]:
        kept_bytes = connection.kept_bytes
        look = self._looks.get(connection)
        bytes_per_s = kept_bytes / LOOK_EVERY_S if look is None else look.bytes_per_s
        return (not connection.is_receiving, bytes_per_s / kept_bytes**2, -kept_bytes)
