"""The feature levels of the cluster (KIP-584): which features are on, and whether a change of one is allowed.

They stand in a znode of Ottla's own. A new cluster has the newest levels; one that is older has none until an
administrator upgrades it, as with Apache Kafka. A feature is off while a live broker does not support its
level: one of Apache Kafka supports none. The controller writes that into the znode too, so that the epoch of
the levels rises for clients. While the controller is a broker of Apache Kafka, any other broker does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.zookeeper import paths
from ottla.zookeeper.errors import MalformedZnode
from ottla.zookeeper.frozen_classes import frozen
from ottla.zookeeper.session import BadVersion, NoNode, WatchEvent, ZooKeeperError
from ottla.zookeeper.znodes import BrokerFeature, BrokerRegistration, FeatureLevels

if TYPE_CHECKING:
    from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)

GROUP: Final = "group.version"
SHARE: Final = "share.version"
STREAMS: Final = "streams.version"
TRANSACTION: Final = "transaction.version"

DEAD_LETTERS: Final = 2
"""The level of share groups from which on they have dead-letter topics (KIP-1191)."""

SUPPORTED: Final[Mapping[str, BrokerFeature]] = {
    GROUP: BrokerFeature(0, 1),
    SHARE: BrokerFeature(0, 2),
    STREAMS: BrokerFeature(0, 1),
    TRANSACTION: BrokerFeature(0, 2),
}
"""The features of this release, with the levels of each."""
NEWEST: Final = FeatureLevels({name: feature.max_version for name, feature in SUPPORTED.items()})
"""The levels of a new cluster."""

UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3
NO_EPOCH: Final = -1
RETRY_BACKOFF_S: Final = 0.1

Members = Mapping[int, Mapping[str, BrokerFeature]]
"""The live brokers, each with the features that it supports."""


@frozen
class FeatureUpdate:
    """A level that an administrator asks for, and whether it may be an upgrade or a downgrade."""

    name: str
    level: int
    upgrade_type: int


class UpdateRefused(Exception):
    """A level cannot be had; the text says why."""


def updated(finalized: FeatureLevels, updates: Iterable[FeatureUpdate], members: Members) -> FeatureLevels:
    """Return the levels after updates, all of them or none, and which are suspended. Raises UpdateRefused."""
    levels = dict(finalized.levels)
    for update in updates:
        if problem := _why_refused(update, levels.get(update.name, 0), members):
            raise UpdateRefused(f"Invalid update version {update.level} for feature {update.name}. {problem}")
        levels[update.name] = update.level
    return FeatureLevels(levels, suspended(levels, members))


def _why_refused(update: FeatureUpdate, present: int, members: Members) -> str | None:
    """Return why a level cannot follow the present one, checked in the order of Apache Kafka."""
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    if (feature := SUPPORTED.get(update.name)) is None:
        return f"The controller does not support this feature, only {', '.join(SUPPORTED)}."
    if not feature.min_version <= update.level <= feature.max_version:
        return f"The controller only supports versions {feature.min_version}-{feature.max_version}."
    if update.level and (lacking := _lacking(update.name, update.level, members)):
        return (
            f"Broker {lacking[0]} does not support it: brokers of Apache Kafka and of earlier releases have "
            "to leave the cluster first."
        )
    if update.level < present and update.upgrade_type == UPGRADE:
        return "It is a downgrade: ask for a safe or an unsafe one."
    if update.level > present and update.upgrade_type != UPGRADE:
        return "Can't downgrade to a newer version."
    return None


def suspended(levels: Mapping[str, int], members: Members) -> dict[str, tuple[int, ...]]:
    """Return the features of which a live broker does not support the level, each with those brokers."""
    lacking = {name: _lacking(name, level, members) for name, level in levels.items() if level}
    return {name: brokers for name, brokers in lacking.items() if brokers}


def _lacking(name: str, level: int, members: Members) -> tuple[int, ...]:
    """Return the live brokers without a level of a feature."""
    return tuple(
        broker
        for broker, features in sorted(members.items())
        if (feature := features.get(name)) is None or not feature.min_version <= level <= feature.max_version
    )


def log_suspended(before: FeatureLevels, after: FeatureLevels) -> None:
    """Log, in one line, that features are off because of a broker, or on again."""
    if before.suspended == after.suspended:
        return
    if after.suspended:
        brokers = sorted({broker for lacking in after.suspended.values() for broker in lacking})
        _log.warning(
            "features are off while brokers without them are members",
            extra={
                "features": ", ".join(after.suspended),
                "brokers": ", ".join(map(str, brokers)),
                "advice": "run `ottla feature downgrade --all` where such a broker is to stay",
            },
        )
    else:
        _log.info("features are on again", extra={"features": ", ".join(before.suspended)})


class Features:
    """The feature levels as this broker knows them: read at its start, and followed."""

    def __init__(self, session: Session, active_controller: Callable[[], int]) -> None:
        """`active_controller` returns the id of the controller, negative without one."""
        self.finalized = FeatureLevels()
        self.epoch = NO_EPOCH
        """How often the levels have changed; -1 without any."""
        self.in_effect: Mapping[str, int] = {}
        """The features that are on, with their levels."""
        self.on_change: list[Callable[[], None]] = []
        self._session = session
        self._active_controller = active_controller
        self._has_moved = asyncio.Event()
        self._reading = asyncio.Lock()
        """One reads at a time: an older read that ends later would take the levels back."""

    def level(self, name: str) -> int:
        """Return the level of a feature, 0 where it is off."""
        return self.in_effect.get(name, 0)

    async def load(self) -> None:
        """Watch the levels and read them. Raises ZooKeeperError."""
        async with self._reading:
            await self._load()

    async def _load(self) -> None:
        finalized, epoch = FeatureLevels(), NO_EPOCH
        if await self._session.exists(paths.OTTLA_FEATURES, self._moved) is not None:
            try:
                data, stat = await self._session.get(paths.OTTLA_FEATURES)
                epoch = stat.version
                finalized = FeatureLevels.decode(data)
            except NoNode:
                pass  # the watch has fired, or will
            except MalformedZnode as error:
                _log.error("features are off: their levels cannot be read", extra={"reason": str(error)})
        self._take(finalized, epoch)

    def _take(self, finalized: FeatureLevels, epoch: int) -> None:
        if (finalized, epoch) == (self.finalized, self.epoch):
            return
        self.finalized, self.epoch = finalized, epoch
        before = self.in_effect
        self.in_effect = {
            name: level
            for name, level in finalized.levels.items()
            if level and name not in finalized.suspended and _is_supported(name, level)
        }
        if before != self.in_effect:
            levels = ", ".join(f"{name}={level}" for name, level in self.in_effect.items())
            _log.info("features in effect", extra={"levels": levels or "none", "epoch": epoch})
        for changed in self.on_change:
            changed()

    async def follow(self) -> None:
        """Read changed levels until cancelled, and suspend them while the controller does not know them."""
        fails = False
        while True:
            await self._has_moved.wait()
            self._has_moved.clear()
            try:
                await self.load()
                await self._suspend_under_foreign_controller()
                fails = False
            except ZooKeeperError as error:
                if not fails:
                    _log.warning("features not read until ZooKeeper answers", extra={"reason": str(error)})
                fails = True
                await asyncio.sleep(RETRY_BACKOFF_S)
                self.wake()

    def wake(self) -> None:
        """Look at the levels and at the controller again, as soon as `follow` runs."""
        self._has_moved.set()

    def _moved(self, _: WatchEvent) -> None:
        self.wake()

    async def _suspend_under_foreign_controller(self) -> None:
        """Suspend what the active controller does not support: a controller of Apache Kafka suspends nothing.

        Every other broker tries to; one of them succeeds.
        """
        controller = self._active_controller()
        if controller < 0 or not self.in_effect:
            return
        try:
            data, _ = await self._session.get(paths.broker(controller))
            features = BrokerRegistration.decode(controller, data).ottla_features
        except (NoNode, MalformedZnode):
            return
        found = suspended(self.in_effect, {controller: features})
        if not found:
            return
        node = FeatureLevels(self.finalized.levels, {**self.finalized.suspended, **found})
        try:
            await self._session.set(node.path, node.encode(), self.epoch)
        except (BadVersion, NoNode):
            return  # the watch has fired: another broker was faster
        log_suspended(self.finalized, node)


def _is_supported(name: str, level: int) -> bool:
    feature = SUPPORTED.get(name)
    return feature is not None and feature.min_version <= level <= feature.max_version
