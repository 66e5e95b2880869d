"""A request's context: the header, the connection it arrived on, and its times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from ottla.protocol.headers import RequestHeader

S = TypeVar("S")


class CloseConnection(Exception):
    """Raised by a handler that cannot answer: Kafka refuses an acks=0 produce this way."""


@dataclass(slots=True)
class Ordering:
    """Keeps the appends of one connection in order when one of them has to leave the event loop."""

    behind: Awaitable[Any] | None = None
    """The last append of the connection that has no offset yet."""


@dataclass(slots=True)
class RequestContext:
    """Where one request came from and when it was read."""

    header: RequestHeader
    client_host: str
    listener_name: str
    connection_id: str
    received_ms: float
    """Monotonic clock, as `environment.clock.monotonic_ms()`."""
    ordering: Ordering = field(default_factory=Ordering)
    begun_ms: float = 0.0
    """When its handler was called."""
    remote_ms: float = 0.0
    """Time spent waiting for replicas or for data; handlers that wait add to it."""

    @property
    def api_version(self) -> int:
        """The version of the request; the response has the same."""
        return self.header.api_version

    @property
    def client_id(self) -> str | None:
        """The client id in the request's header."""
        return self.header.client_id


Handler: TypeAlias = Callable[[S, Any, RequestContext], Any]
"""`handle(services, request, context)` returns the response, or None for no response (acks=0), or an
awaitable of either. `services` is any object that has the parts which the handler's `Needs` names."""
