"""Markers for partitions that another broker leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.peers.peer_connection import PeerConnection
from ottla.client.config import Address
from ottla.client.errors import ClientError
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import BrokerEndpoint


class RemoteBroker:
    """A `Destination` at the end of a connection, which the first request opens."""

    def __init__(self, endpoint: BrokerEndpoint, client_id: str, timeout_ms: int) -> None:
        self._peer = PeerConnection(Address(endpoint.host, endpoint.port), client_id, timeout_ms)

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Send the request and return the response; raises ConnectionError when there is none."""
        try:
            return await self._peer.send(request, WriteTxnMarkersResponse)
        except ClientError as error:
            raise ConnectionError(str(error)) from error

    async def close(self) -> None:
        """Close the connection; a request that waits for its answer fails."""
        await self._peer.close()
