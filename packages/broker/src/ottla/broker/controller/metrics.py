"""Gauges of the controller, under Kafka's names; 0 on a broker that is not the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.controller.controller_context import ControllerContext, PartitionState, ReplicaState

if TYPE_CHECKING:
    from ottla.broker.metrics import Metrics


_CHANNELS: Final = ("kafka.controller", "ControllerChannelManager")


class MeasuredQueue(Protocol):
    """A queue of requests to one broker."""

    @property
    def waiting(self) -> int:
        """Requests that have not been sent."""
        ...


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
        ("TopicsToDeleteCount", count(lambda context: len(_marked(context)))),
        ("TopicsIneligibleToDeleteCount", count(_ineligible_topics)),
        ("ReplicasToDeleteCount", count(_replicas_to_delete)),
        ("ReplicasIneligibleToDeleteCount", count(_ineligible_replicas)),
        ("ActiveBrokerCount", count(lambda context: len(context.live))),
        ("ControllerState", lambda: controller.state),
    ):
        metrics.gauge("kafka.controller", "KafkaController", name, read)
    metrics.gauge(
        "kafka.controller", "ControllerEventManager", "EventQueueSize", lambda: controller.waiting_events
    )
    metrics.gauge(*_CHANNELS, "TotalQueueSize", lambda: controller.waiting_requests)


def show_queue_size(metrics: Metrics, queue: MeasuredQueue, broker_id: int) -> None:
    """Register the length of the queue to one broker."""
    metrics.gauge(*_CHANNELS, "QueueSize", lambda: queue.waiting, **{"broker-id": str(broker_id)})


def hide_queue_size(metrics: Metrics, broker_id: int) -> None:
    """Remove the length of the queue to one broker."""
    metrics.remove(*_CHANNELS, "QueueSize", **{"broker-id": str(broker_id)})


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


def _marked(context: ControllerContext) -> set[str]:
    return context.deleting | context.deletions_waiting


def _deletion_states(context: ControllerContext, topic: str) -> list[ReplicaState]:
    return [context.replica_state(*replica) for replica in context.replicas_of(topic)]


def _ineligible_topics(context: ControllerContext) -> int:
    stuck = (ReplicaState.DELETION_INELIGIBLE in _deletion_states(context, name) for name in context.deleting)
    return len(context.deletions_waiting) + sum(stuck)


def _replicas_to_delete(context: ControllerContext) -> int:
    states = (state for name in _marked(context) for state in _deletion_states(context, name))
    return sum(state is not ReplicaState.DELETION_SUCCESSFUL for state in states)


def _ineligible_replicas(context: ControllerContext) -> int:
    states = (state for name in context.deleting for state in _deletion_states(context, name))
    return sum(state is ReplicaState.DELETION_INELIGIBLE for state in states)
