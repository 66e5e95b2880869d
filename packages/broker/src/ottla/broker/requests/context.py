"""A request's context: the header, the connection it arrived on, and its times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from ottla.broker.quotas.rates import UNLIMITED
from ottla.broker.runtime.loop_budget import Elements, LoopBudget, Turn
from ottla.broker.security.authorizer import ALLOW_ALL, Decision, Resource
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from ottla.broker.quotas.rates import SessionQuotas
    from ottla.broker.requests.fast_path import FastPath
    from ottla.broker.requests.permissions import Permission
    from ottla.broker.security.authorizer import Authorizer, Operation
    from ottla.broker.security.principal import Principal
    from ottla.broker.security.sasl.login import Login
    from ottla.protocol.api import RequestHeader

ANY_NAME: Final = "<any>"
"""The name in the audit log where a client asked for a permission on any resource of a type."""

S = TypeVar("S")
T = TypeVar("T")


class CloseConnection(Exception):
    """Raised by a handler that cannot answer: Kafka refuses an acks=0 produce this way."""


@dataclass(slots=True, eq=False, repr=False)
class Ordering:
    """Keeps the appends of one connection in order when one of them has to leave the event loop."""

    behind: Awaitable[Any] | None = None
    """The last append of the connection that has no offset yet."""


class Target(Protocol):
    """A partition as a fast path uses it; `key` is the topic's bytes and the partition's four bytes."""

    @property
    def key(self) -> bytes: ...


class ClientSession(Protocol):
    """The session of a connection, as handlers use it (`network.session.Session`)."""

    ordering: Ordering
    software: tuple[str, str] | None

    @property
    def principal(self) -> Principal: ...

    @property
    def listener_name(self) -> str: ...

    @property
    def client_host(self) -> str: ...

    @property
    def connection_id(self) -> str:
        """Both ends of the connection and a number: how logs name it."""
        ...

    @property
    def is_authenticated(self) -> bool:
        """Whether the principal is proved, or that of a listener without logins."""
        ...

    @property
    def is_gone(self) -> bool:
        """Whether the connection is closed."""
        ...

    on_gone: Callable[[str], None] | None
    """Called with the connection's id once it is closed."""

    @property
    def quotas(self) -> SessionQuotas:
        """The client's quotas."""
        ...

    @property
    def login(self) -> Login | None:
        """The exchange by which the client logs in; None on a listener without logins."""
        ...

    def authenticated(self, principal: Principal, /, *, ends_after_ms: float | None = None) -> None:
        """Take the identity that authentication has proved; from now on every API may be called.

        After `ends_after_ms` the client has to log in again, before its next request.
        """
        ...

    def begin_login(self) -> None:
        """Accept only the requests of a login from now on, until one has succeeded."""
        ...

    def refuse(self) -> None:
        """Close the connection behind the next response: a login failed."""
        ...

    @property
    def index_epoch(self) -> int:
        """Counts how often the session forgot its partitions."""
        ...

    def admit(self, fast_path: FastPath, key: bytes, target: Target, index_epoch: int, /) -> None:
        """Admit later requests for a partition to the fast path of their API.

        `key` is the partition's in the requests. Does nothing if the session forgot partitions since the
        request with this epoch was read.
        """
        ...


@dataclass(slots=True, eq=False, repr=False)
class RequestContext:
    """Where one request came from and when it was read."""

    header: RequestHeader
    session: ClientSession
    received_ms: float
    """Monotonic clock, as `environment.clock.monotonic_ms()`."""
    index_epoch: int = 0
    """The session's when the request was read."""
    begun_ms: float = 0.0
    """When its handler was called."""
    remote_ms: float = 0.0
    """Time spent waiting for replicas or for data; handlers that wait add to it."""
    budget: LoopBudget = field(default_factory=LoopBudget)
    """The event loop's, of which long requests share a part."""
    authorizer: Authorizer = ALLOW_ALL
    quotas: SessionQuotas = UNLIMITED
    """The client's, when the request was read."""
    busy_ms: float = 0.0
    """Time of the event loop so far, where the client has a quota of it."""
    throttle_time_ms: int = 0
    """How long the client has to wait. Handlers set it for their own quota, the dispatcher for the others."""
    is_long: bool = False
    """Whether the request was so long that it was read in steps; a handler that is called at once returns."""
    _turn: Turn | None = None

    @property
    def turn(self) -> Turn:
        """The request's turn of the event loop, for long work; made when it is first asked for."""
        if self._turn is None:
            self._turn = Turn(self.budget.long_requests, self.session)
        return self._turn

    @property
    def needs_steps(self) -> bool:
        """Whether the response is written in steps, because the work for it was long."""
        return self._turn is not None and self._turn.is_long

    def paced(self, items: Iterable[T]) -> Elements[T]:
        """Iterate over a list of the request with `async for`.

        Between elements the loop goes on with other work when this has taken 10 ms, and `Disconnected` is
        raised when the client has gone.
        """
        return self.turn.over(items)

    @property
    def api_version(self) -> int:
        """The version of the request; the response has the same."""
        return self.header.api_version

    @property
    def client_id(self) -> str | None:
        """The client id in the request's header."""
        return self.header.client_id

    @property
    def principal(self) -> Principal:
        """The client's identity."""
        return self.session.principal

    @property
    def has_authorizer(self) -> bool:
        """Whether anything can be refused: without an authorizer handlers need not go through their lists."""
        return self.authorizer is not ALLOW_ALL

    def allows(self, permission: Permission, resource: Resource, *, is_asked_for: bool = True) -> bool:
        """Return whether the client has a permission on a resource: a handler asks for each of a list.

        `is_asked_for` is false where the answer only leaves out what the request did not name, or is shown as
        an authorized operation: such a decision is not logged for audit.
        """
        if self.authorizer is ALLOW_ALL:
            return True
        session, operation = self.session, permission.operation
        is_allowed = self.authorizer.allows(session.principal, session.client_host, operation, resource)
        if is_asked_for:
            self._audit(operation, resource, is_allowed=is_allowed)
        return is_allowed

    def allows_any(self, permission: Permission) -> bool:
        """Return whether the client has a permission on at least one resource of its type."""
        if self.authorizer is ALLOW_ALL:
            return True
        session, operation = self.session, permission.operation
        host, resource_type = session.client_host, permission.type
        is_allowed = self.authorizer.allows_any(session.principal, host, operation, resource_type)
        self._audit(operation, Resource(resource_type, ANY_NAME), is_allowed=is_allowed)
        return is_allowed

    def _audit(self, operation: Operation, resource: Resource, *, is_allowed: bool) -> None:
        session, api = self.session, ApiKey(self.header.api_key).name
        self.authorizer.audit(
            Decision(session.principal, session.client_host, operation, resource, api, is_allowed)
        )


Handler: TypeAlias = Callable[[S, Any, RequestContext], Any]
"""`handle(services, request, context)` returns the response, or None for no response (acks=0), or an
awaitable of either. `services` is any object that has the parts which the handler's `Needs` names."""
