"""UpdateFeatures: levels of features of the whole cluster (KIP-584), kept by the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.api.ask_controller import ask_controller
from ottla.broker.cluster.features import (
    GROUP,
    SAFE_DOWNGRADE,
    SHARE,
    STREAMS,
    TRANSACTION,
    UPGRADE,
    Features,
    FeatureUpdate,
)
from ottla.broker.controller.events import UpdateFeatures
from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import BrokerNotAvailable, ErrorCode, NotController
from ottla.protocol.messages.cluster import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.protocol.messages.groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.open_transactions import ListTransactionsRequest, ListTransactionsResponse
from ottla.zookeeper.session import ZooKeeperError

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.controller.controller import Controller
    from ottla.broker.peers.client import Peer, Peers

TYPES_FROM: Final = 1
"""The first version that names the type of an upgrade; before, a downgrade is allowed or not."""
WITHOUT_RESULTS_FROM: Final = 2
TYPES_OF_GROUPS: Final = {GROUP: "consumer", SHARE: "share", STREAMS: "streams"}
ENDED: Final = frozenset({"Empty", "Dead"})
OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
MOST_NAMED: Final = 5


class Needs(Protocol):
    """The parts of the broker that UpdateFeatures uses."""

    controller: Controller
    metadata: MetadataCache
    features: Features
    peers: Peers
    config: BrokerConfig


async def handle(
    services: Needs, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """Ask the controller for the levels: it writes all of them or none.

    A safe downgrade is refused while what needs the feature is in use; an unsafe one is not.
    """
    if not services.controller.is_active:
        raise NotController
    updates = tuple(
        [_update(update, context.api_version) async for update in context.paced(request.feature_updates)]
    )
    code, problem = ErrorCode.NONE, await _in_use(services, updates)
    if problem is not None:
        code = ErrorCode.FEATURE_UPDATE_FAILED
    else:
        event = UpdateFeatures(updates, request.validate_only)
        answers = await ask_controller(services, event, request.timeout_ms)
        code, problem = ErrorCode(answers.top), answers.message
        await _see_levels(services)
    return _response(request, context, code, problem)


async def _see_levels(services: Needs) -> None:
    """Read the levels before the answer: the client's next ApiVersions to this broker shows them."""
    try:
        await services.features.load()
    except ZooKeeperError:
        return  # they are written; this broker reads them once ZooKeeper answers again


def _update(update: FeatureUpdateKey, version: int) -> FeatureUpdate:
    upgrade_type = update.upgrade_type
    if version < TYPES_FROM:
        upgrade_type = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    return FeatureUpdate(update.feature, update.max_version_level, upgrade_type)


def _response(
    request: UpdateFeaturesRequest, context: RequestContext, code: ErrorCode, problem: str | None
) -> UpdateFeaturesResponse:
    """Answer for all features; earlier versions list those that were changed, as Apache Kafka 4.4 does."""
    if code:
        message = f"The update failed for all features since the following feature had an error: {problem}"
        return UpdateFeaturesResponse(error_code=int(code), error_message=message)
    results = []
    if context.api_version < WITHOUT_RESULTS_FROM:
        results = [
            UpdatableFeatureResult(feature=update.feature, error_message=None)
            for update in request.feature_updates
        ]
    return UpdateFeaturesResponse(error_message=None, results=results)


# ---- what has to end before a safe downgrade


async def _in_use(services: Needs, updates: Iterable[FeatureUpdate]) -> str | None:
    """Return the reason why the first safe downgrade among updates has to wait, None where none has to."""
    for update in updates:
        is_safe_downgrade = update.upgrade_type == SAFE_DOWNGRADE and (
            0 <= update.level < services.features.level(update.name)
        )
        if is_safe_downgrade and (problem := await _users_of(services, update.name)) is not None:
            return f"Feature {update.name} is in use: {problem}"
    return None


async def _users_of(services: Needs, feature: str) -> str | None:
    brokers = sorted(broker.id for broker in services.metadata.brokers)
    ask = _transactions_on if feature == TRANSACTION else _groups_on
    try:
        found = await asyncio.gather(*(ask(services, broker, feature) for broker in brokers))
    except (OSError, BrokerNotAvailable) as error:
        return f"a broker could not be asked ({error}): try again, or ask for an unsafe downgrade."
    users = sorted({name for names in found for name in names})
    if not users:
        return None
    more = f" and {len(users) - MOST_NAMED} more" if len(users) > MOST_NAMED else ""
    named = ", ".join(users[:MOST_NAMED]) + more
    if feature == TRANSACTION:
        return f"the transactions of {named} are open. End them first, or ask for an unsafe downgrade."
    kind = TYPES_OF_GROUPS[feature]
    return f"the {kind} groups {named} have members. Stop them first, or ask for an unsafe downgrade."


def _connect(services: Needs, broker: int) -> Peer:
    return services.peers.broker(broker, "features", services.config.request_timeout_ms)


async def _groups_on(services: Needs, broker: int, feature: str) -> list[str]:
    """Return the groups of a feature's type that a broker coordinates, and that have members."""
    peer = _connect(services, broker)
    try:
        request = ListGroupsRequest(types_filter=[TYPES_OF_GROUPS[feature]])
        response = await peer.send(request, ListGroupsResponse, min_version=5)
    finally:
        await peer.close()
    return [group.group_id for group in response.groups if group.group_state not in ENDED]


async def _transactions_on(services: Needs, broker: int, feature: str) -> list[str]:
    """Return the transactional ids with an open transaction that a broker coordinates."""
    peer = _connect(services, broker)
    try:
        request = ListTransactionsRequest(state_filters=list(OPEN))
        response = await peer.send(request, ListTransactionsResponse)
    finally:
        await peer.close()
    return [listed.transactional_id for listed in response.transaction_states]
