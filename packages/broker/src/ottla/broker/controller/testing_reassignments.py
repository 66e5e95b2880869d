"""Steps that tests of reassignments share: a topic `orders` that is led, its state, the end of a move."""

from __future__ import annotations

import asyncio

from ottla.broker.controller.testing import ControllerCluster
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.znodes import PartitionState


async def with_topic(cluster: ControllerCluster, *replicas: tuple[int, ...], name: str = "orders") -> None:
    """Create a topic, and wait until it is led."""
    await cluster.create_topic(name, *replicas)
    await cluster.until(lambda: all(cluster.settled(name, p) for p in range(len(replicas))), f"{name} led")


def state(cluster: ControllerCluster, partition: int = 0) -> PartitionState:
    """The committed state of a partition of `orders`."""
    found = cluster.state("orders", partition)
    assert found is not None
    return found


def is_still(cluster: ControllerCluster, *replicas: tuple[int, ...]) -> bool:
    """Whether the topic is assigned so, nothing moves, and exactly the live replicas are hosted."""
    node = cluster.assignment("orders")
    if dict(node.partitions) != dict(enumerate(replicas)) or node.adding_replicas or node.removing_replicas:
        return False
    return all(
        (broker.id in assigned) == (TopicPartition("orders", number) in broker.roles)
        and (broker.id in assigned or TopicPartition("orders", number) not in broker.data)
        for number, assigned in enumerate(replicas)
        for broker in cluster.brokers.values()
    )


async def until_still(cluster: ControllerCluster, *replicas: tuple[int, ...]) -> None:
    """Make replicas catch up until the move is over."""
    async with asyncio.timeout(120):
        while not is_still(cluster, *replicas):
            await cluster.catch_up()
            await asyncio.sleep(0.05)
            cluster.invariants.check()
    await cluster.until(lambda: all(cluster.settled("orders", p) for p in range(len(replicas))), "led")
