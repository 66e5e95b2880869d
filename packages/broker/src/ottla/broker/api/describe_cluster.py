"""DescribeCluster: the live brokers and the controller (KIP-700)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests.authorization import NO_OPERATIONS_ASKED, authorized_operations
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DESCRIBE
from ottla.broker.security.authorizer import CLUSTER
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache

BROKERS = 1
CONTROLLERS = 2


class Needs(Protocol):
    """The parts of the broker that DescribeCluster uses."""

    cluster_id: str
    metadata: MetadataCache


async def handle(
    services: Needs, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """Respond from the metadata cache. Only brokers have endpoints: there are no KRaft controllers."""
    if request.endpoint_type != BROKERS:
        is_known = request.endpoint_type == CONTROLLERS
        error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        return DescribeClusterResponse(
            error_code=error,
            error_message="Only the endpoints of brokers can be described.",
        )
    operations = NO_OPERATIONS_ASKED
    if request.include_cluster_authorized_operations:
        operations = cluster_operations(context)
    return DescribeClusterResponse(
        cluster_id=services.cluster_id,
        controller_id=services.metadata.controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
            for broker in services.metadata.brokers
            if (endpoint := broker.endpoint(context.session.listener_name))
        ],
        cluster_authorized_operations=operations,
    )


def cluster_operations(context: RequestContext) -> int:
    """Return the operations on the cluster that the client may perform; none if it may not describe it."""
    return authorized_operations(context, CLUSTER) if context.allows(DESCRIBE, CLUSTER) else 0
