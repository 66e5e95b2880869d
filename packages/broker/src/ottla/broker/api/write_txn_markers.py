"""WriteTxnMarkers: end transactions in the partitions led here, for coordinators and administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import ALTER, CLUSTER_ACTION
from ottla.broker.security.authorizer import CLUSTER
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from ottla.broker.transactions.markers import PartitionMarkers


class Needs(Protocol):
    """The parts of the broker that WriteTxnMarkers uses."""

    markers: PartitionMarkers


async def handle(
    services: Needs, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    """Append a marker to every partition, and respond once each is committed or has its error."""
    if context.allows(ALTER, CLUSTER, is_asked_for=False) or context.allows(CLUSTER_ACTION, CLUSTER):
        return await services.markers.write(request, context.turn)
    return WriteTxnMarkersResponse(
        markers=[await _refused(marker, context) async for marker in context.paced(request.markers)]
    )


async def _refused(marker: WritableTxnMarker, context: RequestContext) -> WritableTxnMarkerResult:
    error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
                    async for index in context.paced(topic.partition_indexes)
                ],
            )
            for topic in marker.topics
        ],
    )
