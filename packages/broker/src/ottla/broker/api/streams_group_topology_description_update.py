"""StreamsGroupTopologyDescriptionUpdate: refused, as nothing here stores descriptions (KIP-1331)."""

from __future__ import annotations

from typing import Protocol

from ottla.broker.api.streams_group_heartbeat import OFF, Levels
from ottla.broker.cluster.features import STREAMS
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import READ_GROUPS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import GroupAuthorizationFailed, KafkaError, UnsupportedVersion
from ottla.protocol.messages.streams_groups import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)


class Needs(Protocol):
    """The parts of the broker that StreamsGroupTopologyDescriptionUpdate uses."""

    @property
    def features(self) -> Levels:
        """The levels of this moment."""
        ...


async def handle(
    services: Needs, request: StreamsGroupTopologyDescriptionUpdateRequest, context: RequestContext
) -> StreamsGroupTopologyDescriptionUpdateResponse:
    """Refuse: no heartbeat asks a member for its description, as there is nothing that stores it."""
    try:
        if services.features.level(STREAMS) == 0:
            raise UnsupportedVersion(OFF)
        if not context.allows(READ_GROUPS, Resource(ResourceType.GROUP, request.group_id)):
            raise GroupAuthorizationFailed
        raise UnsupportedVersion("The broker has no streams group topology description plugin configured.")
    except KafkaError as error:
        return StreamsGroupTopologyDescriptionUpdateResponse(error_code=error.code, error_message=str(error))
