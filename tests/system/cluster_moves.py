"""Move topics between the brokers of a cluster under test, and wait until clients find them there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from cluster_of_nodes import Cluster

from ottla.admin import Admin
from ottla.protocol.topics import TopicPartition

BOUND_S: Final = 120.0


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    """Wait until a condition holds; `what()` says in the failure what was there instead."""
    deadline_s = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.1)


def placed(partitions: int, brokers: tuple[int, int]) -> dict[int, tuple[int, int]]:
    """Return the replicas of each partition on two brokers, the preferred leaders in turn."""
    return {index: brokers if index % 2 else brokers[::-1] for index in range(partitions)}


async def reassign(servers: str, topics: Mapping[str, int], brokers: tuple[int, int]) -> None:
    """Move all partitions of topics to two brokers; return when the controller has no reassignment left.

    Brokers may be told a moment later.
    """
    targets = {
        TopicPartition(topic, index): replicas
        for topic, partitions in topics.items()
        for index, replicas in placed(partitions, brokers).items()
    }
    async with asyncio.timeout(BOUND_S), Admin(servers) as admin:
        assert not any((await admin.partitions.reassign(targets)).values())
        while moving := await admin.partitions.reassignments():
            assert {one.partition for one in moving} <= targets.keys()
            await asyncio.sleep(0.1)


def until_in_sync(cluster: Cluster, topic: str, brokers: tuple[int, int]) -> None:
    """Wait until whoever is asked says so: brokers are told later than the controller's own list ends."""

    def are_there() -> bool:
        found = cluster.describe(topic).values()
        return {each.isr for each in found} == {frozenset(brokers)} and all(
            each.leader in brokers for each in found
        )

    until(are_there, lambda: cluster.describe(topic))
