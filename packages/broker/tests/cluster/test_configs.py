"""Dynamic settings over an ensemble in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from ottla.broker.cluster.broker_settings import (
    DEFAULT,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT_BROKER,
    DYNAMIC_TOPIC,
    STATIC_BROKER,
    Entry,
)
from ottla.broker.cluster.configs import Configs
from ottla.broker.cluster.registration import make_roots
from ottla.broker.config import BrokerConfig, LogConfig, broker_config_from
from ottla.broker.runtime.environment import Environment
from ottla.protocol.errors import InvalidConfig, InvalidRequest, UnknownTopicOrPartition
from ottla.zookeeper import paths
from ottla.zookeeper.testing import MemoryEnsemble, MemorySession
from ottla.zookeeper.znodes import ConfigChange, ConfigEntity, OttlaTopicSettings

STATIC = broker_config_from({"log.retention.hours": "24", "background.threads": "4"})


async def anyone(before: BrokerConfig, after: BrokerConfig) -> None:
    """Permit a change."""


class Harness:
    """Settings of broker 1, followed while it is entered."""

    def __init__(self, ensemble: MemoryEnsemble, session: MemorySession) -> None:
        self.ensemble = ensemble
        self.session = session
        self.configs = Configs(session, STATIC, Environment(), 1)
        self.applied: list[tuple[str, LogConfig]] = []
        self.broker_changes: list[BrokerConfig] = []
        self.configs.on_topic_change.append(lambda topic, config: self.applied.append((topic, config)))
        self.configs.on_broker_change.append(self.broker_changes.append)

    async def topic(self, name: str = "orders", **settings: str) -> None:
        dotted = {key.replace("_", "."): value for key, value in settings.items()}
        await self.session.create(paths.topic(name))
        node = ConfigEntity(f"topics/{name}", dotted)
        await self.session.create(node.path, node.encode())

    def entry(self, name: str, topic: str = "orders") -> Entry:
        return next(entry for entry in self.configs.describe_topic(topic) if entry.name == name)

    def broker_entry(self, name: str) -> Entry:
        return next(entry for entry in self.configs.describe_broker("1") if entry.name == name)


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as session:
        await make_roots(session)
        harness = Harness(ensemble, session)
        await harness.configs.load()
        following = asyncio.ensure_future(harness.configs.follow())
        yield harness
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def settle() -> None:
    """Wait until the loop rests."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_settings_written_before_the_start_are_loaded(harness: Harness) -> None:
    await harness.topic(retention_ms="5")

    await harness.configs.load()

    assert harness.configs.log_config("orders").retention_ms == 5
    assert harness.configs.log_config("other").retention_ms == 24 * 3_600_000


async def test_a_change_announced_by_another_broker_is_applied_live(harness: Harness) -> None:
    await harness.topic()
    node = ConfigEntity("topics/orders", {"segment.bytes": "2000"})
    await harness.session.set(node.path, node.encode())

    change = ConfigChange("topics/orders")
    await harness.session.create(change.path, change.encode(), sequential=True)
    await settle()

    assert [(topic, config.segment_bytes) for topic, config in harness.applied] == [("orders", 2000)]


async def test_a_change_missed_while_disconnected_is_applied_after_the_reconnect(harness: Harness) -> None:
    await harness.topic()
    async with harness.ensemble.session() as other:
        harness.ensemble.disconnect(harness.session)
        node = ConfigEntity("topics/orders", {"retention.ms": "7"})
        await other.set(node.path, node.encode())
        change = ConfigChange("topics/orders")
        await other.create(change.path, change.encode(), sequential=True)

        harness.ensemble.reconnect(harness.session)
        await settle()

    assert harness.configs.log_config("orders").retention_ms == 7


async def test_a_malformed_notification_or_entity_is_skipped(harness: Harness) -> None:
    await harness.topic()
    await harness.session.create(paths.CONFIG_CHANGE_PREFIX, b"{nonsense", sequential=True)
    node = ConfigEntity("topics/orders", {"retention.ms": "soon", "segment.bytes": "2000"})
    await harness.session.set(node.path, node.encode())
    change = ConfigChange("topics/orders")
    await harness.session.create(change.path, change.encode(), sequential=True)
    await settle()

    config = harness.configs.log_config("orders")
    assert (config.segment_bytes, config.retention_ms) == (2000, 24 * 3_600_000)


async def test_an_alteration_is_written_announced_and_applied(harness: Harness) -> None:
    await harness.topic()

    await harness.configs.alter_topic("orders", lambda present: {**present, "retention.ms": "9"})

    assert harness.configs.log_config("orders").retention_ms == 9
    assert len(await harness.session.children(paths.CONFIG_CHANGES)) == 1


async def test_validate_only_changes_nothing(harness: Harness) -> None:
    await harness.topic()

    await harness.configs.alter_topic("orders", lambda _: {"retention.ms": "9"}, validate_only=True)

    assert harness.configs.overrides("orders") == {}
    assert await harness.session.children(paths.CONFIG_CHANGES) == []


async def test_invalid_settings_are_refused_with_the_reason(harness: Harness) -> None:
    await harness.topic()

    with pytest.raises(InvalidConfig, match=r"min\.insync\.replicas must be at least 1"):
        await harness.configs.alter_topic("orders", lambda _: {"min.insync.replicas": "0"})
    with pytest.raises(InvalidConfig, match=r"no\.such"):
        await harness.configs.alter_topic("orders", lambda _: {"no.such": "0"})
    for name in ("ghost", "..", "a/b", "n\0ul"):
        with pytest.raises(UnknownTopicOrPartition):
            await harness.configs.alter_topic(name, lambda _: {})


async def test_a_topic_value_is_described_with_every_source(harness: Harness) -> None:
    await harness.topic(retention_ms="9")
    await harness.configs.load()

    entry = harness.entry("retention.ms")

    assert (entry.value, entry.source, entry.read_only) == ("9", DYNAMIC_TOPIC, False)
    assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
        ("retention.ms", "9", DYNAMIC_TOPIC),
        ("log.retention.ms", None, DEFAULT),
        ("log.retention.hours", "24", STATIC_BROKER),
    ] or entry.synonyms[0].source == DYNAMIC_TOPIC
    plain = harness.entry("segment.bytes")
    assert (plain.value, plain.source) == ("1073741824", DEFAULT)
    assert harness.entry("retention.ms", "other").value == "86400000"


async def test_a_cluster_wide_setting_reaches_every_topic_that_does_not_override_it(harness: Harness) -> None:
    await harness.topic(max_message_bytes="500")
    await harness.configs.load()
    assert harness.configs.log_config("other").max_message_bytes == 1_048_588

    await harness.configs.alter_broker("", lambda _: {"message.max.bytes": "1000"}, permit=anyone)

    assert harness.configs.log_config("orders").max_message_bytes == 500
    assert harness.configs.log_config("other").max_message_bytes == 1000
    assert harness.broker_changes[-1].message_max_bytes == 1000
    assert harness.broker_entry("message.max.bytes").source == DYNAMIC_DEFAULT_BROKER
    assert [entry.name for entry in harness.configs.describe_broker("")] == ["message.max.bytes"]


async def test_a_brokers_own_setting_wins_over_the_clusters(harness: Harness) -> None:
    await harness.configs.alter_broker("", lambda _: {"message.max.bytes": "1000"}, permit=anyone)
    await harness.configs.alter_broker("1", lambda _: {"message.max.bytes": "2000"}, permit=anyone)

    entry = harness.broker_entry("message.max.bytes")

    assert (entry.value, entry.source) == ("2000", DYNAMIC_BROKER)
    assert [synonym.source for synonym in entry.synonyms] == [DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER, DEFAULT]


async def test_read_only_settings_and_those_of_other_brokers_cannot_be_altered(harness: Harness) -> None:
    with pytest.raises(InvalidConfig, match=r"dynamically: broker\.id"):
        await harness.configs.alter_broker("1", lambda _: {"broker.id": "7"}, permit=anyone)
    with pytest.raises(InvalidRequest, match="Unexpected broker id, expected 1, but received 2"):
        await harness.configs.alter_broker("2", lambda _: {}, permit=anyone)
    assert harness.broker_entry("broker.id").read_only


async def test_a_value_from_the_file_is_described_as_static(harness: Harness) -> None:
    entry = harness.broker_entry("background.threads")

    assert (entry.value, entry.source) == ("4", STATIC_BROKER)


async def test_settings_that_are_used_only_at_the_start_are_read_only(harness: Harness) -> None:
    assert harness.broker_entry("zookeeper.connect").read_only
    assert harness.broker_entry("socket.request.max.bytes").read_only
    assert not harness.broker_entry("listeners").read_only
    assert not harness.broker_entry("max.connections.per.ip").read_only
    with pytest.raises(InvalidConfig, match=r"overrides must be a list of host:limit, not '10\.0\.0\.1'"):
        await harness.configs.alter_broker(
            "1", lambda _: {"max.connections.per.ip.overrides": "10.0.0.1"}, permit=anyone
        )


async def test_read_only_settings_that_another_tool_wrote_are_ignored_and_named_once(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    stored = {"broker.id": "7", "zookeeper.connect": "there:1", "message.max.bytes": "1000"}
    own = ConfigEntity("brokers/1", stored)
    await harness.session.create(own.path, own.encode(), make_parents=True)
    common = ConfigEntity(
        "brokers/<default>", {"max.connections.per.ip.overrides": "10.0.0.1:5", "listeners": "PLAINTEXT://:1"}
    )
    await harness.session.create(common.path, common.encode(), make_parents=True)

    await harness.configs.load()
    await harness.configs.load()

    broker = harness.configs.broker
    assert (broker.broker_id, broker.message_max_bytes) == (STATIC.broker_id, 1000)
    assert broker.parsed_listeners == STATIC.parsed_listeners
    assert harness.broker_entry("zookeeper.connect").source == DEFAULT
    named = {r.__dict__["entity"]: r.__dict__["keys"] for r in caplog.records if hasattr(r, "keys")}
    assert named["brokers/1"] == "broker.id, zookeeper.connect"
    assert "listeners" in named["brokers/<default>"]
    assert [r.levelno for r in caplog.records if hasattr(r, "keys")] == [logging.ERROR] * 2


async def test_an_alteration_removes_the_read_only_settings_that_another_tool_wrote(harness: Harness) -> None:
    own = ConfigEntity("brokers/1", {"broker.id": "7", "message.max.bytes": "1000"})
    await harness.session.create(own.path, own.encode(), make_parents=True)

    await harness.configs.alter_broker(
        "1", lambda present: {**present, "max.connections.per.ip": "3"}, permit=anyone
    )

    data, _ = await harness.session.get(own.path)
    kept = dict(ConfigEntity.decode("brokers/1", data).config)
    assert kept == {"message.max.bytes": "1000", "max.connections.per.ip": "3"}


async def test_the_settings_of_a_topic_made_anew_are_read_anew(harness: Harness) -> None:
    await harness.topic(retention_ms="5")
    await harness.configs.ensure_topics({"orders": UUID(int=1)})
    node = ConfigEntity("topics/orders", {"retention.ms": "6"})
    await harness.session.set(node.path, node.encode())

    await harness.configs.ensure_topics({"orders": UUID(int=1)})
    assert harness.configs.log_config("orders").retention_ms == 5
    await harness.configs.ensure_topics({"orders": UUID(int=2)})
    assert harness.configs.log_config("orders").retention_ms == 6


async def test_settings_that_cannot_be_read_now_are_read_when_zookeeper_is_back(harness: Harness) -> None:
    await harness.topic(retention_ms="5")
    harness.ensemble.disconnect(harness.session)

    await harness.configs.ensure_topics({"orders": UUID(int=1)})
    assert harness.configs.log_config("orders").retention_ms == 24 * 3_600_000

    read = asyncio.Event()
    harness.configs.on_topic_change.append(lambda *_: read.set())
    harness.ensemble.reconnect(harness.session)
    async with asyncio.timeout(30):
        await read.wait()
    assert harness.configs.log_config("orders").retention_ms == 5


async def test_whether_topics_allow_unclean_elections_is_read_as_it_is_in_zookeeper_now(
    harness: Harness,
) -> None:
    await harness.topic(unclean_leader_election_enable="true")
    await harness.topic("other")

    assert await harness.configs.read_unclean_topics({"orders", "other"}) == {"orders"}

    await harness.configs.alter_broker(
        "", lambda _: {"unclean.leader.election.enable": "true"}, permit=anyone
    )
    assert await harness.configs.read_unclean_topics({"orders", "other"}) == {"orders", "other"}


async def stored(harness: Harness, topic: str = "orders") -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings in Kafka's znode of a topic and in ours."""
    data, _ = await harness.session.get(paths.config_entity("topics", topic))
    own, _ = await harness.session.get(paths.ottla_topic_settings(topic))
    config = ConfigEntity.decode(f"topics/{topic}", data).config
    return dict(config), dict(OttlaTopicSettings.decode(topic, own).config)


async def test_keys_that_kafka_does_not_know_are_stored_in_a_znode_of_ours(harness: Harness) -> None:
    await harness.topic(retention_ms="5")
    own = {"flush.before.acknowledge": "true", "record.validation": "headers"}

    await harness.configs.alter_topic("orders", lambda present: {**present, **own})

    assert await stored(harness) == ({"retention.ms": "5"}, own)
    assert harness.configs.log_config("orders").flush_before_acknowledge
    assert harness.configs.log_config("orders").retention_ms == 5
    await harness.configs.alter_topic("orders", lambda present: {})
    assert await stored(harness) == ({}, {})
    assert not harness.configs.log_config("orders").flush_before_acknowledge


async def test_a_key_of_ours_that_an_earlier_version_wrote_beside_kafkas_is_read_and_moves(
    harness: Harness,
) -> None:
    await harness.topic(flush_before_acknowledge="true", retention_ms="5")
    await harness.configs.load()
    assert harness.configs.log_config("orders").flush_before_acknowledge

    await harness.configs.alter_topic("orders", lambda present: {**present, "retention.ms": "6"})

    assert await stored(harness) == ({"retention.ms": "6"}, {"flush.before.acknowledge": "true"})
    assert harness.configs.log_config("orders").flush_before_acknowledge


async def test_settings_that_an_earlier_topic_of_the_name_left_are_not_read(harness: Harness) -> None:
    await harness.topic()
    left = OttlaTopicSettings("orders", UUID(int=7), {"flush.before.acknowledge": "true"})
    await harness.session.create(left.path, left.encode(), make_parents=True)

    await harness.configs.load()

    assert not harness.configs.log_config("orders").flush_before_acknowledge
    await harness.configs.alter_topic("orders", lambda present: {**present, "retention.ms": "6"})
    assert await stored(harness) == ({"retention.ms": "6"}, {})


async def test_two_changes_at_once_are_both_kept(harness: Harness) -> None:
    await harness.topic()
    changes = {"flush.before.acknowledge": "true", "retention.ms": "9", "segment.ms": "7"}

    await asyncio.gather(
        *(
            harness.configs.alter_topic("orders", lambda present, key=key: {**present, key: changes[key]})  # type: ignore[misc]
            for key in changes
        )
    )

    own = {"flush.before.acknowledge": changes.pop("flush.before.acknowledge")}
    assert await stored(harness) == (changes, own)


# ---- passwords

JAAS = "listener.name.login.plain.sasl.jaas.config"
LINE = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_anna="correct horse";'


def of_broker(session: MemorySession, **secrets: str) -> Configs:
    keys = {f"password.encoder.{name.replace('_', '.')}": text for name, text in secrets.items()}
    return Configs(session, broker_config_from(keys), Environment(), 1)


async def stored_of_broker(session: MemorySession) -> dict[str, str]:
    data, _ = await session.get(paths.config_entity("brokers", "1"))
    return dict(ConfigEntity.decode("brokers/1", data).config)


def overrides_of(configs: Configs) -> dict[str, str]:
    return dict(configs.broker.listener_overrides)


async def test_a_password_is_encrypted_in_its_znode_and_has_no_value_in_descriptions(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    configs = of_broker(harness.session, secret="s1")

    await configs.alter_broker("1", lambda _: {JAAS: LINE, "max.connections": "7"}, permit=anyone)

    stored = await stored_of_broker(harness.session)
    assert stored["max.connections"] == "7"
    assert "cipherAlgorithm:AES/CBC/PKCS5Padding" in stored[JAAS]
    assert overrides_of(configs) == {JAAS: LINE}
    (entry,) = [entry for entry in configs.describe_broker("1") if entry.name == JAAS]
    assert (entry.value, entry.sensitive, entry.source) == (None, True, DYNAMIC_BROKER)
    assert "correct horse" not in repr(configs.describe_broker("1"))
    assert "correct horse" not in caplog.text


async def test_another_broker_of_the_id_reads_the_password(harness: Harness) -> None:
    await of_broker(harness.session, secret="s1").alter_broker("1", lambda _: {JAAS: LINE}, permit=anyone)

    later = of_broker(harness.session, secret="s1")
    await later.load()

    assert overrides_of(later) == {JAAS: LINE}


async def test_a_password_that_stays_keeps_its_text(harness: Harness) -> None:
    configs = of_broker(harness.session, secret="s1")
    await configs.alter_broker("1", lambda _: {JAAS: LINE}, permit=anyone)
    before = await stored_of_broker(harness.session)

    await configs.alter_broker("1", lambda present: present | {"max.connections": "7"}, permit=anyone)

    assert await stored_of_broker(harness.session) == before | {"max.connections": "7"}


async def test_without_a_secret_a_password_is_refused_in_kafkas_words(harness: Harness) -> None:
    configs = of_broker(harness.session)
    await configs.alter_broker("1", lambda _: {JAAS: LINE}, permit=anyone, validate_only=True)  # as Kafka

    with pytest.raises(InvalidConfig, match="Password encoder secret not configured"):
        await configs.alter_broker("1", lambda _: {JAAS: LINE}, permit=anyone)
    assert not await harness.session.exists(paths.config_entity("brokers", "1"))


async def test_all_brokers_together_have_no_password(harness: Harness) -> None:
    configs = of_broker(harness.session, secret="s1")

    with pytest.raises(InvalidConfig, match="broker id must be specified"):
        await configs.alter_broker("", lambda _: {JAAS: LINE}, permit=anyone)


async def test_a_password_of_another_secret_is_ignored_by_name_and_stays_where_it_is(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await of_broker(harness.session, secret="s1").alter_broker("1", lambda _: {JAAS: LINE}, permit=anyone)
    before = await stored_of_broker(harness.session)
    for other in (of_broker(harness.session, secret="s2"), of_broker(harness.session)):
        await other.load()
        assert overrides_of(other) == {}

        await other.alter_broker("1", lambda present: present | {"max.connections": "7"}, permit=anyone)
        assert await stored_of_broker(harness.session) == before | {"max.connections": "7"}
        await other.alter_broker("1", lambda present: {JAAS: present[JAAS]}, permit=anyone)

    named = [record.__dict__ for record in caplog.records if record.message == "dynamic password ignored"]
    assert {record["key"] for record in named} == {JAAS}
    assert any("this secret" in record["reason"] for record in named)
    assert any("needs password.encoder.secret" in record["reason"] for record in named)


async def test_passwords_of_the_old_secret_are_encrypted_again_at_the_start(harness: Harness) -> None:
    await of_broker(harness.session, secret="s1").alter_broker("1", lambda _: {JAAS: LINE}, permit=anyone)
    changed = of_broker(harness.session, secret="s2", old_secret="s1")

    await changed.brokers.renew_passwords()
    await changed.brokers.renew_passwords()  # there is nothing left to encrypt again
    await changed.load()

    assert overrides_of(changed) == {JAAS: LINE}
    new_alone = of_broker(harness.session, secret="s2")
    await new_alone.load()
    assert overrides_of(new_alone) == {JAAS: LINE}
    _, stat = await harness.session.get(paths.config_entity("brokers", "1"))
    assert stat.version == 1
