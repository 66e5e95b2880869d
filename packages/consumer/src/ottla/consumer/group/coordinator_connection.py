"""A connection to a group's coordinator that is not shared.

A JoinGroup is answered when all members joined, which may take minutes, and brokers answer in order: on a
shared connection all other responses would wait for it.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from ottla.client.api_versions import choose_version
from ottla.client.cluster import Cluster
from ottla.client.connection import Connection
from ottla.client.errors import ClientError
from ottla.protocol.schema import Message

R = TypeVar("R", bound=Message)


class CoordinatorConnection:
    """One connection to the group's coordinator, opened on demand, and again after a move or an error."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self.group_id = group_id
        self.cluster = cluster
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    async def send(
        self,
        request: Message,
        response: type[R],
        *,
        timeout_s: float | None = None,
        min_version: int | None = None,
    ) -> R:
        """Send a request to the coordinator and return the response, whose error codes the caller reads.

        Raises the errors of finding and reaching the coordinator, which is looked up again then.
        """
        try:
            connection = await self._connected()
            return await connection.send(request, response, timeout_s=timeout_s, min_version=min_version)
        except ClientError:
            self.forget()
            raise

    async def version(self, request: type[Message]) -> int:
        """Return the version in which a request would be sent. Raises as `send`."""
        try:
            return choose_version(request, (await self._connected()).versions)
        except ClientError:
            self.forget()
            raise

    def forget(self) -> None:
        """Find the coordinator again before the next request."""
        self.cluster.forget_coordinator(self.group_id)

    async def close(self) -> None:
        """Close the connection; outstanding requests fail. The next request opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> Connection:
        async with self._lock:
            node_id = await self.cluster.coordinator(self.group_id)
            address = self.cluster.nodes[node_id].address
            present = self._connection
            if present is not None and present.is_open and present.address == address:
                return present
            await self.close()
            connection = Connection(address, self.cluster.config)
            await connection.connect()
            self._connection = connection
            return connection
