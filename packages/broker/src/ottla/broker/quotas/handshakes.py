"""Limits on connections whose TLS handshake is not finished: their time, and their number.

Such a connection costs memory and is not yet anybody's. When there are too many, an address that has the most
of them gives up its newest, so that a flood from one address leaves the others in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.quotas.connections import source_of

if TYPE_CHECKING:
    from asyncio import TimerHandle

WITHIN_S: Final = 10.0
"""The time for a handshake; a login behind it has what is left of it."""
MOST: Final = 2_048
"""Unfinished handshakes at once. Each may hold about 40 KiB."""
MOST_ENDS: Final = 64
"""Connections given up in one turn of the event loop, at about 20 µs."""


class Unfinished(Protocol):
    """A connection that may be given up before its handshake is done."""

    @property
    def listener_name(self) -> str:
        """The listener that it came to."""
        ...

    def give_up(self, reason: str) -> None:
        """Close at once."""
        ...


class UnfinishedHandshakes:
    """The connections whose handshake is not finished, by the address they come from."""

    def __init__(
        self,
        now_s: Callable[[], float],
        call_at: Callable[[float, Callable[[], None]], TimerHandle],
        *,
        most: int = MOST,
        within_s: float = WITHIN_S,
    ) -> None:
        self._now_s = now_s
        self._call_at = call_at
        self._most = most
        self._within_s = within_s
        self._due_s: OrderedDict[Unfinished, tuple[float, str]] = OrderedDict()
        self._by_host: dict[str, OrderedDict[Unfinished, None]] = {}
        self._timer: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due_s)

    def begin(self, connection: Unfinished, host: str) -> str | None:
        """Count a connection from now on; return why it is refused, or None."""
        source = source_of(host)
        if len(self._due_s) >= self._most:
            largest = max(self._by_host.values(), key=len)
            if len(self._by_host.get(source, ())) + 1 >= len(largest):
                return f"{self._most} handshakes are not finished, most of them from its address"
            newest = next(reversed(largest))
            self.end(newest)
            newest.give_up("it made room for one from an address with fewer unfinished handshakes")
        self._due_s[connection] = (self._now_s() + self._within_s, source)
        self._by_host.setdefault(source, OrderedDict())[connection] = None
        self._plan()
        return None

    def end(self, connection: Unfinished) -> None:
        """Count a connection no longer: its handshake is done, or it is closed."""
        due = self._due_s.pop(connection, None)
        if due is None:
            return
        of_host = self._by_host[due[1]]
        del of_host[connection]
        if not of_host:
            del self._by_host[due[1]]

    def of_listener(self, listener_name: str) -> list[Unfinished]:
        """Return the connections that came to a listener."""
        return [found for found in self._due_s if found.listener_name == listener_name]

    def close(self) -> None:
        """Wait for no time any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self) -> None:
        if self._timer is None and self._due_s:
            due_s, _ = next(iter(self._due_s.values()))
            self._timer = self._call_at(due_s, self._look)

    def _look(self) -> None:
        """Give up the connections whose time is over; the order of their beginning is that of their ends."""
        self._timer = None
        now_s = self._now_s()
        for connection, (due_s, _) in list(islice(self._due_s.items(), MOST_ENDS)):
            if due_s > now_s:
                break
            self.end(connection)
            connection.give_up(f"not finished within {self._within_s:g} s")
        self._plan()
