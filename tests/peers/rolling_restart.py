"""A rolling restart: one broker of a cluster after the other, each when all replicas are in sync."""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.admin import Admin
from ottla.broker.testing import BrokerCluster
from ottla.protocol.topics import GROUP_METADATA_TOPIC

BOUND_S: Final = 150


async def replicated(admin: Admin, replicas: int, *topics: str) -> None:
    """Wait until every replica of the topics is in sync."""
    async with asyncio.timeout(BOUND_S):
        for topic in topics:
            while not await _is_replicated(admin, replicas, topic):  # noqa: ASYNC110 - others change it
                await asyncio.sleep(0.1)


async def _is_replicated(admin: Admin, replicas: int, topic: str) -> bool:
    described = await admin.topics.describe(topic)
    return all(len(one.isr) == replicas for one in described.partitions.values())


async def restart_all(cluster: BrokerCluster, admin: Admin, *topics: str) -> None:
    """Restart all brokers, one after the other, each when the topics have all replicas in sync."""
    replicas = len(cluster.brokers)
    for broker in cluster.brokers.values():
        await replicated(admin, replicas, GROUP_METADATA_TOPIC, *topics)
        await asyncio.to_thread(broker.restart)
    await replicated(admin, replicas, GROUP_METADATA_TOPIC, *topics)
