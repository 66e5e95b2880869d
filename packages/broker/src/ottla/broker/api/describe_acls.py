"""DescribeAcls: the rules that a filter selects, by pattern (KIP-140, KIP-290)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests.context import CloseConnection, RequestContext
from ottla.broker.security.acls.bindings import UNKNOWN, binding_filter
from ottla.protocol.errors import SecurityDisabled
from ottla.protocol.messages.acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.acls import Acls
    from ottla.broker.security.acls.bindings import BindingFilter, Pattern
    from ottla.broker.security.acls.rules import RulesByPattern


class Needs(Protocol):
    """The part of the broker that DescribeAcls uses."""

    acls: Acls | None


async def handle(
    services: Needs, request: DescribeAclsRequest, context: RequestContext
) -> DescribeAclsResponse:
    """Answer from the rules in memory."""
    codes = (
        request.resource_type_filter,
        request.pattern_type_filter,
        request.operation,
        request.permission_type,
    )
    if UNKNOWN in codes:
        raise CloseConnection  # as Kafka
    if services.acls is None:
        error = SecurityDisabled("No Authorizer is configured on the broker")
        return DescribeAclsResponse(error_code=error.code, error_message=error.message)
    selected = binding_filter(
        request.resource_type_filter,
        request.pattern_type_filter,
        request.resource_name_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    if selected is None:
        return DescribeAclsResponse()
    rules = services.acls.authorizer.rules
    found = [
        described
        async for pattern in context.paced(sorted(rules.patterns()))
        if (described := _describe(rules, pattern, selected)) is not None
    ]
    return DescribeAclsResponse(resources=found)


def _describe(
    rules: RulesByPattern, pattern: Pattern, selected: BindingFilter
) -> DescribeAclsResource | None:
    if not selected.pattern.matches(pattern):
        return None
    acls = [
        AclDescription(
            principal=entry.principal,
            host=entry.host,
            operation=entry.operation,
            permission_type=entry.permission,
        )
        for entry in sorted(rules.entries(pattern))
        if selected.entry.matches(entry)
    ]
    if not acls:
        return None
    return DescribeAclsResource(
        resource_type=pattern.type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        acls=acls,
    )
