"""The open connections of one broker: their limits, their idle time, and the wait for their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from ottla.broker.quotas.connections import (
    ConnectionQuotas,
    has_names,
    own_limits,
    parse_overrides,
    source_of,
)
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.client.config_definition import is_loopback

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.network.session import Session
    from ottla.broker.quotas.connections import AddressRates

log = logging.getLogger("request")


RESERVED_MS: Final = 2_000
"""How long a connection beyond the limits is kept when another one comes: enough for a command."""


class Holder(Protocol):
    """A connection that has a place within the limits, before its TLS handshake is done or after."""

    def close(self) -> None:
        """Close once the responses are written."""
        ...


class Closable(Holder, Protocol):
    """A connection, as far as it is counted and closed here."""

    session: Session
    last_active_s: float
    looked_at_s: float

    @property
    def socket_descriptor(self) -> int:
        """The descriptor of the socket, also beneath TLS; negative where it is not known."""
        ...

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        ...

    @property
    def waits_unseen(self) -> bool:
        """Whether a request that only waits holds back others, so that no end of the client is seen."""
        ...

    def end_wait(self) -> None:
        """Drop the request that waits."""
        ...


C = TypeVar("C", bound=Closable)


class OpenConnections(Generic[C]):
    """Counts connections and closes idle ones.

    No limit shuts out everybody. Connections to a listener that is for brokers alone are admitted always; at
    `max.connections` the least recently used one of another listener is closed for them, as in Kafka. And one
    connection from this machine is admitted beyond the limits, which can be changed over it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        monotonic_ms: Callable[[], float],
        rates: AddressRates | None = None,
    ) -> None:
        self._rates = rates
        self.idle_s = config.connections_max_idle_ms / 1000
        self._quotas = ConnectionQuotas(0, 0, {})
        self._of_listeners: Counter[str] = Counter()
        """Open connections by the listener's name."""
        self._listener_limits: dict[str, int] = {}
        self._listener_of_brokers: str | None = None
        self._reserved: Holder | None = None
        """The connection from this machine that was admitted beyond the limits."""
        self._reserved_since_ms = 0.0
        self._monotonic_ms = monotonic_ms
        self._open: OrderedDict[C, None] = OrderedDict()
        self._overrides = ""
        self.set_limits(config)
        self._without_login: dict[str, dict[C, None]] = {}
        """The connections of each address that have not logged in yet, in the order in which they came."""
        self._max_without_login = config.max_connections_before_login_per_ip
        self._settled = asyncio.Event()
        self._numbers = 0
        self._warnings = LimitedWarnings(log, monotonic_ms)

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[C]:
        """Return the connections that are open now."""
        return list(self._open)

    def forget_partitions(self) -> list[object]:
        """Send the next request for each partition down the general path; return the indexes for release."""
        dropped: list[object] = []
        for connection in self._open:
            if connection.session.known is not None:
                dropped.append(connection.session.known)
            connection.session.forget_partitions()
        return dropped

    def next_number(self) -> int:
        """Number the connections of this broker."""
        self._numbers += 1
        return self._numbers

    # ---- limits

    def set_limits(self, config: BrokerConfig) -> None:
        """Hold new connections to these limits; open ones stay."""
        several = len(config.parsed_listeners) > 1
        self._listener_of_brokers = config.interbroker_listener if several else None
        self._quotas.in_all = config.max_connections
        self._quotas.per_address = config.max_connections_per_ip
        self._listener_limits = own_limits(config, "max_connections")
        if config.max_connections_per_ip_overrides != self._overrides:
            self._set_overrides(config.max_connections_per_ip_overrides)

    def _set_overrides(self, text: str) -> None:
        """Use overrides at once, or, with host names, once a thread has resolved them."""
        self._overrides = text
        if not has_names(text):
            self._quotas.overrides = parse_overrides(text)
            return

        def resolved(found: asyncio.Future[dict[str, int]]) -> None:
            if not found.cancelled() and found.exception() is None and text == self._overrides:
                self._quotas.overrides = found.result()

        resolving = asyncio.get_running_loop().run_in_executor(None, parse_overrides, text)
        resolving.add_done_callback(resolved)

    def take_place(self, holder: Holder, listener_name: str, host: str) -> bool:
        """Count a connection as it is accepted, or refuse it."""
        full = self._full_listener(listener_name)
        if listener_name == self._listener_of_brokers and not full:
            if self._quotas.is_full:
                self._close_least_recently_used()
            self._quotas.count(host)
        elif refusal := (full or (self._rates and self._rates.take(host)) or self._quotas.take(host)):
            if not is_loopback(host) or not self._take_reserved():
                self._warnings.warn(host, "connection refused", extra={"host": host, "reason": refusal})
                return False
            self._quotas.count(host)
            self._reserved, self._reserved_since_ms = holder, self._monotonic_ms()
        self._of_listeners[listener_name] += 1
        return True

    def give_place_back(self, holder: Holder, listener_name: str, host: str) -> None:
        """Count a closed connection no longer."""
        self._of_listeners[listener_name] -= 1
        if holder is self._reserved:
            self._reserved = None
        self._quotas.give_back(host)

    def admit(self, connection: C, holder: Holder | None = None) -> bool:
        """Count a new connection, or refuse it. One whose handshake is done has the place of its `holder`."""
        session = connection.session
        if holder is None:
            if not self.take_place(connection, session.listener_name, session.client_host):
                return False
        elif holder is self._reserved:
            self._reserved = connection
        self._open[connection] = None
        if session.login is not None:
            self._admit_before_login(connection, session.client_host)
        return True

    def _admit_before_login(self, connection: C, host: str) -> None:
        """Close the oldest of too many connections of an address without a login: the newest may log in."""
        waiting = self._without_login.setdefault(source_of(host), {})
        waiting[connection] = None
        if len(waiting) > self._max_without_login:
            oldest = next(iter(waiting))
            del waiting[oldest]
            limit = f"max.connections.before.login.per.ip is {self._max_without_login}"
            facts = {"host": host, "reason": limit}
            self._warnings.warn(host, "connection closed before its login", extra=facts)
            oldest.close()

    def logged_in(self, connection: C) -> None:
        """Count a connection no longer among those without a login."""
        source = source_of(connection.session.client_host)
        waiting = self._without_login.get(source)
        if waiting is not None:
            waiting.pop(connection, None)
            if not waiting:
                del self._without_login[source]

    def _full_listener(self, name: str) -> str | None:
        """Return which limit of a listener is reached, or None."""
        most = self._listener_limits.get(name)
        if most is None or self._of_listeners[name] < most:
            return None
        return f"listener.name.{name.lower()}.max.connections of {most} is reached"

    def _take_reserved(self) -> bool:
        """Free the connection beyond the limits: any client of this machine may have it, but not for long."""
        if self._reserved is None:
            return True
        if self._monotonic_ms() - self._reserved_since_ms < RESERVED_MS:
            return False
        self._reserved.close()
        return True

    def _close_least_recently_used(self) -> None:
        others = (found for found in self._open if found.session.listener_name != self._listener_of_brokers)
        oldest = min(others, key=lambda found: (not found.idle, found.last_active_s), default=None)
        if oldest is not None:
            log.info(
                "connection closed: a broker needs its room",
                extra={"connection": oldest.session.connection_id},
            )
            oldest.close()

    def forget(self, connection: C) -> None:
        """Take a closed connection off."""
        if connection in self._open:
            del self._open[connection]
            self.logged_in(connection)
            session = connection.session
            self.give_place_back(connection, session.listener_name, session.client_host)
        self.settled()

    # ---- waiting

    def settled(self) -> None:
        """Wake `until`: a connection has less to do than before, or is closed."""
        self._settled.set()

    async def until(self, condition: Callable[[], bool], bound_s: float) -> None:
        """Wait until a condition on the connections holds, for at most `bound_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(bound_s):
                while not condition():
                    self._settled.clear()
                    await self._settled.wait()

    # ---- idle connections

    def idle(self, now_s: float) -> Iterator[C]:
        """Yield the connections to close: they sent nothing for `connections.max.idle.ms`.

        The order is that of the last look, not of the last use: a connection that was used since then moves
        to the end. Each is looked at about once per idle time, and using one costs nothing.
        """
        for connection in list(self._open):
            if now_s - connection.looked_at_s < self.idle_s:
                return
            if connection.idle and now_s - connection.last_active_s >= self.idle_s:
                log.info(
                    "connection closed: idle",
                    extra={
                        "connection": connection.session.connection_id,
                        "idle_s": round(now_s - connection.last_active_s),
                    },
                )
                connection.looked_at_s = now_s  # it may be open still at the next look
                self._open.move_to_end(connection)
                yield connection
                continue
            connection.looked_at_s = connection.last_active_s if connection.idle else now_s
            self._open.move_to_end(connection)

    # ---- clients that are gone

    def end_unseen_waits(self) -> None:
        """End the waits of clients that have disconnected while the broker does not read from them."""
        waiting = {
            connection.socket_descriptor: connection for connection in self._open if connection.waits_unseen
        }
        waiting.pop(-1, None)
        if not waiting:
            return
        poll = select.poll()
        for descriptor in waiting:
            poll.register(descriptor, select.POLLRDHUP)
        for descriptor, _ in poll.poll(0):
            waiting[descriptor].end_wait()
