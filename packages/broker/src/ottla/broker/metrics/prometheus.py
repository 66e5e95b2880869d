"""The Prometheus endpoint: the registry under the names that Kafka dashboards already use.

`kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=t` becomes
`kafka_server_brokertopicmetrics_messagesin_total{topic="t"}`, as Prometheus' JMX exporter
writes it with its usual Kafka rules.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from ottla.broker.metrics.catalogue import Kind, meaning_of
from ottla.broker.metrics.registry import HistogramCounts, MetricName, Metrics
from ottla.broker.metrics.snapshot import MadeOnLoop, Sample, Snapshot, take_snapshot
from ottla.broker.runtime.loop_budget import Turn
from ottla.client.page_server import Page, PageAccess, PageServer

if TYPE_CHECKING:
    from ottla.broker.runtime.loop_budget import LoopBudget

SAMPLES_PER_SLICE: Final = 20
QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
_TYPES: Final[Mapping[Kind, str]] = {"meter": "counter", "gauge": "gauge", "histogram": "summary"}
_NOT_A_NAME: Final = re.compile(r"[^a-z0-9_]")


def prometheus_name(name: MetricName) -> str:
    """Return a metric's Kafka name in the letters that Prometheus allows, without a suffix."""
    short = name.name.removesuffix("PerSec")
    return _NOT_A_NAME.sub("_", f"{name.group}_{name.type}_{short}".lower())


class _Slice(Collector):
    """A few samples of one family."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterator[Family]:
        yield self._family


async def render(snapshot: Snapshot, turn: Turn) -> bytes:
    """Return the page in Prometheus' text format; yields to the event loop when its turn is spent.

    On a thread of its own it would take the interpreter from the event loop for 5 ms at a time.
    """
    chunks: list[bytes] = []
    families = await _families(snapshot, turn)
    for title, samples in families.items():
        for begin in range(0, len(samples), SAMPLES_PER_SLICE):
            text = _rendered(title, samples[begin : begin + SAMPLES_PER_SLICE])
            chunks.append(text if begin == 0 else _without_head(text))
            await turn.yield_if_spent()
    return b"".join(chunks)


async def _families(snapshot: Snapshot, turn: Turn) -> dict[str, list[Sample]]:
    """Group samples by their name; of one name all have the kind of the first. Yields as `render` does."""
    families: dict[str, list[Sample]] = {}
    for number, sample in enumerate(snapshot, 1):
        if not number % SAMPLES_PER_SLICE:
            await turn.yield_if_spent()
        family = families.setdefault(prometheus_name(sample.name), [])
        if not family or family[0].kind == sample.kind:
            family.append(sample)
    return families


def _rendered(title: str, samples: list[Sample]) -> bytes:
    family = Family(title, _about(samples[0].name), _TYPES[samples[0].kind])
    for sample in samples:
        labels = {tag.replace("-", "_"): value for tag, value in sample.name.tags}
        _add_samples(family, title, labels, sample.value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Slice(family))
    return generate_latest(registry)


def _without_head(text: bytes) -> bytes:
    """Leave out the lines of a family's help and type, which its first slice has."""
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))


class Pages(MadeOnLoop[bytes]):
    """The page of a broker's metrics, for the threads that serve it."""

    def __init__(self, metrics: Metrics, budget: LoopBudget, loop: asyncio.AbstractEventLoop) -> None:
        async def make() -> bytes:
            turn = Turn(budget.metrics)
            return await render(await take_snapshot(metrics, turn), turn)

        super().__init__(make, loop)


def _about(name: MetricName) -> str:
    return f"{meaning_of(name)} ({name._replace(tags=())})"


def _add_samples(family: Family, title: str, tags: dict[str, str], value: float | HistogramCounts) -> None:
    if isinstance(value, HistogramCounts):
        _add_summary(family, title, tags, value)
    else:
        family.add_sample(f"{title}_total" if family.type == "counter" else title, tags, value)


def _add_summary(family: Family, title: str, tags: dict[str, str], counts: HistogramCounts) -> None:
    for fraction in QUANTILES:
        family.add_sample(title, {**tags, "quantile": str(fraction)}, counts.quantile(fraction))
    family.add_sample(f"{title}_count", tags, counts.count)
    family.add_sample(f"{title}_sum", tags, counts.total)


@asynccontextmanager
async def prometheus_endpoint(
    pages: MadeOnLoop[bytes],
    host: str,
    port: int,
    access: PageAccess | None = None,
    *,
    clients: MadeOnLoop[bytes] | None = None,
) -> AsyncIterator[int]:
    """Serve `/metrics` on threads of its own while the context lasts; gives the bound port.

    `clients` makes the JSON of `/clients`; without it that path has the metrics, as every other one.
    `pages.run()` must run on the loop. Port 0 takes a free port. Raises OSError when the address cannot be
    bound.
    """

    def answer(path: str) -> Page:
        if clients is not None and path.partition("?")[0] == "/clients":
            return Page(clients.take())
        return Page(pages.take(), CONTENT_TYPE_PLAIN_0_0_4)

    server = PageServer(host, port, answer, "metrics", access=access)
    server.start()
    try:
        yield server.port
    finally:
        # On a thread: the server looks for its end only every half second.
        await asyncio.to_thread(server.stop)
