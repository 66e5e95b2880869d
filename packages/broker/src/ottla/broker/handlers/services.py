"""What every handler is given: the parts of the broker, and where a request came from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.environment import Environment
    from ottla.broker.log.logs import Logs
    from ottla.broker.metrics import Metrics
    from ottla.broker.replication.replicas import Replicas
    from ottla.protocol.headers import RequestHeader


@dataclass(slots=True, kw_only=True)
class Services:
    """The parts of one broker that handlers act on; `broker.py` puts them together."""

    config: BrokerConfig
    environment: Environment
    metrics: Metrics
    replicas: Replicas
    logs: Logs
    metadata: Any = None
    groups: Any = None
    transactions: Any = None
    controller: Any = None
    topics: Any = None
    configs: Any = None
    session: Any = None
    fetch_sessions: Any = None


@dataclass(slots=True)
class RequestContext:
    """Where one request came from and when it was read."""

    header: RequestHeader
    client_host: str
    listener_name: str
    connection_id: str
    received_ms: float
    """Monotonic clock, as `environment.clock.monotonic_ms()`."""

    @property
    def api_version(self) -> int:
        """The version the request was written in; the answer is written in the same."""
        return self.header.api_version

    @property
    def client_id(self) -> str | None:
        """What the client calls itself."""
        return self.header.client_id


Handler: TypeAlias = Callable[[Services, Any, RequestContext], Awaitable[Any]]
"""`await handle(services, request, context)` gives the response, or None when there is no answer (acks=0)."""
