"""ApiVersions: the APIs and versions that this broker serves, computed from its routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.handlers.request_context import RequestContext
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING:
    from collections.abc import Sequence


class Needs(Protocol):
    """The parts of the broker that ApiVersions uses."""

    api_ranges: Sequence[tuple[int, int, int]]


async def handle(
    services: Needs, request: ApiVersionsRequest, context: RequestContext
) -> ApiVersionsResponse:
    """List every API with its range; the network answers unknown versions of this one itself."""
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, first, last in services.api_ranges
        ]
    )
