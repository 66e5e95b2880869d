"""LeaderAndIsr: the controller gives this broker its roles."""

from __future__ import annotations

from ottla.broker.handlers.services import RequestContext, Services
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse


async def handle(
    services: Services, request: LeaderAndIsrRequest, context: RequestContext | None = None
) -> LeaderAndIsrResponse:
    """Lead and follow as told, unless this was meant for an earlier life of this broker."""
    if services.controller.is_stale_broker_epoch(request.broker_epoch):
        return LeaderAndIsrResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    # Logs are made on the way, and a log is made with its topic's settings.
    await services.configs.ensure_topics({topic.topic_name for topic in request.topic_states})
    return await services.replicas.become_leader_or_follower(request)
