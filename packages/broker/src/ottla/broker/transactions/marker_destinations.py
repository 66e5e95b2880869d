"""Where markers go: the leaders of partitions, on this broker and on others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from ottla.protocol.messages.transactions import WriteTxnMarkersResponse
from ottla.zookeeper import paths
from ottla.zookeeper.errors import IllegalName, MalformedZnode, NoNode, ZooKeeperError
from ottla.zookeeper.frozen_classes import frozen
from ottla.zookeeper.znodes import TopicAssignment

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.peers.client import Peer
    from ottla.broker.transactions.marker_sender import Destination
    from ottla.protocol.messages.transactions import WriteTxnMarkersRequest
    from ottla.protocol.topics import TopicPartition
    from ottla.zookeeper.session import Session

ZOOKEEPER_TIMEOUT_S: Final = 5.0

WriteMarkers = Callable[["WriteTxnMarkersRequest"], Awaitable["WriteTxnMarkersResponse"]]


@frozen
class ThisBroker:
    """A `Destination` for the partitions that are led here."""

    write_markers: WriteMarkers

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Write the markers into the logs of this broker."""
        return await self.write_markers(request)

    async def close(self) -> None:
        """Do nothing: there is no connection."""


@frozen
class RemoteBroker:
    """A `Destination` at the end of a connection."""

    peer: Peer

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Send the request and return the response. Raises the errors of `Peer.send`."""
        return await self.peer.send(request, WriteTxnMarkersResponse)

    async def close(self) -> None:
        """Close the connection; a request that waits for its answer fails."""
        await self.peer.close()


class MarkerDestinations:
    """The `Cluster` of a marker sender: metadata, ZooKeeper where they are silent, and connections."""

    def __init__(
        self,
        metadata: MetadataCache,
        connect: Callable[[int], Peer],
        session: Session,
        write_here: WriteMarkers,
    ) -> None:
        self._metadata = metadata
        self._connect = connect
        self._session = session
        self._write_here = write_here

    def leader_of(self, partition: TopicPartition) -> int | None:
        """Return the live leader of a partition; None without one."""
        return self._metadata.leader_of(partition)

    def is_known(self, partition: TopicPartition) -> bool:
        """Return whether the metadata have the partition."""
        return self._metadata.partition(partition) is not None

    async def is_deleted(self, partition: TopicPartition) -> bool:
        """Return whether ZooKeeper has no such partition; False while it does not answer."""
        try:
            async with asyncio.timeout(ZOOKEEPER_TIMEOUT_S):
                # This broker's server may not know the newest topics without it.
                await self._session.sync(paths.BROKER_TOPICS)
                data, _ = await self._session.get(paths.topic(partition.topic))
            return partition.partition not in TopicAssignment.decode(partition.topic, data).partitions
        except (NoNode, IllegalName):
            return True
        except (ZooKeeperError, MalformedZnode, TimeoutError):
            return False

    def connect(self, broker_id: int) -> Destination:
        """Return the way to a broker, which raises BrokerNotAvailable while its address is not known."""
        if broker_id == self._metadata.broker_id:
            return ThisBroker(self._write_here)
        return RemoteBroker(self._connect(broker_id))
