"""The serving lease: at its end requests and answers wait, until the broker still has its session."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import inf
from typing import Protocol

from ottla.broker.network.native_connection import WriteRound

log = logging.getLogger("request")


class Holdable(Protocol):
    """A connection, as far as it is held."""

    def stop_taking(self) -> None:
        """Take no more requests."""
        ...

    def take_again(self) -> None:
        """Undo `stop_taking`, and begin the requests that were received."""
        ...

    def fail(self, error: Exception, /) -> None:
        """Log a fault of this broker, and close."""
        ...


class ServingLease:
    """Holds requests and answers from the end of the lease until it is extended; without one, never.

    Receiving and writing compare the clock with its end, for after the process was stopped sockets are
    served before timers. Connections stay open: their clients wait.
    """

    def __init__(self, write_round: WriteRound, connections: Callable[[], Iterable[Holdable]]) -> None:
        self._round = write_round
        self._round.overdue = self.hold
        self._connections = connections
        self._ended = False
        self.is_held = False

    @property
    def until_ms(self) -> float:
        """The end of the lease, on the monotonic clock."""
        return self._round.serve_until_ms

    def hold(self) -> None:
        """Begin no request and write no answer."""
        if self.is_held:
            return
        self.is_held = True
        log.warning("requests wait: this process has slept, and another broker may have its id")
        # A connection that cannot be held is closed: it must not be served, and must not keep others served.
        for connection in self._connections():
            try:
                connection.stop_taking()
            except Exception as error:
                connection.fail(error)

    def extend(self, until_ms: float = inf) -> None:
        """Serve until then; requests and answers that were held go on."""
        self._round.serve_until_ms = until_ms
        if self.is_held and not self._ended:
            self.is_held = False
            for connection in self._connections():
                try:
                    connection.take_again()
                except Exception as error:
                    connection.fail(error)
            self._round.write_all()

    def end(self) -> None:
        """Leave held connections as they are: the broker ends."""
        self._ended = True
