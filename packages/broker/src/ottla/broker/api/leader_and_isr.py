"""LeaderAndIsr: become leader or follower of partitions, as the controller says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.replication.leader_and_isr_requests import NO_ID
from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.control_requests import LeaderAndIsrRequest, LeaderAndIsrResponse

if TYPE_CHECKING:
    from ottla.broker.cluster.configs import Configs
    from ottla.broker.controller.controller import Controller
    from ottla.broker.replication.replicas import Replicas


class Needs(Protocol):
    """The parts of the broker that LeaderAndIsr uses."""

    configs: Configs
    controller: Controller
    replicas: Replicas


async def handle(
    services: Needs, request: LeaderAndIsrRequest, context: RequestContext
) -> LeaderAndIsrResponse:
    """Apply a request that arrived over the network."""
    return await apply(services, request)


async def apply(services: Needs, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
    """Take the roles, unless the request is for an earlier registration of this broker."""
    if request.is_kraft_controller:  # of a migration that this broker does not take part in (KIP-866)
        return LeaderAndIsrResponse(error_code=ErrorCode.INVALID_REQUEST)
    if services.controller.is_stale_broker_epoch(request.broker_epoch):
        return LeaderAndIsrResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    # Taking a role may create a log, and a log is created with its topic's settings.
    await services.configs.ensure_topics(
        {topic.topic_name: topic.topic_id for topic in request.topic_states}
        | {state.topic_name: NO_ID for state in request.ungrouped_partition_states}
    )
    return await services.replicas.become_leader_or_follower(request)
