"""Connections of a server of HTTP that end when their clients do nothing; the console's are such, too."""

from __future__ import annotations

import asyncio
import logging

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_log = logging.getLogger(__name__)


class BoundedConnection(H11Protocol):
    """Ends when its client sends no request, or takes nothing of an answer, from one look to the next.

    All connections of a server hold `most_held_bytes` of answers at most: beyond, the fullest one ends.
    """

    look_every_s: float = 60.0
    most_held_bytes: int = 128 << 20

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to look."""
        super().connection_made(transport)
        self._held_before = 0
        self._waited_after: object = self  # something that is no request
        self._looking = self.loop.call_later(self.look_every_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the looks."""
        self._looking.cancel()
        super().connection_lost(exc)

    @property
    def held_bytes(self) -> int:
        """The bytes of answers that the client has not taken, apart from those with the system."""
        return self.transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        """Wait for the client, unless all of them leave too much."""
        super().pause_writing()
        bounded = [other for other in self.connections if isinstance(other, BoundedConnection)]
        if sum(other.held_bytes for other in bounded) > self.most_held_bytes:
            max(bounded, key=lambda other: other.held_bytes)._cut_off("clients take too little")

    def _look(self) -> None:
        self._looking = self.loop.call_later(self.look_every_s, self._look)
        held, waits = self.held_bytes, self.conn.their_state is h11.IDLE
        if held and held >= self._held_before > 0:
            self._cut_off("the client takes nothing")
        elif waits and not held and self._waited_after is self.cycle:
            self._cut_off("the client asks for nothing")
        self._held_before, self._waited_after = held, self.cycle if waits else self

    def _cut_off(self, reason: str) -> None:
        _log.warning("a connection is cut off", extra={"client": self.client, "reason": reason})
        self.transport.abort()
