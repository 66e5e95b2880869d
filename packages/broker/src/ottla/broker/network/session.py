"""The session of one connection: its client's identity, its login state and the partitions it knows.

Rules for authentication, ACLs and quotas:

- Before login the dispatcher accepts only the APIs whose route says `before_login`, one request at a time,
  and closes the connection on any other. It is the only place that checks the state.
- The fast paths serve only partitions in the session's own index. A partition gets into the index when the
  general path has served a request for it, with every check that the general path makes. So the fast paths
  make no checks of their own, and nothing is in the index before login.
- A login that ends, or begins again on the same connection, makes the session unauthenticated until the
  client has logged in again (`security.sasl.login` knows the order of its messages).
- A change of this client's permissions drops its index (`forget_partitions`): the next request for each
  partition takes the general path again. A new login drops it too. A request that was read before the change
  and waits admits nothing when it ends (`index_epoch`).
- A change that concerns a partition for all clients retires the target that all sessions share
  (`api.known_partitions`), and no session has to be visited.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.quotas.rates import STALE
from ottla.broker.requests.context import Ordering
from ottla.broker.requests.fast_path import KnownTargets
from ottla.broker.security.principal import ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.quotas.rates import SessionQuotas
    from ottla.broker.requests.context import Target
    from ottla.broker.requests.fast_path import FastPath
    from ottla.broker.security.principal import Principal
    from ottla.broker.security.sasl.login import Login

MAX_KNOWN_PARTITIONS: Final = 4096
"""Partitions in each index of a session. The one admitted first makes room for the next."""


class SessionState(Enum):
    """Login state of a session."""

    UNAUTHENTICATED = "unauthenticated"
    AUTHENTICATED = "authenticated"


class Session:
    """One connection's client. An idle session has no index and costs about a hundred bytes."""

    __slots__ = (
        "client_host",
        "client_id",
        "connection_id",
        "index_epoch",
        "is_gone",
        "is_refused",
        "known",
        "listener_name",
        "login",
        "on_gone",
        "on_login",
        "ordering",
        "principal",
        "quotas",
        "software",
        "state",
    )

    def __init__(
        self,
        *,
        listener_name: str,
        client_host: str,
        connection_id: str,
        state: SessionState = SessionState.AUTHENTICATED,
        login: Login | None = None,
    ) -> None:
        """`login` is the exchange by which the client logs in; None on a listener without logins."""
        self.listener_name = listener_name
        self.client_host = client_host
        self.connection_id = connection_id
        self.client_id: str | None = None
        """The client id of the last request that took the general path."""
        self.software: tuple[str, str] | None = None
        """Name and version of the client's library, which ApiVersions brings; few clients have none."""
        self.principal: Principal = ANONYMOUS
        self.quotas: SessionQuotas = STALE
        """Those of the principal and the client id; looked up again where they are stale."""
        self.state = state
        self.login = login
        self.on_login: Callable[[float | None], None] | None = None
        """Called with each login, and with the time in ms after which it ends."""
        self.is_refused = False
        """Whether a login failed: the connection closes behind the next response."""
        self.is_gone = False
        """Whether the connection is closed: long requests stop."""
        self.on_gone: Callable[[str], None] | None = None
        """Called with the connection's id once it is closed."""
        self.ordering = Ordering()
        self.index_epoch = 0
        """Counts how often partitions were forgotten."""
        self.known: dict[int, KnownTargets] | None = None
        """The index for the fast path of each API, by its key; None while there is none, mostly for ever."""

    def client_named(self, client_id: str | None) -> None:
        """Take the client id of a request. Thousands of connections share the text of one id."""
        self.client_id = None if client_id is None else sys.intern(client_id)
        self.quotas = STALE

    # ---- login

    @property
    def is_authenticated(self) -> bool:
        """Whether every API may be called."""
        return self.state is SessionState.AUTHENTICATED

    def authenticated(self, principal: Principal, *, ends_after_ms: float | None = None) -> None:
        """Take the identity that authentication has proved, and drop the partitions of an earlier one."""
        self.principal = principal
        self.state = SessionState.AUTHENTICATED
        self.quotas = STALE
        self.forget_partitions()
        if self.on_login is not None:
            self.on_login(ends_after_ms)

    def begin_login(self) -> None:
        """Accept only the requests of a login from now on, until one has succeeded."""
        self.state = SessionState.UNAUTHENTICATED
        self.forget_partitions()

    def refuse(self) -> None:
        """Close the connection behind the next response: a login failed."""
        self.begin_login()
        self.is_refused = True

    # ---- known partitions

    def admit(self, fast_path: FastPath, key: bytes, target: Target, index_epoch: int) -> None:
        """Admit later requests for a partition to the fast path of their API.

        The request that was served has read `index_epoch` before anything was checked. A request may wait:
        partitions forgotten in the meantime, because an ACL was taken away, must not come back with it.
        """
        if index_epoch != self.index_epoch:
            return
        if self.known is None:
            self.known = {}
        known = self.known.get(fast_path.api_key)
        if known is None:
            known = self.known[fast_path.api_key] = KnownTargets(fast_path)
        _admit(known.targets, key, target)

    def targets_of(self, api_key: int) -> dict[bytes, Any]:
        """Return the index of one API; empty where the session knows none of its partitions."""
        known = None if self.known is None else self.known.get(api_key)
        return {} if known is None else known.targets

    def forget_partitions(self, topic: str | None = None) -> None:
        """Send the next request for each partition, or for each of one topic, down the general path."""
        self.index_epoch += 1
        if topic is None:
            self.known = None
        elif self.known is not None:
            for known in self.known.values():
                _drop_topic(known.targets, topic.encode())


def _admit(targets: dict[bytes, Any], key: bytes, target: Target) -> None:
    if len(targets) >= MAX_KNOWN_PARTITIONS and key not in targets:
        del targets[next(iter(targets))]
    targets[key] = target


def _drop_topic(targets: dict[bytes, Any], topic: bytes) -> None:
    for key in [key for key, target in targets.items() if target.key[:-4] == topic]:
        del targets[key]
