"""ApiVersions: the APIs and versions that this broker serves, computed from its routes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import InvalidRequest
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING:
    from collections.abc import Sequence


SOFTWARE_FROM: Final = 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""The names and versions of clients' software: they are to be shown in names of metrics (KIP-511)."""


class Needs(Protocol):
    """The parts of the broker that ApiVersions uses."""

    api_ranges: Sequence[tuple[int, int, int]]


async def handle(
    services: Needs, request: ApiVersionsRequest, context: RequestContext
) -> ApiVersionsResponse:
    """List every API with its range; the network answers unknown versions of this one itself.

    No feature is versioned: the list of features is empty, as that of Apache Kafka with ZooKeeper.
    """
    software = (request.client_software_name, request.client_software_version)
    if context.api_version >= SOFTWARE_FROM and not all(map(_SOFTWARE.fullmatch, software)):
        raise InvalidRequest
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, first, last in services.api_ranges
        ]
    )
