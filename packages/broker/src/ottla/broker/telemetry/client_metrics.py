"""Client telemetry of one broker: its subscriptions, its clients, and samples for the metrics page."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.telemetry.clients import LABELS, Clients
from ottla.broker.telemetry.subscriptions import Subscriptions

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ottla.broker.metrics import Metrics
    from ottla.broker.metrics.registry import MetricName
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.telemetry.clients import Client
    from ottla.broker.telemetry.otlp_export import OtlpExport
    from ottla.broker.telemetry.payloads import Opened
    from ottla.protocol.errors import KafkaError
    from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)


class ClientMetrics:
    """The state that handlers of telemetry act on."""

    def __init__(
        self,
        session: Session,
        environment: Environment,
        metrics: Metrics,
        *,
        max_bytes: int,
        broker_id: int,
        export: OtlpExport | None = None,
    ) -> None:
        """`export` hands pushes on to a collector, if there is one."""
        self.subscriptions = Subscriptions(session)
        self.clients = Clients(max_bytes)
        self._broker_id = broker_id
        self._export = export
        self._clock = environment.clock
        self._random = environment.random
        self.unfolding = asyncio.Semaphore()
        """Held while a push is read: the parser holds up all threads for 50 ms where it is a bomb."""
        self._refused = LimitedWarnings(_log, environment.clock.monotonic_ms)
        metrics.families.append(self._samples)
        metrics.gauge("kafka.server", "client-metrics", "instance-count", lambda: float(len(self.clients)))

    def now_ms(self) -> float:
        """Return the monotonic time."""
        return self._clock.monotonic_ms()

    async def refresh(self) -> None:
        """Read changed subscriptions. Raises ZooKeeperError."""
        await self.subscriptions.refresh()
        self.clients.subscriptions = self.subscriptions.active
        self.clients.version = self.subscriptions.version

    def new_id(self) -> UUID:
        """Return an id for a client instance that has none."""
        return UUID(bytes=self._random.randbytes(16), version=4)

    def labels_of(self, client: Client) -> dict[str, str] | None:
        """Return the attributes of a client's resource for the collector; None without a collector."""
        if self._export is None:
            return None
        known = {fact: value for fact in LABELS if (value := client.facts[fact])}
        return known | {"broker_id": str(self._broker_id)}

    def take(self, client: Client, opened: Opened) -> Generator[None, None, None]:
        """Hand on what a client has measured, and keep it for the page, in steps."""
        if self._export is not None and opened.forwarded:
            self._export.offer(opened.forwarded)
        return self.clients.measured(client, opened.values)

    def refused(self, client: Client, error: KafkaError) -> None:
        """Log that a push cannot be read, of few clients at a time: thousands may push nonsense."""
        facts = {"client": str(client.id), "reason": str(error)}
        self._refused.warn(str(client.id), "metrics of a client refused", extra=facts)

    def _samples(self) -> Iterator[tuple[MetricName, float] | None]:
        return self.clients.samples(self.now_ms())
