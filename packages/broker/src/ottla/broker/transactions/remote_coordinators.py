"""Connections to the transaction coordinators on other brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import BrokerNotAvailable
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.peers.peer_connection import PeerConnection

FIRST_BETWEEN_BROKERS: Final = 4


class RemoteCoordinators:
    """Asks the coordinators on other brokers, one request to each at a time."""

    def __init__(self, metadata: MetadataCache, config: BrokerConfig) -> None:
        self._metadata = metadata
        self._config = config
        self._peers: dict[int, PeerConnection] = {}

    async def ask(self, broker_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Send a verification. Raises UnsupportedByBroker, ConnectionError or BrokerNotAvailable."""
        from ottla.client.errors import ClientError, UnsupportedByBroker

        try:
            peer = await self._peer(broker_id)
            return await peer.send(request, AddPartitionsToTxnResponse, min_version=FIRST_BETWEEN_BROKERS)
        except UnsupportedByBroker:
            raise
        except ClientError as error:
            raise ConnectionError(str(error)) from error

    async def _peer(self, broker_id: int) -> PeerConnection:
        # Imported with the second broker: one alone needs no connections.
        from ottla.broker.peers.peer_connection import PeerConnection
        from ottla.client.config import Address

        broker = self._metadata.broker(broker_id)
        endpoint = broker.endpoint(self._config.interbroker_listener) if broker else None
        if endpoint is None:
            raise BrokerNotAvailable(f"Broker {broker_id} is not registered.")
        address = Address(endpoint.host, endpoint.port)
        peer = self._peers.get(broker_id)
        if peer is not None and peer.address != address:
            await peer.close()
            peer = None
        if peer is None:
            client_id = f"broker-{self._metadata.broker_id}-transaction-verification"
            timeout_ms = self._config.request_timeout_ms
            peer = self._peers[broker_id] = PeerConnection(address, client_id, timeout_ms)
        return peer

    async def close(self) -> None:
        """Close all connections."""
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            await peer.close()
