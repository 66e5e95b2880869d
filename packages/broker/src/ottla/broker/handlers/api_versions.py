"""ApiVersions: what this broker serves, computed from its routes."""

from __future__ import annotations

from ottla.broker.handlers.services import RequestContext, Services
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse


async def handle(
    services: Services, request: ApiVersionsRequest, context: RequestContext
) -> ApiVersionsResponse:
    """List every API with its range; the network answers unknown versions of this one itself."""
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=int(one.api_key), min_version=one.min_version, max_version=one.max_version)
            for one in services.routes
        ]
    )
