"""Control requests to the controller's own broker: direct calls instead of the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.api import leader_and_isr, stop_replica, update_metadata
from ottla.protocol.messages.control_requests import (
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)

if TYPE_CHECKING:
    from ottla.broker.controller.control_request_batch import ControlRequest
    from ottla.broker.controller.events import ControlResponse


class Needs(leader_and_isr.Needs, update_metadata.Needs, stop_replica.Needs, Protocol):
    """The parts of the broker that control requests act on."""


class LocalSender:
    """Calls this broker's own handlers."""

    def __init__(self, services: Needs) -> None:
        self._services = services

    async def send(self, request: ControlRequest) -> ControlResponse:
        """Handle the request and return the answer."""
        match request:
            case LeaderAndIsrRequest():
                return await leader_and_isr.apply(self._services, request)
            case UpdateMetadataRequest():
                return await update_metadata.apply(self._services, request)
            case StopReplicaRequest():
                return await stop_replica.apply(self._services, request)

    async def close(self) -> None:
        """Do nothing: there is no connection."""
