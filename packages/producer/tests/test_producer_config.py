from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from ottla.client.config import Address, ClientConfig, parse_bootstrap_servers
from ottla.client.security import SecurityConfig
from ottla.client.settings import SettingError, aliases, config_from, configure, settings_of
from ottla.producer import Producer, ProducerInterceptor
from ottla.producer.config import ProducerConfig, ProducerSettings
from ottla.producer.partitioner import RoundRobin


def test_every_field_can_be_given_as_a_keyword_and_every_keyword_is_a_field() -> None:
    keywords = set(ProducerSettings.__annotations__)

    assert keywords == {*settings_of(ProducerConfig), "client", "security"}


def test_every_alias_stands_for_a_field_or_says_what_became_of_it() -> None:
    for name, alias in aliases(ProducerConfig).items():
        assert name not in settings_of(ProducerConfig)
        assert alias.field in settings_of(ProducerConfig) or alias.expand or alias.advice, name


def test_flat_keywords_find_their_place() -> None:
    config = ProducerConfig.of(
        linger_ms=1.5, client_id="shop", security_protocol="SSL", acks="all", bootstrap_servers=["a:1", "b:2"]
    )

    assert (config.linger_ms, config.acks, config.required_acks) == (1.5, -1, -1)
    assert config.client.client_id == "shop"
    assert config.client.bootstrap_servers == ["a:1", "b:2"]
    assert config.client.security.uses_tls


def test_a_part_that_is_given_whole_is_kept_where_no_keyword_changes_it() -> None:
    client = ClientConfig(client_id="shop", request_timeout_ms=5_000)

    security = SecurityConfig(ssl_check_hostname=False)
    config = ProducerConfig.of(client=client, retry_backoff_ms=7, security=security)

    assert (config.client.client_id, config.client.request_timeout_ms) == ("shop", 5_000)
    assert config.client.retry_backoff_ms == 7
    assert not config.client.security.ssl_check_hostname


def test_a_config_and_single_settings_do_not_mix_but_brokers_may_be_named_beside_it() -> None:
    config = ProducerConfig(linger_ms=3)

    assert config_from(ProducerConfig, config, {"bootstrap_servers": None}) is config
    assert config_from(ProducerConfig, config, {"bootstrap_servers": "x:1"}).client.bootstrap_servers == "x:1"
    with pytest.raises(TypeError, match="not both"):
        config_from(ProducerConfig, config, {"acks": 1})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"linger": 3}, "there is no setting 'linger'"),
        ({"linger_mss": 3}, "there is no setting 'linger_mss'; did you mean 'linger_ms'?"),
        ({"linger_ms": "5"}, "linger_ms must be a number, not '5'"),
        ({"batch_size": 1.5}, "batch_size must be a whole number, not 1.5"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"metadata_max_idle_ms": 0}, "metadata_max_idle_ms must be at least 1, not 0"),
        ({"max_block_ms": -2}, "max_block_ms must be at least -1, not -2"),
        ({"acks": 2}, "acks must be 0 or 1 or -1 or 'all', not 2"),
        ({"acks": True}, "acks must be 0 or 1 or -1 or 'all', not True"),
        ({"compression_type": "zip"}, "compression_type must be 'none' or 'gzip' or .*, not 'zip'"),
        ({"enable_idempotence": True, "acks": 1}, "enable_idempotence needs acks=-1"),
        ({"enable_idempotence": "yes"}, "enable_idempotence must be True or False or None, not 'yes'"),
        ({"transactional_id": ""}, "must not be empty"),
        ({"transactional_id": "ü" * 20_000}, "^transactional_id has 40000 bytes, at most 32767$"),
        ({"transactional_id": "a", "acks": 1}, "transactional_id needs acks=-1"),
        ({"value_serializer": "jsn"}, "'jsn' is not known; give one of bytes"),
        ({"partitioner": "modulo"}, "'modulo' is not known; give one of default, murmur2"),
        ({"value_serializer": 5}, r"a serializer is a callable, .* or a name such as 'json', not 5"),
        ({"bootstrap_servers": 9092}, "bootstrap_servers must be host:port or a list of such, not 9092"),
        ({"interceptors": [3]}, "an interceptor has methods such as on_send or on_consume; 3 has none"),
        ({"interceptors": [ProducerInterceptor]}, r"an object, not a class: give ProducerInterceptor\(\)"),
        ({"partitioner": 7}, "7 is neither callable"),
        ({"security_protocol": "TLS"}, "security_protocol must be 'PLAINTEXT' or"),
        (
            {"sasl_mechanisms": "PLAIN", "sasl_mechanism": "PLAIN"},
            "sets sasl_mechanism, which is set already",
        ),
        ({"request_required_acks": 3}, "request_required_acks cannot be 3: since Kafka 0.8.2"),
    ],
)
def test_an_invalid_setting_is_rejected_in_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        configure(ProducerConfig, settings)

    assert "\n" not in str(refused.value)


PRODUCER_PROPERTIES = """
# Kafka 0.8
metadata.broker.list=one:9092,two:9092
request.required.acks = -1
compression.codec: 2
compressed.topics=orders, clicks
message.send.max.retries=10
queue.buffering.max.ms=5000
queue.enqueue.timeout.ms=-1
batch.num.messages=200
producer.type=async
serializer.class=kafka.serializer.StringEncoder
partitioner.class=kafka.producer.DefaultPartitioner
client.id=\\
  old-shop
"""


def test_a_properties_file_of_kafka_08_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "producer.properties"
    file.write_text(PRODUCER_PROPERTIES)

    with caplog.at_level(logging.WARNING):
        config = ProducerConfig.from_properties(file, client_id="shop")

    assert config == ProducerConfig(
        acks=-1,
        compression_type="snappy",
        compressed_topics=("orders", "clicks"),
        retries=10,
        linger_ms=5000,
        max_block_ms=-1,
        batch_num_messages=200,
        value_serializer="kafka.serializer.StringEncoder",
        partitioner="random_for_ten_minutes",
        client=ClientConfig(bootstrap_servers="one:9092,two:9092", client_id="shop"),
    )
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["producer.type"]


def test_a_properties_file_of_java_is_read(tmp_path: Path) -> None:
    authorities = tmp_path / "ca.pem"
    authorities.touch()
    config = ProducerConfig.from_properties(
        {
            "bootstrap.servers": "one:9092",
            "acks": "all",
            "enable.idempotence": "true",
            "linger.ms": "20",
            "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": 'org.apache.ScramLoginModule required username="josef" password="k\\"1;";',
            "ssl.endpoint.identification.algorithm": "",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authorities),
        }
    )

    security = config.client.security
    assert (config.acks, config.enable_idempotence, config.linger_ms) == (-1, True, 20)
    assert (security.sasl_username, security.sasl_mechanism) == ("josef", "SCRAM-SHA-512")
    assert (security.ssl_cafile, security.ssl_check_hostname) == (str(authorities), False)


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"linger.mss": "1"}, "there is no setting 'linger.mss'; did you mean 'linger.ms'?"),
        ({"batch.size": "many"}, "batch.size must be a whole number, not 'many'"),
        ({"enable.idempotence": "yes"}, "enable.idempotence must be true or false, not 'yes'"),
        ({"batch.size": "0"}, "^batch.size must be at least 1, not 0"),
        ({"queue.time": -1}, "^queue.time must be at least 0, not -1"),
        ({"request.required.acks": "2"}, "request.required.acks cannot be '2': .* give 0, 1, -1 or 'all'"),
        ({"sasl.kerberos.service.name": "kafka"}, "sasl_kerberos_service_name has no effect"),
        ({"acks": "some"}, "acks must be 0 or 1 or -1 or 'all', not 'some'"),
        ({"ssl.keystore.type": "JKS"}, "ssl.keystore.type cannot be 'JKS': give PEM or PKCS12"),
        ({"partitioner.class": "com.example.Mine"}, "'com.example.Mine' is not known"),
    ],
)
def test_a_wrong_line_of_a_file_is_named(properties: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ProducerConfig.from_properties(properties)


@pytest.mark.parametrize(
    ("name", "value", "field", "becomes"),
    [
        ("max_batch_size", 1_000, "batch_size", 1_000),
        ("compression_codec", "lz4", "compression_type", "lz4"),
        ("queue_time", 50, "linger_ms", 50),
        ("message_timeout_ms", 5, "delivery_timeout_ms", 5),
        ("queue_size", 1_000, "queue_buffering_max_messages", 1_000),
        ("queue_buffering_max_kbytes", 64, "buffer_memory", 65_536),
        ("interceptor_classes", "ottla.producer:ProducerInterceptor", None, None),
    ],
)
def test_names_of_other_clients_are_known(name: str, value: Any, field: str | None, becomes: Any) -> None:
    config = configure(ProducerConfig, {name: value})

    if field is not None:
        assert getattr(config, field) == becomes
    else:
        assert len(config.interceptors) == 1


def test_only_the_topics_that_are_named_are_compressed() -> None:
    config = ProducerConfig(compression_type="lz4", compressed_topics="a,b")

    assert config.codec_for("a").name == "LZ4"
    assert config.codec_for("c").name == "NONE"
    assert ProducerConfig(compression_type="lz4").codec_for("c").name == "LZ4"


def test_a_password_is_not_shown() -> None:
    config = ProducerConfig.of(
        security_protocol="SASL_SSL", sasl_username="josef", sasl_password="secret", partitioner=RoundRobin()
    )

    assert "secret" not in repr(config)


def test_metadata_max_idle_ms_has_the_name_of_java_too() -> None:
    assert ProducerConfig.from_properties({"metadata.max.idle.ms": "7000"}).metadata_max_idle_ms == 7_000
    assert ProducerConfig().metadata_max_idle_ms == 300_000


def test_none_stands_for_the_default_where_other_clients_have_it() -> None:
    config = ProducerConfig.of(compression_type=None, client_id=None)

    assert (config.compression_type, config.client.client_id) == ("none", "ottla")


def test_an_object_that_is_not_a_producer_config_is_rejected_with_advice() -> None:
    mapping: Any = {"bootstrap.servers": "127.0.0.1:9092"}
    other: Any = ClientConfig()

    for refused in ({"bootstrap_servers": mapping}, {"config": mapping}):
        config = refused.pop("config", None)
        with pytest.raises(TypeError, match=r"give config=ProducerConfig.from_properties\({...}\)"):
            config_from(ProducerConfig, config, refused)
    with pytest.raises(TypeError, match="config must be a ProducerConfig, not ClientConfig"):
        config_from(ProducerConfig, other, {})


def test_a_keyword_that_is_not_a_setting_is_rejected() -> None:
    wrong: Any = {"linger": 3, "linger_mss": 3}
    words = ["there is no setting 'linger'", "did you mean 'linger_ms'?"]

    for (name, value), expected in zip(wrong.items(), words, strict=True):
        with pytest.raises(SettingError) as refused:
            ProducerConfig(**{name: value})
        assert expected in str(refused.value)


def test_brokers_may_be_named_beside_a_config_and_nothing_else_is_taken_for_one() -> None:
    other: Any = ClientConfig()

    assert Producer("h:1", ProducerConfig(linger_ms=3)).config.client.bootstrap_servers == "h:1"
    with pytest.raises(TypeError, match="config must be a ProducerConfig, not ClientConfig"):
        Producer("h:1", other)


@pytest.mark.parametrize(
    ("given", "meant_ms", "at_each_send"),
    [("-1", 10 * 365 * 24 * 3_600_000, False), ("0", 300_000, True), ("600000", 600_000, False)],
)
def test_the_refresh_interval_of_kafka_08_keeps_its_special_values(
    given: str, meant_ms: int, at_each_send: bool
) -> None:
    config = ProducerConfig.from_properties({"topic.metadata.refresh.interval.ms": given})
    assert config.client.metadata_max_age_ms == meant_ms
    assert config.metadata_refresh_at_each_send is at_each_send


def test_a_refresh_interval_below_minus_one_is_refused() -> None:
    with pytest.raises(SettingError, match=r"topic\.metadata\.refresh\.interval\.ms cannot be '-2'.*-1"):
        ProducerConfig.from_properties({"topic.metadata.refresh.interval.ms": "-2"})


def test_the_brokers_of_kafka_07_may_carry_their_ids() -> None:
    config = ProducerConfig.from_properties({"broker.list": "0:one:9092, 1:two:9093,three"})
    assert parse_bootstrap_servers(config.client.bootstrap_servers) == [
        Address("one", 9092),
        Address("two", 9093),
        Address("three", 9092),
    ]


def test_a_producer_type_that_never_was_is_refused() -> None:
    for known in ("sync", "async"):
        ProducerConfig.from_properties({"producer.type": known})
    with pytest.raises(SettingError, match=r"producer\.type cannot be 'asinc': give sync or async"):
        ProducerConfig.from_properties({"producer.type": "asinc"})
