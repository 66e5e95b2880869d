"""WriteTxnMarkers: end transactions in the partitions led here, for coordinators and administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests.context import RequestContext
from ottla.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from ottla.broker.transactions.markers import PartitionMarkers


class Needs(Protocol):
    """The parts of the broker that WriteTxnMarkers uses."""

    markers: PartitionMarkers


async def handle(
    services: Needs, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    """Append a marker to every partition, and respond once each is committed or has its error."""
    return await services.markers.write(request, context.turn)
