"""Heartbeat: a member lives, and learns whether it has to join again."""

from __future__ import annotations

from ottla.broker.groups.events import Heartbeat
from ottla.broker.handlers.services import RequestContext, Services
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


async def handle(services: Services, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    """Answer at once; REBALANCE_IN_PROGRESS asks the member to join again."""
    heartbeat = Heartbeat(
        token=None,
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=request.group_instance_id,
    )
    return HeartbeatResponse(error_code=await services.groups.heartbeat(request.group_id, heartbeat))
