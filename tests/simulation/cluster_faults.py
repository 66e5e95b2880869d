"""Faults of the coordinators of a group, and of its log."""

from __future__ import annotations

import asyncio
import random

from simulation.group_cluster import BROKERS, GroupCluster


def fail_over(cluster: GroupCluster, chance: random.Random) -> None:
    """Elect a broker, which the earlier leader learns late now and then."""
    cluster.elect(
        chance.randrange(BROKERS),
        told_after_s=chance.choice([0, 0, 0.5, 8]),
        begins_after_s=chance.choice([0, 0, 0.5, 3]),
    )


def kill_broker(cluster: GroupCluster, chance: random.Random) -> None:
    """Kill a broker; another one is elected in the place of a leader, or none dies."""
    broker = chance.choice(cluster.brokers)
    if broker is cluster.leader:
        others = [number for number in range(BROKERS) if number != broker.number]
        cluster.elect(chance.choice(others), begins_after_s=chance.choice([0, 1]))
    if broker is not cluster.leader:  # else no other can be elected
        cluster.restart(broker)


def stall(cluster: GroupCluster, chance: random.Random) -> None:
    """Commit no record for a while."""
    cluster.log.stalls_until_s = asyncio.get_running_loop().time() + chance.choice([1, 6])


def refuse(cluster: GroupCluster, chance: random.Random) -> None:
    """Refuse all writes for a while."""
    cluster.log.refuses = True
    asyncio.get_running_loop().call_later(chance.choice([0.5, 3]), _take_writes, cluster)


def _take_writes(cluster: GroupCluster) -> None:
    cluster.log.refuses = False


def compact(cluster: GroupCluster, _chance: random.Random) -> None:
    """Compact the log."""
    cluster.log.compact()
