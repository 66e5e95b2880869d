"""Problems that `problems` finds in the state of a cluster."""

from __future__ import annotations

from dataclasses import replace

from ottla.admin import Broker, ClusterState, PartitionHealth, problems
from ottla.protocol.topics import TopicPartition


def partition(index: int, *, leader: int | None = 1, isr: tuple[int, ...] = (1, 2, 3)) -> PartitionHealth:
    return PartitionHealth(TopicPartition("orders", index), leader, (1, 2, 3), isr)


BROKERS = tuple(Broker(node, "host", 9092, None, node == 1) for node in (1, 2, 3))
HEALTHY = ClusterState("cluster", 1, BROKERS, (partition(0), partition(1, leader=2)))


def test_a_healthy_cluster_has_no_problems() -> None:
    assert problems(HEALTHY) == []
    assert HEALTHY.under_replicated == []


def test_a_cluster_without_controller_and_with_a_broker_away_names_both() -> None:
    state = replace(HEALTHY, controller=None, brokers=BROKERS[:2])

    assert [each.text for each in problems(state)] == [
        "no broker is the controller: leaders cannot change",
        "broker 3 is away, with 2 replicas",
    ]


def test_partitions_are_named_with_the_worst_first() -> None:
    partitions = (
        partition(0, isr=(2, 1)),
        partition(1, isr=(1,)),
        partition(2, leader=None, isr=(3,)),
        partition(3, isr=(3, 2, 1)),
    )
    state = replace(HEALTHY, partitions=partitions, min_insync_replicas={"orders": 2})

    found = problems(state)

    assert [(each.kind, each.what) for each in found] == [
        ("no leader", "orders-2"),
        ("under min ISR", "orders-1"),
        ("under-replicated", "orders-0"),
    ]
    assert found[1].text == "orders-1 has 1 in-sync replicas of min.insync.replicas=2: acks=all is refused"
    assert found[2].text == "orders-0 has 2 of 3 replicas in sync: 3 lags or is away"
