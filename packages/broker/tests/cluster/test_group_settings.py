"""Settings of groups (resources of type GROUP): stored and announced apart from Kafka's, and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ottla.broker.cluster.broker_settings import DEFAULT, STATIC_BROKER
from ottla.broker.cluster.configs import Configs
from ottla.broker.cluster.group_settings import DYNAMIC_GROUP
from ottla.broker.cluster.registration import make_roots
from ottla.broker.config import broker_config_from
from ottla.broker.runtime.environment import Environment
from ottla.protocol.errors import InvalidConfig
from ottla.zookeeper import paths
from ottla.zookeeper.testing import MemoryEnsemble
from ottla.zookeeper.znodes import OttlaGroupSettings

STATIC = broker_config_from({"group.consumer.heartbeat.interval.ms": "6000"})
GROUP = "a/b c"


@pytest.fixture
async def ensemble() -> AsyncIterator[MemoryEnsemble]:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as session:
        await make_roots(session)
        yield ensemble


def setting(**settings: str) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in settings.items()}


async def test_a_change_reaches_all_brokers_and_none_of_kafkas_announcements(
    ensemble: MemoryEnsemble,
) -> None:
    async with ensemble.session() as session, ensemble.session() as others:
        here, there = Configs(session, STATIC, Environment(), 1), Configs(others, STATIC, Environment(), 2)
        await here.load()
        await there.load()
        following = asyncio.ensure_future(there.follow())
        changed = setting(consumer_session_timeout_ms="50000")

        await here.alter_group(GROUP, lambda _: changed)

        assert here.group_settings(GROUP) == changed
        async with asyncio.timeout(10):
            while there.group_settings(GROUP) != changed:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert there.groups_with_settings == [GROUP]
        assert await session.children(paths.CONFIG_CHANGES) == []
        assert await session.children(paths.OTTLA_GROUP_SETTINGS) == ["a%2Fb%20c"]
        await here.alter_group(GROUP, lambda _: {})
        async with asyncio.timeout(10):
            while there.group_settings(GROUP):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert there.groups_with_settings == []
        following.cancel()


async def test_settings_are_loaded_at_the_start_and_malformed_ones_ignored(
    ensemble: MemoryEnsemble, caplog: pytest.LogCaptureFixture
) -> None:
    async with ensemble.session() as session:
        node = OttlaGroupSettings("g", setting(share_delivery_count_limit="7"))
        await session.create(node.path, node.encode(), make_parents=True)
        await session.create(OttlaGroupSettings("bad").path, b"{")
        configs = Configs(session, STATIC, Environment(), 1)

        await configs.load()

        assert configs.group_settings("g") == {"share.delivery.count.limit": "7"}
        assert configs.groups_with_settings == ["g"]
        assert "settings ignored" in caplog.text


async def test_a_value_is_described_with_its_sources(ensemble: MemoryEnsemble) -> None:
    async with ensemble.session() as session:
        configs = Configs(session, STATIC, Environment(), 1)
        await configs.load()
        await configs.alter_group(GROUP, lambda _: setting(consumer_heartbeat_interval_ms="7000"))

        entries = {entry.name: entry for entry in configs.describe_group(GROUP)}

        own = entries["consumer.heartbeat.interval.ms"]
        assert [(synonym.name, synonym.value, synonym.source) for synonym in own.synonyms] == [
            ("consumer.heartbeat.interval.ms", "7000", DYNAMIC_GROUP),
            ("group.consumer.heartbeat.interval.ms", "6000", STATIC_BROKER),
            ("group.consumer.heartbeat.interval.ms", "5000", DEFAULT),
        ]
        assert (own.value, own.source) == ("7000", DYNAMIC_GROUP)
        others = {entry.name: entry for entry in configs.describe_group("other")}
        assert others["consumer.heartbeat.interval.ms"].value == "6000"
        assert others["share.auto.offset.reset"].value == "latest"
        assert others["share.auto.offset.reset"].source == DEFAULT


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"unknown": "1"}, "not a group configuration"),
        ({"consumer.session.timeout.ms": "x"}, "consumer.session.timeout.ms"),
        ({"consumer.session.timeout.ms": "44999"}, "in the range 45000 to 60000 inclusive"),
        ({"consumer.session.timeout.ms": "60001"}, "in the range 45000 to 60000 inclusive"),
        ({"consumer.heartbeat.interval.ms": "15001"}, "in the range 5000 to 15000 inclusive"),
        ({"consumer.assignment.interval.ms": "15001"}, "in the range 0 to 15000 inclusive"),
        ({"share.isolation.level": "none"}, "share.isolation.level"),
        ({"errors.deadletterqueue.topic.name": "__dlq"}, "must not start with __"),
        ({"streams.session.timeout.ms": "4000"}, "must be"),
    ],
)
async def test_settings_beyond_the_brokers_bounds_are_refused(
    ensemble: MemoryEnsemble, settings: dict[str, str], reason: str
) -> None:
    async with ensemble.session() as session:
        configs = Configs(session, STATIC, Environment(), 1)
        await configs.load()

        with pytest.raises(InvalidConfig, match=reason):
            await configs.alter_group("g", lambda _: settings)
        await configs.alter_group("g", lambda _: {"consumer.session.timeout.ms": "50000"}, validate_only=True)

        assert configs.groups_with_settings == []
