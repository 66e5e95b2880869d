from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import ottla.broker.config.broker
from ottla.broker.config import (
    TOPIC_SYNONYMS,
    BrokerConfig,
    ConfigError,
    LogConfig,
    find_key,
    keys_of,
    load_broker_config,
    topic_keys,
    values_of,
)
from ottla.broker.config.network import NetworkSettings
from ottla.client.config_definition import at_least, setting
from ottla.zookeeper.frozen_classes import frozen


def test_the_defaults_are_kafkas() -> None:
    config = BrokerConfig()

    assert config.message_max_bytes == 1_048_588
    assert config.retention_ms == 7 * 24 * 3_600_000
    assert config.log_retention_bytes == -1
    assert config.zookeeper_session_timeout_ms == 18_000
    assert config.replica_lag_time_max_ms == 30_000
    assert config.log_cleaner_dedupe_buffer_size == 128 * 1024 * 1024
    assert config.socket_request_max_bytes == 104_857_600
    assert config.offsets_topic_num_partitions == 50


NAMES = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT"}
ON_LOOPBACK = {"listeners": "PLAINTEXT://127.0.0.1:9092"}


def test_flags_win_over_the_environment_and_that_over_the_file() -> None:
    loaded = load_broker_config(
        {"num.partitions": "2", "log.segment.bytes": "1000", "broker.id": "1", **ON_LOOPBACK},
        {"OTTLA_NUM_PARTITIONS": "3", "OTTLA_LOG_SEGMENT_BYTES": "2000", "HOME": "/root"},
        {"num.partitions": "4"},
    )

    assert loaded.config.num_partitions == 4
    assert loaded.config.log_segment_bytes == 2000
    assert loaded.config.broker_id == 1
    assert loaded.warnings == ()


def test_unknown_and_ignored_keys_warn_by_name() -> None:
    loaded = load_broker_config({"no.such.key": "1", "replica.lag.max.messages": "4000", **ON_LOOPBACK})

    assert loaded.warnings == (
        "no.such.key is not a broker configuration",
        "replica.lag.max.messages has no effect: followers leave the in-sync replicas by time only "
        "(replica.lag.time.max.ms)",
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num.partitions": "many"}, "num.partitions must be a 32-bit integer, not 'many'"),
        ({"num.partitions": "0"}, "num.partitions must be at least 1, not '0'"),
        (
            {"log.cleanup.policy": "shred"},
            "log.cleanup.policy must be a list of delete, compact, not 'shred'",
        ),
        ({"auto.create.topics.enable": "yes"}, "auto.create.topics.enable must be true or false, not 'yes'"),
        ({"listeners": "nonsense"}, "listeners must look like PLAINTEXT://host:port, not 'nonsense'"),
        ({"listeners": "PLAINTEXT://:99999"}, "listeners must have ports from 0 to 65535, not 99999"),
        (
            {"security.inter.broker.protocol": "SSL"},
            "security.inter.broker.protocol must be PLAINTEXT, as `listeners` has it, not SSL",
        ),
        ({"inter.broker.listener.name": "INSIDE"}, "inter.broker.listener.name must be one of PLAINTEXT"),
        ({"listeners": "FOO://:9092"}, "listener.security.protocol.map must say which protocol"),
        (
            {"listeners": "PLAINTEXT://127.0.0.1:9092,PLAINTEXT://[::1]:9093"},
            "listeners must have different names, not",
        ),
        (
            {"listeners": "PLAINTEXT://127.0.0.1:9092,PLAINTEXT://10.0.0.1:9092"},
            "listeners must have different names, not",
        ),
        (
            {"listeners": "PLAINTEXT://127.0.0.1:9092,B://10.0.0.1:9092", **NAMES},
            "listeners must have different ports, or one IPv4 and one IPv6 address on a port, not",
        ),
        (
            {"listeners": "PLAINTEXT://127.0.0.1:9092,B://:9092", **NAMES},
            "listeners must have different ports, or one IPv4 and one IPv6 address on a port, not",
        ),
        (
            {"listeners": "PLAINTEXT://0.0.0.0:9092,B://[::]:9092,C://[::1]:9092", **NAMES},
            "listeners must have different ports, or one IPv4 and one IPv6 address on a port, not",
        ),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
            "security.inter.broker.protocol must not be set together with inter.broker.listener.name",
        ),
        (
            {"control.plane.listener.name": "CONTROLLER"},
            "control.plane.listener.name must be one of PLAINTEXT",
        ),
        (
            {"control.plane.listener.name": "PLAINTEXT"},
            "control.plane.listener.name must be another listener than that of brokers, PLAINTEXT",
        ),
        (
            {
                "listeners": "PLAINTEXT://:9092,B://:9093",
                "advertised.listeners": "PLAINTEXT://a:9092",
                "control.plane.listener.name": "b",
                **NAMES,
            },
            "advertised.listeners must name B, the listener of the controller, too",
        ),
        ({"broker.id": "1001"}, "broker.id must be at most reserved.broker.max.id"),
        (
            {"advertised.listeners": "SSL://h:1"},
            "advertised.listeners must name listeners of `listeners`, not SSL",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://:9093", "inter.broker.listener.name": "SASL_PLAINTEXT"},
            "listener.name.sasl_plaintext.gssapi.sasl.jaas.config must be set: GSSAPI takes its keytab",
        ),
        ({"ssl.engine.factory.class": "org.x.Y"}, "ssl.engine.factory.class must be empty: Java classes"),
        ({"ssl.keystore.type": "BKS"}, "ssl.keystore.type must be one of JKS, PKCS12, PEM, not 'BKS'"),
        (
            {"queued.max.request.bytes": "50000000"},
            "queued.max.request.bytes must be at least socket.request.max.bytes (104857600): ",
        ),
        ({"replica.fetch.wait.max.ms": "40000"}, "replica.fetch.wait.max.ms must be at most"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_broker_config(settings)

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_old_names_of_the_address_still_work() -> None:
    config = load_broker_config(
        {"host.name": "10.0.0.1", "port": "6667", "advertised.host.name": "example.org"}
    ).config

    assert [str(one) for one in config.parsed_listeners] == ["PLAINTEXT://10.0.0.1:6667"]
    assert [str(one) for one in config.parsed_advertised_listeners] == ["PLAINTEXT://example.org:9092"]


def test_without_a_file_a_broker_listens_on_this_machine_only() -> None:
    loaded = load_broker_config(None, {}, {"log.dirs": "/data"})

    assert [str(one) for one in loaded.config.parsed_listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert loaded.warnings == ()
    moved = load_broker_config(None, {"OTTLA_PORT": "9093"}, {"port": "9094"}).config
    assert [str(one) for one in moved.parsed_listeners] == ["PLAINTEXT://127.0.0.1:9094"]
    assert str(BrokerConfig().parsed_listeners[0]) == "PLAINTEXT://127.0.0.1:9092"


@pytest.mark.parametrize("file", [{}, {"port": "9092"}])
def test_a_file_without_listeners_means_every_interface_as_in_kafka(file: dict[str, str]) -> None:
    loaded = load_broker_config(file)

    assert [str(one) for one in loaded.config.parsed_listeners] == ["PLAINTEXT://:9092"]
    assert loaded.warnings == (
        "PLAINTEXT://:9092 can be reached from other machines without a login: everyone there may read, "
        "write and delete all topics (--listen 127.0.0.1:9092 keeps them out)",
    )


def test_all_listeners_that_others_reach_are_named_in_one_warning() -> None:
    listeners = "PLAINTEXT://[::1]:1,A://localhost:2,B://10.0.0.1:3,C://0.0.0.0:4"
    names = "PLAINTEXT:PLAINTEXT,A:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT"

    loaded = load_broker_config(None, {}, {"listeners": listeners, "listener.security.protocol.map": names})

    assert [one.partition(" can")[0] for one in loaded.warnings] == ["B://10.0.0.1:3, C://0.0.0.0:4"]


OF_BROKERS = {
    "zookeeper.connect": "elsewhere:2181",
    "listeners": "CLIENTS://127.0.0.1:9092,BROKERS://127.0.0.1:9093",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
    "inter.broker.networks": "10.0.0.0/24",
}
SHARED = {"zookeeper.connect": "elsewhere:2181", "inter.broker.networks": "10.0.0.0/24"}
ACLS = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer", "super.users": "User:ANONYMOUS"}


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        (
            OF_BROKERS,
            "inter.broker.networks lets every client in 10.0.0.0/24 act as a broker on "
            "CLIENTS://127.0.0.1:9092, too: take it out once all brokers use the listener BROKERS",
        ),
        (
            SHARED,
            "inter.broker.networks lets every client in 10.0.0.0/24 act as a broker: a listener for brokers "
            "alone (inter.broker.listener.name) or authorizer.class.name keeps clients out",
        ),
        (
            {**SHARED, **ACLS},
            "inter.broker.networks has no effect with authorizer.class.name, which decides",
        ),
        (
            {"inter.broker.networks": "10.0.0.0/24"},
            "inter.broker.networks has no effect without zookeeper.connect",
        ),
        ({**OF_BROKERS, "inter.broker.networks": ""}, None),
    ],
)
def test_networks_whose_clients_may_act_as_brokers_are_named_in_one_warning(
    settings: dict[str, str], warning: str | None
) -> None:
    loaded = load_broker_config(None, {}, settings)

    assert [text for text in loaded.warnings if "networks" in text] == ([warning] if warning else [])


def test_ipv6_addresses_are_understood() -> None:
    settings = {
        "listeners": "PLAINTEXT://[::1]:9092,INSIDE://[::]:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
    }

    config = load_broker_config(settings).config

    assert [(one.host, one.port) for one in config.parsed_listeners] == [("::1", 9092), ("::", 9093)]
    assert str(config.parsed_listeners[0]) == "PLAINTEXT://[::1]:9092"


@pytest.mark.parametrize(
    ("settings", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "1"}, 60_000),
        ({"log.retention.minutes": "1", "log.retention.ms": "5"}, 5),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finest_retention_wins(settings: dict[str, str], retention_ms: int) -> None:
    assert load_broker_config(settings).config.retention_ms == retention_ms


def test_a_topic_takes_the_brokers_settings_and_puts_its_own_over_them() -> None:
    broker = load_broker_config({"log.roll.hours": "2", "log.segment.bytes": "5000"}).config

    log = LogConfig.from_broker(broker, {"segment.bytes": "7000", "cleanup.policy": "compact,delete"})

    assert log.segment_bytes == 7000
    assert log.segment_ms == 2 * 3_600_000
    assert log.compact
    assert log.delete


def test_a_topic_setting_that_does_not_exist_is_refused() -> None:
    advice = r"segment\.byte is not a topic configuration; did you mean segment\.bytes\?"
    with pytest.raises(ConfigError, match=advice):
        LogConfig().with_overrides({"segment.byte": "1"})
    with pytest.raises(ConfigError, match=r"nonsense is not a topic configuration$"):
        LogConfig().with_overrides({"nonsense": "1"})


def test_every_topic_key_takes_its_default_from_the_broker_and_agrees_with_it() -> None:
    assert LogConfig.from_broker(BrokerConfig()) == LogConfig()


def test_every_synonym_is_a_broker_key() -> None:
    broker = keys_of(BrokerConfig)

    for topic_key, synonyms in TOPIC_SYNONYMS.items():
        assert topic_key in topic_keys()
        assert [name for name in synonyms if name not in broker] == []


def test_every_default_passes_its_own_check() -> None:
    for cls in (BrokerConfig, LogConfig):
        for key in keys_of(cls).values():
            if key.default is not None:
                assert key.parse(key.show(key.default)) == key.default, key.name


def test_a_key_that_no_module_reads_is_documented_as_without_effect() -> None:
    sources = Path(ottla.broker.config.broker.__file__).parents[1].rglob("*.py*")
    names = Counter(
        name
        for path in sources
        if path.suffix in (".py", ".pyx")
        for name in re.findall(r"\w+", path.read_text(encoding="utf-8"))
    )

    for key in keys_of(BrokerConfig).values():
        is_read = names[key.field] > 1
        says_so = key.doc.startswith(("No effect yet: ", "Accepted for compatibility", "Not supported"))
        assert is_read or says_so, f"{key.name} has no effect, and its documentation does not say so"
        assert not (is_read and key.doc.startswith("No effect yet")), f"{key.name} has an effect by now"
        assert key.doc != "Accepted for compatibility.", f"{key.name} has no effect, and does not say why"


def test_an_ipv4_and_an_ipv6_address_may_share_a_port_and_a_name() -> None:
    for listeners in (
        "PLAINTEXT://127.0.0.1:9092,B://[::1]:9092",
        "PLAINTEXT://127.0.0.1:9092,PLAINTEXT://[::1]:9092",
    ):
        assert len(load_broker_config({"listeners": listeners, **NAMES}).config.parsed_listeners) == 2


def test_advertised_listeners_may_share_an_address() -> None:
    loaded = load_broker_config(
        {
            "listeners": "PLAINTEXT://127.0.0.1:9092,B://127.0.0.1:9093",
            "advertised.listeners": "PLAINTEXT://proxy:443,B://proxy:443",
            **NAMES,
        }
    )

    assert [listener.port for listener in loaded.config.parsed_advertised_listeners] == [443, 443]


@frozen(kw_only=True)
class WithLogins(NetworkSettings):
    """Settings with two that may differ by listener, one of which is a secret."""

    sasl_enabled_mechanisms: tuple[str, ...] = setting(("GSSAPI",), update="per-broker")
    sasl_jaas_config: str | None = setting(None, is_secret=True, update="per-broker")
    sasl_server_max_receive_size: int = setting(524_288, "", at_least(0))


OVERRIDES = {
    "sasl.jaas.config": "of all",
    "listener.name.external_2.sasl.jaas.config": "of the listener",
    "listener.name.external_2.scram-sha-512.sasl.jaas.config": "of its SCRAM",
    "listener.name.external_2.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
}


def test_a_listener_has_the_settings_of_the_broker_but_those_of_its_own() -> None:
    config = WithLogins(**values_of(WithLogins, OVERRIDES))

    assert config.of_listener("INTERNAL").sasl_jaas_config == "of all"
    assert config.of_listener("INTERNAL").sasl_enabled_mechanisms == ("GSSAPI",)
    assert config.of_listener("EXTERNAL_2").sasl_enabled_mechanisms == ("PLAIN", "SCRAM-SHA-512")
    assert config.of_listener("EXTERNAL_2").sasl_jaas_config == "of the listener"


def test_a_mechanism_has_the_settings_of_its_listener_but_those_of_its_own() -> None:
    config = WithLogins(**values_of(WithLogins, OVERRIDES))

    assert config.of_listener("EXTERNAL_2", "SCRAM-SHA-512").sasl_jaas_config == "of its SCRAM"
    assert config.of_listener("EXTERNAL_2", "PLAIN").sasl_jaas_config == "of the listener"
    assert config.of_listener("INTERNAL", "SCRAM-SHA-512").sasl_jaas_config == "of all"
    assert config.of_listener("EXTERNAL_2", "SCRAM-SHA-512").sasl_enabled_mechanisms == (
        "PLAIN",
        "SCRAM-SHA-512",
    )


def test_no_secret_of_a_listener_stands_in_the_text_of_the_settings() -> None:
    config = WithLogins(**values_of(WithLogins, OVERRIDES))

    assert "of the listener" not in repr(config)
    assert "of its SCRAM" not in repr(config)
    assert "of all" not in repr(config)


@pytest.mark.parametrize(
    ("name", "update"),
    [
        ("sasl.jaas.config", "per-broker"),
        ("listener.name.a.sasl.jaas.config", "per-broker"),
        ("listener.name.a.plain.sasl.jaas.config", "per-broker"),
        ("listener.name.a.sasl.server.max.receive.size", "per-broker"),
        ("listener.name.A.sasl.jaas.config", None),
        ("listener.name.a.socket.listen.backlog.size", None),
        ("listener.name.a.plain.plain.sasl.jaas.config", None),
        ("listener.name.sasl.jaas.config", None),
    ],
)
def test_only_kafkas_keys_of_listeners_are_found(name: str, update: str | None) -> None:
    found = find_key(WithLogins, name)

    assert (found and found.update) == update


def test_a_wrong_value_of_a_listener_is_named_by_its_whole_key() -> None:
    name = "listener.name.a.sasl.server.max.receive.size"

    with pytest.raises(ConfigError, match=rf"^{name} must be a 32-bit integer, not 'many'$"):
        values_of(WithLogins, {name: "many"})
