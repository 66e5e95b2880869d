"""Gauges of the controller, under Kafka's names; 0 on a broker that is not the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ottla.broker.controller.controller_context import ControllerContext, PartitionState

if TYPE_CHECKING:
    from ottla.broker.metrics import Metrics


class MeasuredController(Protocol):
    """The facts of a controller that its metrics show."""

    @property
    def context(self) -> ControllerContext | None:
        """The controller's view of the cluster, None on a broker that is not the controller."""
        ...

    @property
    def state(self) -> int:
        """The number of Kafka's ControllerState."""
        ...

    @property
    def waiting_events(self) -> int:
        """Events in the controller's queue."""
        ...

    @property
    def waiting_requests(self) -> int:
        """Requests to brokers that have not been sent."""
        ...


def measure_controller(controller: MeasuredController, metrics: Metrics) -> None:
    """Register the gauges of a controller."""

    def count(what: Callable[[ControllerContext], int]) -> Callable[[], float]:
        return lambda: what(controller.context) if controller.context else 0

    for name, read in (
        ("ActiveControllerCount", count(lambda _: 1)),
        ("OfflinePartitionsCount", count(_offline_partitions)),
        ("PreferredReplicaImbalanceCount", count(_not_preferred)),
        ("GlobalTopicCount", count(lambda context: len(context.topics))),
        ("GlobalPartitionCount", count(lambda context: sum(1 for _ in context.partitions()))),
        ("TopicsToDeleteCount", count(lambda context: len(context.deleting))),
        ("ActiveBrokerCount", count(lambda context: len(context.live))),
        ("ControllerState", lambda: controller.state),
    ):
        metrics.gauge("kafka.controller", "KafkaController", name, read)
    metrics.gauge(
        "kafka.controller", "ControllerEventManager", "EventQueueSize", lambda: controller.waiting_events
    )
    metrics.gauge(
        "kafka.controller", "ControllerChannelManager", "TotalQueueSize", lambda: controller.waiting_requests
    )


def _offline_partitions(context: ControllerContext) -> int:
    states = context.partition_states.items()
    return sum(s is not PartitionState.ONLINE and not context.is_deleting(p) for p, s in states)


def _not_preferred(context: ControllerContext) -> int:
    leaderships = context.leaderships.items()
    return sum(
        now.leader != context.assignment(p).replicas[0]
        for p, now in leaderships
        if not context.is_deleting(p)
    )
