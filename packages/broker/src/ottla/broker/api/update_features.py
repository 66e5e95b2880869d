"""UpdateFeatures: levels of features of the whole cluster (KIP-584). With ZooKeeper there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import ErrorCode, NotController
from ottla.protocol.messages.cluster import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from ottla.broker.controller.controller import Controller

DELETE_BELOW: Final = 1


class Needs(Protocol):
    """The parts of the broker that UpdateFeatures uses."""

    controller: Controller


async def handle(
    services: Needs, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """Refuse every update, each with its reason: brokers of a cluster with ZooKeeper support no feature."""
    if not services.controller.is_active:
        raise NotController
    results = [_refused(update) async for update in context.paced(request.feature_updates)]
    return UpdateFeaturesResponse(error_message=None, results=results)


def _refused(update: FeatureUpdateKey) -> UpdatableFeatureResult:
    if not update.feature:
        why = "A feature needs a name."
    elif update.max_version_level < DELETE_BELOW:
        why = "The feature cannot be deleted: it has no level."
    else:
        why = "The feature is not supported."
    return UpdatableFeatureResult(
        feature=update.feature, error_code=int(ErrorCode.INVALID_REQUEST), error_message=why
    )
