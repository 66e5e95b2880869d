"""Requests to the active controller, which runs on this broker or on another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import BrokerNotAvailable

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.controller.controller import Controller
    from ottla.broker.controller.events import AlterPartition, Answers, ControlledShutdown
    from ottla.broker.controller.remote_requests import RemoteController


class ActiveController:
    """Asks this broker's controller directly, and another one over the network."""

    def __init__(
        self, controller: Controller, metadata: MetadataCache, config: BrokerConfig, broker_id: int
    ) -> None:
        self._controller = controller
        self._metadata = metadata
        self._config = config
        self._broker_id = broker_id
        self._remote: RemoteController | None = None

    async def ask(self, event: AlterPartition | ControlledShutdown) -> Answers:
        """Return the answers. Raises `KafkaError`, and `BrokerNotAvailable` if there is no way to ask."""
        if self._controller.is_active or self._metadata.controller_id == self._broker_id:
            return await self._controller.ask(event)
        # Imported with the second broker: a single broker never needs a client.
        from ottla.client.errors import ClientError

        try:
            return await self._remote_controller().ask(event)
        except ClientError as error:
            raise BrokerNotAvailable(f"The controller cannot be reached: {error}") from error

    def _remote_controller(self) -> RemoteController:
        if self._remote is None:
            from ottla.broker.controller.remote_requests import RemoteController

            self._remote = RemoteController(
                self._metadata,
                self._config.interbroker_listener,
                self._config.controller_socket_timeout_ms,
            )
        return self._remote

    async def close(self) -> None:
        """Close the connection to another broker, if there is one."""
        if self._remote is not None:
            await self._remote.close()
