"""Each option of Spark's own Kafka connector is accepted, ignored with a reason, or refused with one line."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from ottla.consumer.config import ConsumerConfig
from ottla.pipeline.connector_options import CONSUMER, OPTIONS, PRODUCER
from ottla.pipeline.errors import OptionError
from ottla.pipeline.options import options_of, treatment
from ottla.pipeline.sink.config import REFUSED as REFUSED_BY_SINK
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.source.config import REFUSED as REFUSED_BY_SOURCE
from ottla.pipeline.source.config import SourceConfig
from ottla.producer.config import ProducerConfig

BROKERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
NAMES = sorted(CONSUMER | PRODUCER)
VALUES = {
    "bootstrap.servers": "there:9092",
    "compression.type": "zstd",
    "compression.gzip.level": "3",
    "compression.lz4.level": "3",
    "compression.zstd.level": "3",
    "enable.idempotence": "true",
    "acks": "all",
    "group.protocol": "classic",
    "isolation.level": "read_committed",
    "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
    "sasl.client.callback.handler.class": (
        "org.apache.kafka.common.security.authenticator.SaslClientCallbackHandler"
    ),
    "sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";'
    ),
    "sasl.login.callback.handler.class": (
        "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
    ),
    "sasl.login.class": "org.apache.kafka.common.security.authenticator.DefaultLogin",
    "sasl.mechanism": "PLAIN",
    "security.protocol": "PLAINTEXT",
    "ssl.enabled.protocols": "TLSv1.3,TLSv1.2",
    "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384",
    "ssl.endpoint.identification.algorithm": "https",
    "ssl.keystore.type": "PKCS12",
    "ssl.truststore.type": "PEM",
}
"""Values of the settings that do not take a number."""
VALUES |= {
    "heartbeat.interval.ms": "500",
    "max.request.size": "1000000",
    "session.timeout.ms": "10000",
    "sasl.login.refresh.min.period.seconds": "60",
    "sasl.login.refresh.buffer.seconds": "60",
    "sasl.login.refresh.window.factor": "0.8",
    "sasl.login.refresh.window.jitter": "0.05",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
}
LOGIN = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN"}
LOGIN |= {"kafka.sasl.jaas.config": VALUES["sasl.jaas.config"]}
LABELS = ("group.id", "group.instance.id", "group.protocol", "group.remote.assignor")
"""Settings that are ignored without a word, for they are about a group, and none is joined."""
NEEDED: dict[str, dict[str, str]] = {
    "sasl.": LOGIN,
    "ssl.": {"kafka.security.protocol": "SSL"},
    "ssl.keystore.key": {"kafka.ssl.keystore.certificate.chain": "x", "kafka.security.protocol": "SSL"},
    "ssl.keystore.certificate.chain": {"kafka.ssl.keystore.key": "x", "kafka.security.protocol": "SSL"},
    "ssl.key.password": {"kafka.ssl.keystore.location": "FILE", "kafka.security.protocol": "SSL"},
    "ssl.keystore.password": {"kafka.ssl.keystore.location": "FILE", "kafka.security.protocol": "SSL"},
    "ssl.truststore.password": {"kafka.ssl.truststore.location": "FILE", "kafka.security.protocol": "SSL"},
    "sasl.oauthbearer.token.endpoint.url": {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'clientId="a" clientSecret="b";'
        ),
    },
    "sasl.kerberos.service.name": {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "GSSAPI",
    },
}
"""Settings without which others are mistakes, by the name of the other or its first part."""
NUMBERS = ("_ms", "_bytes", "_size", "_memory", "_records", "retries", "_connection", "_seconds", "_factor")
SIDES: dict[str, tuple[type[Any], dict[str, str | None]]] = {
    "source": (ConsumerConfig, REFUSED_BY_SOURCE),
    "sink": (ProducerConfig, dict(REFUSED_BY_SINK)),
}


def parse(side: str, options: dict[str, str]) -> object:
    """Parse options as a data source does, with all checks of its client."""
    given = {**BROKERS, **options}
    if side == "sink":
        return SinkConfig.of({"topic": "orders", **given})
    config = SourceConfig.of({"subscribe": "orders", **given}, streaming=True)
    config.consumer_config()
    return config


def needed_by(name: str) -> dict[str, str]:
    return NEEDED.get(name) or NEEDED.get(f"{name.partition('.')[0]}.", {})


def value_of(name: str, file: Path) -> str:
    if name.endswith(".location"):
        return str(file)
    return VALUES.get(name, "1000" if name.replace(".", "_").endswith(NUMBERS) else "true")


@pytest.mark.parametrize("side", list(SIDES))
def test_no_setting_of_kafkas_clients_is_unknown(side: str) -> None:
    config, refused = SIDES[side]

    unknown = [name for name in NAMES if treatment(name, config, refused).why == "there is no such setting"]

    assert unknown == []


@pytest.mark.parametrize("side", list(SIDES))
@pytest.mark.parametrize("name", NAMES)
def test_a_setting_is_treated_as_the_table_has_it(
    side: str, name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    kind, why = treatment(name, *SIDES[side])
    file = tmp_path / "store.pem"
    file.write_text("-----BEGIN")
    options = {key: value.replace("FILE", str(file)) for key, value in needed_by(name).items()}
    options[f"kafka.{name}"] = value_of(name, file)
    if options.get("kafka.sasl.mechanism") == "GSSAPI":
        pytest.importorskip("gssapi")  # a client refuses the mechanism without it

    with caplog.at_level(logging.WARNING):
        error = None
        try:
            parse(side, options)
        except OptionError as refused:
            error = str(refused)

    if kind == "refused":
        assert error == f"option 'kafka.{name}' cannot be set: {why}"
        return
    if kind == "ignored":
        assert error is None
        assert why
        assert name in LABELS or why.replace("it is ", "") in caplog.text
        return
    assert error is None


def test_each_option_of_the_connector_is_known_to_the_source_and_the_sink() -> None:
    source = {option.name for option in options_of(SourceConfig)}
    sink = {option.name for option in options_of(SinkConfig)}

    for name in OPTIONS:
        assert name in source or name.lower() in SourceConfig.without_effect, name
        assert name in sink or name.lower() in SinkConfig.without_effect, name


def test_a_store_of_the_type_jks_is_refused_with_the_line_that_converts_it() -> None:
    with pytest.raises(OptionError, match=r"keytool -importkeystore -deststoretype PKCS12"):
        parse("source", {"kafka.ssl.truststore.type": "JKS", "kafka.security.protocol": "SSL"})


def test_levels_of_codecs_are_those_of_the_codec_in_use() -> None:
    found = SinkConfig.of(
        {
            **BROKERS,
            "topic": "orders",
            "kafka.compression.type": "zstd",
            "kafka.compression.zstd.level": "7",
            "kafka.compression.gzip.level": "1",
        }
    )

    assert found.producer_config().compression_level == 7
