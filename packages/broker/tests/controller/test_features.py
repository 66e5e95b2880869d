"""The controller and the feature levels: brokers without them come and go, administrators change them."""

from __future__ import annotations

import logging

import pytest

from ottla.broker.cluster.features import NEWEST, SAFE_DOWNGRADE, SUPPORTED, UPGRADE, FeatureUpdate
from ottla.broker.controller.events import UpdateFeatures
from ottla.broker.controller.testing import ControllerCluster, SimulatedBroker, play
from ottla.broker.peers.controller_requests import Answers
from ottla.protocol.errors import ErrorCode
from ottla.zookeeper import paths
from ottla.zookeeper.znodes import FeatureLevels


def stored(cluster: ControllerCluster) -> FeatureLevels:
    return FeatureLevels.decode(cluster.ensemble.tree.node(paths.OTTLA_FEATURES).data)


async def start_apache(cluster: ControllerCluster, broker_id: int) -> None:
    """Start a broker that supports no feature."""
    broker = cluster.brokers[broker_id] = SimulatedBroker(cluster, broker_id)
    broker.features = {}
    await broker.start()


async def ask(cluster: ControllerCluster, *updates: FeatureUpdate, validate_only: bool = False) -> Answers:
    assert cluster.active is not None
    return await cluster.active.ask(UpdateFeatures(updates, validate_only))


def test_features_are_off_while_a_broker_of_apache_kafka_is_a_member(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(cluster: ControllerCluster) -> None:
        assert stored(cluster) == NEWEST

        with caplog.at_level(logging.INFO, "ottla.broker.cluster.features"):
            await start_apache(cluster, 3)
            await cluster.until(lambda: bool(stored(cluster).suspended), "features off")
            assert stored(cluster).suspended == dict.fromkeys(SUPPORTED, (3,))
            await cluster.kill(3)
            await cluster.until(lambda: stored(cluster) == NEWEST, "features on again")

        told = [
            (record.levelname, record.message)
            for record in caplog.records
            if record.name.endswith("features")
        ]
        assert told == [
            ("WARNING", "features are off while brokers without them are members"),
            ("INFO", "features are on again"),
        ]

    play(story, 1, 2)


def test_features_are_off_before_a_broker_of_apache_kafka_gets_a_partition() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await cluster.create_topic("orders", (3,))
        await start_apache(cluster, 3)

        await cluster.until(lambda: bool(cluster.brokers[3].roles), "a partition led by the new broker")

        assert stored(cluster).suspended == dict.fromkeys(SUPPORTED, (3,))

    play(story, 1, 2)


def test_a_controller_that_takes_over_suspends_what_its_predecessor_did_not() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await start_apache(cluster, 3)
        await cluster.until(lambda: bool(stored(cluster).suspended), "features off")
        session = cluster.brokers[2].session
        await session.set(paths.OTTLA_FEATURES, NEWEST.encode())  # as a controller of Apache Kafka leaves it

        await cluster.kill(1)

        await cluster.until(lambda: bool(stored(cluster).suspended), "features off again")

    play(story, 1, 2)


def test_an_administrator_changes_levels_all_or_none() -> None:
    async def story(cluster: ControllerCluster) -> None:
        lower = FeatureUpdate("transaction.version", 1, SAFE_DOWNGRADE)
        wrong = FeatureUpdate("group.version", 7, UPGRADE)

        refused = await ask(cluster, lower, wrong)
        assert refused.top == ErrorCode.INVALID_UPDATE_VERSION
        assert refused.message == (
            "Invalid update version 7 for feature group.version. The controller only supports versions 0-1."
        )
        assert (await ask(cluster, lower, validate_only=True)).top == ErrorCode.NONE
        assert stored(cluster) == NEWEST

        assert (await ask(cluster, lower)).top == ErrorCode.NONE
        assert stored(cluster).levels == {**NEWEST.levels, "transaction.version": 1}

    play(story, 1)


def test_the_levels_of_a_cluster_of_an_earlier_release_are_written_with_its_first_upgrade() -> None:
    async def story(cluster: ControllerCluster) -> None:
        session = cluster.brokers[1].session
        await session.delete(paths.OTTLA_FEATURES)
        await session.delete(paths.OTTLA)

        answers = await ask(cluster, FeatureUpdate("group.version", 1, UPGRADE))

        assert answers.top == ErrorCode.NONE
        assert stored(cluster) == FeatureLevels({"group.version": 1})

    play(story, 1)


def test_levels_that_cannot_be_read_are_left_alone() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await cluster.brokers[1].session.set(paths.OTTLA_FEATURES, b"{")

        answers = await ask(cluster, FeatureUpdate("group.version", 1, UPGRADE))

        assert answers.top == ErrorCode.INVALID_UPDATE_VERSION
        assert "cannot be read" in str(answers.message)
        assert cluster.ensemble.tree.node(paths.OTTLA_FEATURES).data == b"{"

    play(story, 1)
