"""A follower's connection to a leader, in the versions of `inter.broker.protocol.version` 2.8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from ottla.broker.peers.peer_connection import PeerConnection
from ottla.client.config import Address
from ottla.client.errors import ClientError
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import BrokerNotAvailable
from ottla.protocol.schema import Message

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig

_R = TypeVar("_R", bound=Message)

MAX_VERSIONS: Final = {ApiKey.FETCH: 12, ApiKey.LIST_OFFSETS: 6, ApiKey.OFFSET_FOR_LEADER_EPOCH: 4}
"""Later versions name topics by their ids, and mean other rules of the cluster."""


class LeaderConnection:
    """Opened by the first request, and not again after it was closed."""

    def __init__(self, address: Address, client_id: str, timeout_ms: int) -> None:
        self._peer = PeerConnection(address, client_id, timeout_ms)

    async def send(self, request: Message, response_type: type[_R]) -> _R:
        """Send a request and return the response; raises ConnectionError when there is none."""
        try:
            version = MAX_VERSIONS.get(ApiKey(request.API_KEY))
            return await self._peer.send(request, response_type, max_version=version)
        except ClientError as error:
            raise ConnectionError(str(error)) from error

    async def close(self) -> None:
        """Close the connection, if there is one."""
        await self._peer.close()


def connect(metadata: MetadataCache, config: BrokerConfig, leader: int) -> LeaderConnection:
    """Return a connection to a broker. Raises `BrokerNotAvailable` while its address is not known."""
    broker = metadata.broker(leader)
    endpoint = broker.endpoint(config.interbroker_listener) if broker else None
    if endpoint is None:
        raise BrokerNotAvailable(f"Broker {leader} is not registered.")
    return LeaderConnection(
        Address(endpoint.host, endpoint.port),
        f"broker-{metadata.broker_id}-fetcher",
        config.replica_socket_timeout_ms,
    )
