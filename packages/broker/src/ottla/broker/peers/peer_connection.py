"""A connection from this broker to another broker of the cluster."""

from __future__ import annotations

from typing import TypeVar

from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.protocol.schema import Message

_R = TypeVar("_R", bound=Message)


class PeerConnection:
    """A connection to one broker, opened by the first request and again after a failure."""

    def __init__(self, address: Address, client_id: str, timeout_ms: int) -> None:
        self.address = address
        self._config = ClientConfig(client_id=client_id)
        self._timeout_s = timeout_ms / 1000
        self._connection: Connection | None = None

    async def send(
        self,
        request: Message,
        response_type: type[_R],
        *,
        min_version: int | None = None,
        max_version: int | None = None,
    ) -> _R:
        """Send a request and return the response; any failure closes the connection."""
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = self._connection = Connection(self.address, self._config)
            await connection.connect()
        try:
            return await connection.send(
                request,
                response_type,
                timeout_s=self._timeout_s,
                min_version=min_version,
                max_version=max_version,
            )
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
