"""For tests: the network of a broker that hosts no partitions."""

from __future__ import annotations

from ottla.broker.config import BrokerConfig
from ottla.broker.environment import SystemClock
from ottla.broker.handlers.fetch_plain import PlainFetches
from ottla.broker.handlers.produce_run import ProduceRuns
from ottla.broker.handlers.topic_metrics import TopicMetrics
from ottla.broker.metrics import Metrics
from ottla.broker.network.listener import Server
from ottla.broker.network.routes import Dispatcher, Routes


def server_of(routes: Routes[None], config: BrokerConfig | None = None) -> Server:
    """Make a server for handlers that use no part of a broker."""
    config, metrics, clock = config or BrokerConfig(), Metrics(), SystemClock()
    topic_metrics = TopicMetrics(metrics)
    return Server(
        Dispatcher(routes, None),
        config=config,
        clock=clock,
        metrics=metrics,
        produce_runs=ProduceRuns(topic_metrics, clock),
        plain_fetches=PlainFetches(topic_metrics, config.fetch_max_bytes),
    )
