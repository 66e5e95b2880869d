"""ApiVersions: the APIs and versions that this broker serves, computed from its routes."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.broker.cluster.features import SUPPORTED
from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import ErrorCode, InvalidRequest, RebootstrapRequired
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.broker.cluster.features import Features
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.requests.routes import Route

SOFTWARE_FROM: Final = 3
FEATURES_FROM_0: Final = 4
"""Clients of earlier versions cannot read a feature that may have the level 0 (KIP-1022)."""
DESTINATION_FROM: Final = 5
NO_NODE: Final = -1
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""The names and versions of clients' software: they are to be shown in names of metrics (KIP-511)."""


class Needs(Protocol):
    """The parts of the broker that ApiVersions uses."""

    api_ranges: Sequence[tuple[int, int, int]]
    cluster_id: str
    features: Features
    metadata: MetadataCache


async def handle(
    services: Needs, request: ApiVersionsRequest, context: RequestContext
) -> ApiVersionsResponse:
    """List every API with its range, and the features of the cluster that are on."""
    software = (request.client_software_name, request.client_software_version)
    if context.api_version >= SOFTWARE_FROM and not all(map(_SOFTWARE.fullmatch, software)):
        raise InvalidRequest
    if context.api_version >= SOFTWARE_FROM:
        context.session.software = _shared(*software)
    if context.api_version >= DESTINATION_FROM:
        _check_destination(services, request)
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, first, last in services.api_ranges
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=feature.min_version, max_version=feature.max_version)
            for name, feature in SUPPORTED.items()
            if feature.min_version > 0 or context.api_version >= FEATURES_FROM_0
        ],
        finalized_features_epoch=services.features.epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in services.features.in_effect.items()
        ],
    )


@lru_cache(1024)
def _shared(name: str, version: str) -> tuple[str, str]:
    """Return one object for all connections of a library."""
    return name, version


def _check_destination(services: Needs, request: ApiVersionsRequest) -> None:
    """Send a client away that means another broker, which had this address before (KIP-1242)."""
    if (request.cluster_id is None) != (request.node_id == NO_NODE):
        raise InvalidRequest
    if request.cluster_id is None:
        return
    if (request.cluster_id, request.node_id) != (services.cluster_id, services.metadata.broker_id):
        raise RebootstrapRequired


def unsupported(routes: Iterable[Route[Any]]) -> ApiVersionsResponse:
    """Make the response to a version that is not served.

    A client that asks in a newer version parses it as version 0 and tries again (KIP-511).
    """
    ranges = [
        ApiVersion(api_key=int(route.api_key), min_version=route.min_version, max_version=route.max_version)
        for route in routes
    ]
    return ApiVersionsResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION), api_keys=ranges)
