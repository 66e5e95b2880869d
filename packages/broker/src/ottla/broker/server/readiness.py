"""Wait until every broker of a new cluster knows all of them and the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from contextlib import suppress

from ottla.client.cluster import Cluster
from ottla.client.config import ClientConfig
from ottla.client.errors import ClientError
from ottla.client.security import SecurityConfig
from ottla.protocol.errors import KafkaError

_POLL_S = 0.02
_ATTEMPT_MS = 2_000


async def until_complete(
    addresses: Iterable[str],
    brokers: Collection[int],
    timeout_s: float,
    security: SecurityConfig | None = None,
) -> None:
    """Return once the broker at each address names all `brokers` and a controller. Raises TimeoutError.

    A broker serves before the controller has told it of the cluster; until then its metadata is empty.
    """
    async with asyncio.timeout(timeout_s):
        for address in addresses:
            while not await _knows(address, brokers, security):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)


async def _knows(address: str, brokers: Collection[int], security: SecurityConfig | None) -> bool:
    config = ClientConfig(bootstrap_timeout_ms=_ATTEMPT_MS, security=security or SecurityConfig())
    with suppress(ClientError, KafkaError):
        # A new one for each question: one that knows the cluster would ask any of its brokers.
        async with Cluster(address, config) as cluster:
            return cluster.controller_id in cluster.nodes and cluster.nodes.keys() >= set(brokers)
    return False
