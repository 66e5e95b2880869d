"""Requests to the active controller, which runs on this broker or on another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.protocol.errors import BrokerNotAvailable

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.peers.client import Peers
    from ottla.broker.peers.controller_requests import AlterPartition, Answers, ControlledShutdown


class OwnController(Protocol):
    """The controller of this broker, which may be the active one."""

    @property
    def is_active(self) -> bool: ...

    async def ask(self, asked: AlterPartition | ControlledShutdown, /) -> Answers: ...


class ActiveController:
    """Asks this broker's controller directly, and another one over the network."""

    def __init__(self, own: OwnController, metadata: MetadataCache, peers: Peers, timeout_ms: int) -> None:
        """`timeout_ms` bounds a request to another broker."""
        self._own = own
        self._metadata = metadata
        self._other = peers.controller(timeout_ms)

    async def ask(self, asked: AlterPartition | ControlledShutdown) -> Answers:
        """Return the answers. Raises `KafkaError`, and `BrokerNotAvailable` if there is no way to ask."""
        if self._own.is_active or self._metadata.controller_id == self._metadata.broker_id:
            return await self._own.ask(asked)
        from ottla.broker.peers import remote_controller

        try:
            return await remote_controller.ask(self._other, asked)
        except ConnectionError as error:
            raise BrokerNotAvailable(f"The controller cannot be reached: {error}") from error

    async def close(self) -> None:
        """Close the connection to another broker, if there is one."""
        await self._other.close()
