"""Heartbeat: keep a member alive, and answer with an error when it has to rejoin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.groups.classic.events import Heartbeat
from ottla.broker.requests.context import RequestContext
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator


class Needs(Protocol):
    """The parts of the broker that Heartbeat uses."""

    groups: GroupCoordinator


async def handle(services: Needs, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    """Respond at once; REBALANCE_IN_PROGRESS asks the member to rejoin."""
    heartbeat = Heartbeat(
        token=None,
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=request.group_instance_id,
    )
    return HeartbeatResponse(error_code=await services.groups.heartbeat(request.group_id, heartbeat))
