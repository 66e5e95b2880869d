"""Feature levels: which changes are allowed, and what brokers do about brokers that have no such levels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from ottla.broker.cluster.features import (
    NEWEST,
    SAFE_DOWNGRADE,
    SUPPORTED,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    Features,
    FeatureUpdate,
    UpdateRefused,
    suspended,
    updated,
)
from ottla.broker.cluster.registration import make_roots
from ottla.zookeeper import paths
from ottla.zookeeper.testing import MemoryEnsemble, MemorySession
from ottla.zookeeper.znodes import BrokerFeature, BrokerRegistration, FeatureLevels, FeatureNode

OURS = {1: SUPPORTED, 2: SUPPORTED}
WITH_APACHE = {**OURS, 3: {}}
OFF = FeatureLevels()


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


@dataclass
class Member:
    """The levels as one broker knows them, followed."""

    session: MemorySession
    features: Features
    controller: int = 1

    async def register(self, broker_id: int, features: dict[str, BrokerFeature]) -> None:
        node = BrokerRegistration(broker_id, (), {}, 0, ottla_features=features)
        await self.session.create(node.path, node.encode())

    async def stored(self) -> FeatureLevels:
        return FeatureLevels.decode((await self.session.get(paths.OTTLA_FEATURES))[0])


@asynccontextmanager
async def member(ensemble: MemoryEnsemble, *, is_new: bool = True) -> AsyncIterator[Member]:
    async with ensemble.session() as session:
        if not is_new:
            await session.create(paths.CONSUMERS)
        await make_roots(session)
        made = Member(session, Features(session, lambda: made.controller))
        await made.features.load()
        following = asyncio.ensure_future(made.features.follow())
        yield made
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


# ---- changes


def test_levels_rise_and_fall_as_they_are_asked_for() -> None:
    on = updated(OFF, [FeatureUpdate("group.version", 1, UPGRADE)], OURS)
    off = updated(on, [FeatureUpdate("group.version", 0, SAFE_DOWNGRADE)], OURS)
    lower = updated(NEWEST, [FeatureUpdate("transaction.version", 1, UNSAFE_DOWNGRADE)], OURS)

    assert on.levels == {"group.version": 1}
    assert off.levels == {"group.version": 0}
    assert lower.levels == {**NEWEST.levels, "transaction.version": 1}


@pytest.mark.parametrize(
    ("update", "members", "reason"),
    [
        (FeatureUpdate("group.version", 1, 7), OURS, "does not support the given upgrade type"),
        (FeatureUpdate("group.version", -1, UPGRADE), OURS, "cannot be less than 0"),
        (FeatureUpdate("metadata.version", 1, UPGRADE), OURS, "does not support this feature"),
        (FeatureUpdate("", 1, UPGRADE), OURS, "does not support this feature"),
        (FeatureUpdate("transaction.version", 3, UPGRADE), OURS, "only supports versions 0-2"),
        (FeatureUpdate("share.version", 1, UPGRADE), WITH_APACHE, "Broker 3 does not support it"),
        (FeatureUpdate("transaction.version", 0, UPGRADE), OURS, "ask for a safe or an unsafe one"),
        (FeatureUpdate("share.version", 1, SAFE_DOWNGRADE), OURS, "Can't downgrade to a newer version"),
    ],
)
def test_a_level_that_cannot_be_had_is_refused_with_the_reason(
    update: FeatureUpdate, members: dict[int, Any], reason: str
) -> None:
    present = FeatureLevels({"transaction.version": 2})

    with pytest.raises(UpdateRefused, match=reason) as caught:
        updated(present, [update], members)

    assert str(caught.value).startswith(f"Invalid update version {update.level} for feature {update.name}. ")


def test_no_feature_is_changed_where_one_of_them_cannot() -> None:
    first, second = FeatureUpdate("group.version", 1, UPGRADE), FeatureUpdate("share.version", 9, UPGRADE)

    with pytest.raises(UpdateRefused, match=r"share\.version"):
        updated(OFF, [first, second], OURS)


def test_dead_letters_of_share_groups_wait_until_every_broker_has_them() -> None:
    before = {**SUPPORTED, "share.version": BrokerFeature(0, 1)}
    upgrade, present = FeatureUpdate("share.version", 2, UPGRADE), FeatureLevels({"share.version": 1})

    with pytest.raises(UpdateRefused, match="Broker 2 does not support it"):
        updated(present, [upgrade], {1: SUPPORTED, 2: before})

    assert suspended({"share.version": 1}, {1: SUPPORTED, 2: before}) == {}
    raised = updated(present, [upgrade], {1: SUPPORTED, 2: SUPPORTED})
    assert raised.levels == {"share.version": 2}
    assert suspended(raised.levels, {1: SUPPORTED, 2: before}) == {"share.version": (2,)}
    lowered = updated(raised, [FeatureUpdate("share.version", 1, SAFE_DOWNGRADE)], {1: SUPPORTED, 2: before})
    assert lowered == present


def test_features_are_suspended_by_the_brokers_that_do_not_support_their_levels() -> None:
    older = {name: feature for name, feature in SUPPORTED.items() if name != "share.version"}
    older["transaction.version"] = BrokerFeature(0, 1)

    found = updated(NEWEST, (), {**WITH_APACHE, 4: older})

    assert found.suspended == {
        "group.version": (3,), "share.version": (3, 4), "streams.version": (3,),
        "transaction.version": (3, 4),
    }  # fmt: skip
    assert updated(found, (), OURS) == NEWEST
    assert updated(OFF, (), WITH_APACHE) == OFF


def test_a_downgrade_is_possible_while_a_broker_of_apache_kafka_is_a_member() -> None:
    found = updated(NEWEST, [FeatureUpdate(name, 0, SAFE_DOWNGRADE) for name in SUPPORTED], WITH_APACHE)

    assert found == FeatureLevels(dict.fromkeys(SUPPORTED, 0))


# ---- what a broker knows


async def test_a_new_cluster_has_every_feature_and_writes_no_level_where_apache_kafka_reads() -> None:
    async with member(MemoryEnsemble()) as made:
        assert made.features.in_effect == {
            "group.version": 1, "share.version": 2, "streams.version": 1, "transaction.version": 2,
        }  # fmt: skip
        assert made.features.epoch == 0
        assert await made.session.exists(FeatureNode().path) is None


async def test_a_cluster_of_an_earlier_release_has_no_feature_until_it_is_upgraded() -> None:
    async with member(MemoryEnsemble(), is_new=False) as made:
        assert (made.features.in_effect, made.features.epoch) == ({}, -1)
        assert made.features.level("group.version") == 0

        node = FeatureLevels({"group.version": 1})
        await made.session.create(node.path, node.encode(), make_parents=True)
        await settle()

        assert made.features.level("group.version") == 1
        assert made.features.level("share.version") == 0


async def test_a_suspended_feature_is_off_and_its_epoch_rises() -> None:
    changes = []
    async with member(MemoryEnsemble()) as made:
        made.features.on_change.append(lambda: changes.append(made.features.level("share.version")))

        node = FeatureLevels(NEWEST.levels, {"share.version": (3,)})
        await made.session.set(node.path, node.encode())
        await settle()

        assert (made.features.level("share.version"), made.features.epoch) == (0, 1)
        assert made.features.level("group.version") == 1
        assert changes == [0]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"version":1,"levels":{"group.version":"x"}}'])
async def test_levels_that_cannot_be_read_are_off(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with member(MemoryEnsemble()) as made:
        with caplog.at_level(logging.ERROR):
            await made.session.set(paths.OTTLA_FEATURES, data)
            await settle()

        assert made.features.in_effect == {}
        assert "features are off: their levels cannot be read" in caplog.messages


async def test_a_level_that_this_release_does_not_know_is_off_here() -> None:
    async with member(MemoryEnsemble()) as made:
        node = FeatureLevels({"group.version": 2, "some.version": 1, "share.version": 1})
        await made.session.set(node.path, node.encode())
        await settle()

        assert made.features.in_effect == {"share.version": 1}


# ---- under a controller of Apache Kafka


async def test_under_a_controller_of_apache_kafka_the_features_are_suspended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with member(MemoryEnsemble()) as made:
        await made.register(1, dict(SUPPORTED))
        await made.register(3, {})

        with caplog.at_level(logging.WARNING):
            made.controller = 3
            made.features.wake()
            await settle()

        assert made.features.in_effect == {}
        assert (await made.stored()).levels == NEWEST.levels
        assert (await made.stored()).suspended == dict.fromkeys(SUPPORTED, (3,))
        assert caplog.messages == ["features are off while brokers without them are members"]


async def test_under_a_controller_of_ours_no_other_broker_writes_the_levels() -> None:
    async with member(MemoryEnsemble()) as made:
        await made.register(2, dict(SUPPORTED))

        made.controller = 2
        made.features.wake()
        await settle()

        assert made.features.epoch == 0


async def test_levels_are_read_again_after_a_lost_session() -> None:
    ensemble = MemoryEnsemble()
    async with member(ensemble) as made, ensemble.session() as other:
        node = FeatureLevels({"group.version": 1})
        ensemble.expire(made.session)
        await other.set(node.path, node.encode())
        await made.session.wait_connected()
        await settle()

        assert made.features.in_effect == {"group.version": 1}
