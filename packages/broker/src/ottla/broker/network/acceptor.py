"""Accepting connections on one address, also when the process has no descriptor left for them."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ottla.broker.runtime.log_lines import LimitedWarnings

PAUSE_S: Final = 1.0
MAX_AT_ONCE: Final = 8
"""Connections accepted in one turn of the event loop: each takes 0.2 ms of the next two, until it is open."""
_NO_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_GONE: Final = (BlockingIOError, InterruptedError, ConnectionAbortedError)


class Acceptor:
    """Accepts connections on a bound socket while it serves.

    Without descriptors it pauses for a second, and says so at a limited rate; clients wait in the backlog.
    The event loops' own servers log a traceback for every attempt, or close the connections.
    """

    def __init__(
        self,
        bound: socket.socket,
        make: Callable[[], asyncio.BufferedProtocol],
        *,
        backlog: int,
        warnings: LimitedWarnings,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        accepted: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`accepted` counts a connection, and returns how many milliseconds the next one has to wait."""
        self._socket = bound
        self._make = make
        self._backlog = backlog
        self._warnings = warnings
        self._spawn = spawn
        self._accepted = accepted
        self._loop = asyncio.get_running_loop()
        self._resume: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, as they are bound."""
        host, port, *_ = self._socket.getsockname()
        return str(host), int(port)

    def serve(self) -> None:
        """Begin to accept."""
        self._socket.listen(self._backlog)
        self._loop.add_reader(self._socket.fileno(), self._accept_some)

    def close(self) -> None:
        """Accept no more and give the address back."""
        self._is_closed = True
        if self._resume is not None:
            self._resume.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _accept_some(self) -> None:
        for _ in range(MAX_AT_ONCE):
            try:
                accepted, _ = self._socket.accept()
            except _GONE:
                return
            except OSError as error:
                self._failed(error)
                return
            accepted.setblocking(False)
            self._spawn(self._connect(accepted))
            if (wait_ms := self._accepted()) > 0:
                self._pause(wait_ms / 1000)
                return

    async def _connect(self, accepted: socket.socket) -> None:
        if self._is_closed:  # the listener was removed in the turn in which this came
            accepted.close()
            return
        try:
            await self._loop.connect_accepted_socket(self._make, accepted)
        except OSError as error:
            accepted.close()
            self._warnings.warn(
                self._name, "connection not opened", extra={"listener": self._name, "reason": str(error)}
            )

    def _failed(self, error: OSError) -> None:
        """Pause: missing descriptors do not come back with the next attempt."""
        if error.errno in _NO_RESOURCES:
            event = "no connections accepted for now: raise ulimit -n or lower max.connections"
        else:
            event = "connection not accepted"
        facts = {"listener": self._name, "reason": error.strerror or str(error)}
        self._warnings.warn(self._name, event, extra=facts)
        self._pause(PAUSE_S)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._resume = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._resume = None
        self._loop.add_reader(self._socket.fileno(), self._accept_some)

    @property
    def _name(self) -> str:
        host, port = self.address
        return f"{host}:{port}"
