"""What every handler is given: the parts of the broker, and where a request came from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ottla.broker.handlers.fetch_plain import PlainFetches
from ottla.broker.handlers.fetch_sessions import FetchSessions
from ottla.broker.handlers.produce_run import ProduceRuns
from ottla.broker.handlers.topic_metrics import TopicMetrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.broker.cluster.configs import Configs
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.cluster.topics import Topics
    from ottla.broker.config import BrokerConfig
    from ottla.broker.controller.controller import Controller
    from ottla.broker.environment import Environment
    from ottla.broker.groups.coordinator import GroupCoordinator
    from ottla.broker.log.log import Slice
    from ottla.broker.log.registry import LogRegistry
    from ottla.broker.metrics import Metrics
    from ottla.broker.replication.replicas import Replicas
    from ottla.broker.transactions.coordinator import Transactions
    from ottla.protocol.headers import RequestHeader
    from ottla.zookeeper.session import Session


@dataclass(slots=True, kw_only=True)
class Services:
    """The parts of one broker that handlers act on; `broker.py` puts them together."""

    config: BrokerConfig
    environment: Environment
    metrics: Metrics
    replicas: Replicas
    logs: LogRegistry
    metadata: MetadataCache = field(default=None)  # type: ignore[assignment]  # tests leave out what they do not use
    groups: GroupCoordinator = field(default=None)  # type: ignore[assignment]
    transactions: Transactions = field(default=None)  # type: ignore[assignment]
    controller: Controller = field(default=None)  # type: ignore[assignment]
    topics: Topics = field(default=None)  # type: ignore[assignment]
    configs: Configs = field(default=None)  # type: ignore[assignment]
    session: Session = field(default=None)  # type: ignore[assignment]
    cluster_id: str = ""
    api_ranges: Sequence[tuple[int, int, int]] = ()
    """Key, first and last version of every API that is served."""
    fetch_sessions: FetchSessions = field(init=False)
    topic_metrics: TopicMetrics = field(init=False)
    produce_runs: ProduceRuns = field(init=False)
    plain_fetches: PlainFetches = field(init=False)

    def __post_init__(self) -> None:
        slots = self.config.max_incremental_fetch_session_cache_slots
        self.fetch_sessions = FetchSessions(slots, lambda: self.environment.random.randrange(1, 2**31))
        self.topic_metrics = TopicMetrics(self.metrics)
        self.produce_runs = ProduceRuns(self)
        self.plain_fetches = PlainFetches(self)
        kind = ("kafka.server", "FetchSessionCache")
        self.metrics.gauge(*kind, "NumIncrementalFetchSessions", lambda: len(self.fetch_sessions))
        self.metrics.gauge(
            *kind, "NumIncrementalFetchPartitionsCached", lambda: self.fetch_sessions.partition_count
        )


class CloseConnection(Exception):
    """Raised by a handler that cannot answer: Kafka's way of refusing an acks=0 produce, for one."""


class PartsResponse(Protocol):
    """A response that writes itself, with regions of files among its bytes."""

    def encode_parts(self, version: int) -> list[bytes | Slice]:
        """Return the body of the response, in order."""
        ...


@dataclass(slots=True)
class Ordering:
    """What keeps the appends of one connection in order when one of them has to leave the loop."""

    behind: Awaitable[Any] | None = None
    """The last append of the connection that is not placed yet."""


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
        """The version the request was written in; the answer is written in the same."""
        return self.header.api_version

    @property
    def client_id(self) -> str | None:
        """What the client calls itself."""
        return self.header.client_id


Handler: TypeAlias = (
    Callable[[Services, Any, RequestContext], Awaitable[Any]] | Callable[[Services, Any, RequestContext], Any]
)
"""`await handle(services, request, context)` gives the response, or None when there is no answer (acks=0).

A plain function is called the moment its request was read, before the next request of the connection is
looked at. It may keep no view of the request's bytes, and returns the response or something to await for it.
"""
