"""JoinGroup: join the next generation of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.groups.classic.events import Join, JoinResult
from ottla.broker.requests.context import RequestContext
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

if TYPE_CHECKING:
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator
    from ottla.broker.runtime.environment import Environment

MEMBER_ID_REQUIRED_FROM = 4
PROTOCOL_NAME_NULLABLE_FROM = 7
SKIP_ASSIGNMENT_FROM = 9


class Needs(Protocol):
    """The parts of the broker that JoinGroup uses."""

    environment: Environment
    groups: GroupCoordinator


async def handle(services: Needs, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
    """Join; respond once the generation begins, which may take a whole rebalance timeout."""
    result = await services.groups.join(request.group_id, _join(services, request, context))
    return await _response(result, context)


def _join(services: Needs, request: JoinGroupRequest, context: RequestContext) -> Join:
    instance_id = request.group_instance_id
    return Join(
        token=None,
        member_id=request.member_id,
        instance_id=instance_id,
        client_id=context.client_id or "",
        client_host=f"/{context.session.client_host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=_rebalance_timeout_ms(request),
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        require_known_member_id=context.api_version >= MEMBER_ID_REQUIRED_FROM and instance_id is None,
        may_skip_assignment=context.api_version >= SKIP_ASSIGNMENT_FROM,
        new_member_id=_new_member_id(services, instance_id or context.client_id or ""),
    )


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Return the rebalance timeout; version 0 has the session timeout for both."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms


def _new_member_id(services: Needs, prefix: str) -> str:
    digits = f"{services.environment.random.getrandbits(128):032x}"
    return f"{prefix}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


async def _response(result: JoinResult, context: RequestContext) -> JoinGroupResponse:
    name = result.protocol_name
    if name is None and context.api_version < PROTOCOL_NAME_NULLABLE_FROM:
        name = ""
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=name,
        leader=result.leader_id,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            async for member in context.paced(result.members)
        ],
    )
