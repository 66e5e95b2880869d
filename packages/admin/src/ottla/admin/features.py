"""Feature levels of the cluster: which of Kafka's newer features are on (KIP-584)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from ottla.admin.brokers import Brokers, BrokerVersions
from ottla.client.cluster import Cluster
from ottla.client.errors import ALTER_CLUSTER
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.cluster import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse


class Change(IntEnum):
    """Whether a level may rise or fall: Kafka's types of an upgrade."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    """Refused while groups or transactions need the feature."""
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """A feature of the cluster; its `level` is 0 while it is off."""

    name: str
    level: int
    least: int
    """The lowest and the highest level that all of the brokers which support the feature can have."""
    most: int
    lacking: tuple[int, ...]
    """The live brokers that do not support it: it is off while there is one."""


@dataclass(frozen=True, slots=True)
class ClusterFeatures:
    """The features of a cluster; `epoch` counts their changes, -1 before the first."""

    epoch: int
    features: tuple[FeatureLevel, ...]


class Features:
    """The feature levels of a cluster."""

    def __init__(self, cluster: Cluster, brokers: Brokers) -> None:
        self._cluster = cluster
        self._brokers = brokers

    async def describe(self) -> ClusterFeatures:
        """Return the features that any broker supports, sorted by name. Every broker is asked."""
        described = await self._brokers.describe()
        found = await asyncio.gather(*(self._brokers.versions(broker.id) for broker in described.brokers))
        names = sorted({feature.name for versions in found for feature in versions.features})
        return ClusterFeatures(
            max((versions.features_epoch for versions in found), default=-1),
            tuple(_feature(name, found) for name in names),
        )

    async def update(
        self, levels: Mapping[str, int], change: Change = Change.UPGRADE, *, validate_only: bool = False
    ) -> None:
        """Give features other levels, all of them or none; with `validate_only` check if that is possible.

        Raises InvalidUpdateVersion or FeatureUpdateFailed, with the reason: a broker that does not support
        the level, a downgrade that was not asked for, or what has to end before a safe one.
        """
        request = UpdateFeaturesRequest(
            timeout_ms=self._cluster.config.request_timeout_ms,
            feature_updates=[
                FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=int(change))
                for name, level in levels.items()
            ],
            validate_only=validate_only,
        )

        # The first version has neither this check nor two kinds of downgrades.
        min_version = 1 if validate_only or change is not Change.UPGRADE else None

        async def ask() -> None:
            response = await self._cluster.send_to_controller(
                request, UpdateFeaturesResponse, min_version=min_version
            )
            failed = [result for result in response.results if result.error_code]
            code, message = response.error_code, response.error_message
            if code == ErrorCode.NONE and failed:
                code, message = failed[0].error_code, failed[0].error_message
            self._cluster.raise_controller_error(code, message, ALTER_CLUSTER)

        await self._cluster.retry("updating features", ask)


def _feature(name: str, found: list[BrokerVersions]) -> FeatureLevel:
    supported = [feature for versions in found for feature in versions.features if feature.name == name]
    lacking = [v.broker for v in found if name not in {feature.name for feature in v.features}]
    return FeatureLevel(
        name,
        max(feature.level or 0 for feature in supported),
        max(feature.least for feature in supported),
        min(feature.most for feature in supported),
        tuple(lacking),
    )
