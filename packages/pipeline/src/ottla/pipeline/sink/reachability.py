"""Whether brokers can be reached: the driver asks once, before many tasks would each wait for an answer."""

from __future__ import annotations

import asyncio

from ottla.client.cluster import Cluster
from ottla.client.config import ClientConfig
from ottla.client.errors import ClientError
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.errors import BrokersUnreachable


def require_brokers(config: SinkConfig) -> None:
    """Reach a broker of the cluster, within `kafka.bootstrap.timeout.ms`. Raises BrokersUnreachable."""
    client = config.producer_config().client
    try:
        asyncio.run(_reach(client))
    except ClientError as error:
        raise BrokersUnreachable(config.producer["bootstrap.servers"], error) from error


async def _reach(client: ClientConfig) -> None:
    async with Cluster(client.bootstrap_servers, client):
        pass
