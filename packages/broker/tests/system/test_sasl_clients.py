"""Logins of unmodified clients, and of our own, in every mechanism that they have."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.cluster.scram_credentials import alter_credentials
from ottla.broker.config import ConfigError, load_broker_config
from ottla.broker.config.logins import LOGIN_MODULES
from ottla.broker.metrics.registry import Gauge
from ottla.broker.security.sasl.scram import SCRAM_HASHES, ScramCredential
from ottla.broker.security.sasl.testing import (
    BOUND_S,
    MECHANISMS,
    PASSWORD,
    PLAIN_LINE,
    SETTINGS,
    Wire,
    logs_in,
)
from ottla.broker.security.tls.testing import Authority
from ottla.broker.testing import BrokerThread, _coordinator_for_tests
from ottla.protocol.errors import ErrorCode
from ottla.zookeeper.testing import Background


@pytest.fixture
def broker(broker_with_logins: BrokerThread) -> BrokerThread:
    return broker_with_logins


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in(broker: BrokerThread, mechanism: str) -> None:
    from kafka import KafkaProducer

    made = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password=PASSWORD,
    )
    with closing(made) as producer:
        assert producer.send("kafka-python", b"v").get(BOUND_S).topic == "kafka-python"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("password", [PASSWORD, "wrong"])
async def test_aiokafka_logs_in(broker: BrokerThread, mechanism: str, password: str) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password=password,
    )
    try:
        if password == PASSWORD:
            await producer.start()
            assert (await producer.send_and_wait("aiokafka", b"v")).topic == "aiokafka"
        else:
            with pytest.raises(KafkaError):
                await producer.start()
    finally:
        await producer.stop()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in(broker: BrokerThread, mechanism: str) -> None:
    from confluent_kafka import Producer

    delivered: list[Any] = []
    producer = Producer(librdkafka(broker, mechanism))
    producer.produce("librdkafka", b"v", on_delivery=lambda error, message: delivered.append(error))

    assert producer.flush(BOUND_S) == 0
    assert delivered == [None]


def librdkafka(broker: BrokerThread, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_is_told_that_the_password_is_wrong(broker: BrokerThread, mechanism: str) -> None:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

    errors: list[Any] = []
    client = AdminClient(librdkafka(broker, mechanism, "wrong") | {"error_cb": errors.append})
    for _ in range(int(BOUND_S * 10)):
        client.poll(0.1)
        if any(error.code() == KafkaError._AUTHENTICATION for error in errors):
            return
    raise AssertionError(errors)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_our_own_client_logs_in(broker: BrokerThread, mechanism: str) -> None:
    from ottla.client.errors import AuthenticationFailed
    from ottla.producer import Producer

    def producer_of(password: str) -> Producer:
        return Producer(
            broker.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_username="alice",
            sasl_password=password,
        )

    async with asyncio.timeout(BOUND_S):
        async with producer_of(PASSWORD) as producer:
            assert (await (await producer.send("ottla", b"v"))).topic == "ottla"
        with pytest.raises(AuthenticationFailed, match=r"refused the login|SCRAM"):
            async with producer_of("wrong") as producer:
                await producer.send("ottla", b"v")


# ---- over TLS


async def test_clients_log_in_over_tls(tmp_path: Path) -> None:
    from aiokafka import AIOKafkaProducer
    from confluent_kafka import Producer

    authority = Authority()
    ca_file = authority.write(tmp_path / "ca.pem")
    settings = {
        **{key.replace("sasl_plaintext", "sasl_ssl"): value for key, value in SETTINGS.items()},
        "listeners": "SASL_SSL://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": authority.sign("broker").write(tmp_path / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca_file),
    }
    with BrokerThread(tmp_path / "data", settings) as broker:
        delivered: list[Any] = []
        how = {
            **librdkafka(broker, "PLAIN"),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(ca_file),
        }
        librdkafkas = Producer(how)
        librdkafkas.produce("tls", b"v", on_delivery=lambda error, _: delivered.append(error))
        assert librdkafkas.flush(BOUND_S) == 0
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SASL_SSL",
            ssl_context=ssl.create_default_context(cafile=ca_file),
            sasl_mechanism="PLAIN",
            sasl_plain_username="alice",
            sasl_plain_password=PASSWORD,
        )
        async with asyncio.timeout(BOUND_S), producer:
            assert (await producer.send_and_wait("tls", b"v")).topic == "tls"

    assert delivered == [None]


# ---- brokers at each other


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_brokers_log_in_at_each_other(tmp_path: Path, mechanism: str) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    module = LOGIN_MODULES[mechanism]
    line = f'{module} required username="broker" password="{PASSWORD}" user_broker="{PASSWORD}";'
    async with asyncio.timeout(BOUND_S):
        with Background(_coordinator_for_tests()) as coordinator, ExitStack() as stack:
            settings = {
                "zookeeper.connect": coordinator.value.connect_string,
                "listeners": "PLAINTEXT://127.0.0.1:0,BROKERS://127.0.0.1:0",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:SASL_PLAINTEXT",
                "inter.broker.listener.name": "BROKERS",
                "listener.name.brokers.sasl.enabled.mechanisms": mechanism,
                "sasl.mechanism.inter.broker.protocol": mechanism,
                f"listener.name.brokers.{mechanism.lower()}.sasl.jaas.config": line,
            }
            first = BrokerThread(tmp_path / "1", settings | {"broker.id": "1"})
            await asyncio.to_thread(stack.enter_context, first)
            if mechanism != "PLAIN":
                await set_password_in_zookeeper(first, mechanism)
            second = BrokerThread(tmp_path / "2", settings | {"broker.id": "2"})
            await asyncio.to_thread(stack.enter_context, second)
            servers = [first.bootstrap_servers, second.bootstrap_servers]
            admin = AIOKafkaAdminClient(bootstrap_servers=servers)
            await admin.start()
            topic = NewTopic("t", 4, 2, topic_configs={"min.insync.replicas": "2"})
            await admin.create_topics([topic], timeout_ms=30_000)
            await admin.close()
            async with AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer:
                for partition in range(4):
                    await producer.send_and_wait("t", b"v", partition=partition)

            for running in (first, second):
                assert running.broker is not None
                logins = running.broker.metrics.get(
                    "kafka.server",
                    "socket-server-metrics",
                    "successful-authentication-total",
                    listener="BROKERS",
                )
                assert isinstance(logins, Gauge)
                assert logins.value > 0


async def set_password_in_zookeeper(running: BrokerThread, mechanism: str) -> None:
    assert running.broker is not None
    credential = ScramCredential.from_password(SCRAM_HASHES[mechanism], PASSWORD, b"salt")
    entities = running.broker.services.configs.client_entities
    await asyncio.to_thread(running.call, alter_credentials(entities, "broker", {mechanism: credential}, ()))


def test_a_changed_password_holds_for_later_logins_on_all_brokers_and_open_connections_go_on(
    tmp_path: Path,
) -> None:
    prefix = "listener.name.sasl_plaintext"
    lifetimes = {
        f"{prefix}.scram-sha-512.connections.max.reauth.ms": "3600000",
        f"{prefix}.scram-sha-256.connections.max.reauth.ms": "3000",
    }
    with Background(_coordinator_for_tests()) as coordinator, ExitStack() as stack:
        common = SETTINGS | lifetimes | {"zookeeper.connect": coordinator.value.connect_string}
        brokers = [
            stack.enter_context(BrokerThread(tmp_path / node, common | {"broker.id": node}))
            for node in ("1", "2", "3")
        ]
        admin = stack.enter_context(Wire(brokers[0].port))  # the first broker of a cluster is its controller
        admin.log_in()
        admin.set_password("carol", "first")
        for broker in brokers:
            until(lambda port=broker.port: logs_in(port, "carol", "first"))  # type: ignore[misc]
        lasting, ending, again = (
            [stack.enter_context(Wire(broker.port)) for broker in brokers] for _ in range(3)
        )
        for wire in (*lasting, *again):
            assert wire.log_in_by_scram("carol", "first") == 0
        for wire in ending:
            assert wire.log_in_by_scram("carol", "first", "SCRAM-SHA-256") == 0

        began_s = time.monotonic()
        admin.set_password("carol", "second")
        for broker in brokers:
            until(lambda port=broker.port: not logs_in(port, "carol", "first"))  # type: ignore[misc]
        print(f"a changed password holds on {len(brokers)} brokers after {time.monotonic() - began_s:.3f} s")

        for broker in brokers:
            assert not logs_in(broker.port, "carol", "first")
            assert logs_in(broker.port, "carol", "second")
        assert all(wire.serves() for wire in lasting)
        for wire in again:
            assert wire.log_in_by_scram("carol", "first") == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert wire.is_closed()
        assert [wire.log_in_by_scram("carol", "second") for wire in lasting] == [0, 0, 0]
        assert all(wire.serves() for wire in lasting)
        for wire in ending:
            until(lambda wire=wire: is_ended(wire))  # type: ignore[misc]


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def is_ended(wire: Wire) -> bool:
    """Whether the login of a connection is over: the broker closes it at the next request."""
    try:
        return not wire.serves()
    except (EOFError, ConnectionError):
        return True


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (
            {"sasl.enabled.mechanisms": "PLAIN,CRAM-MD5"},
            "must be a list of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI, not 'PLAIN, CRAM",
        ),
        (
            {"sasl.mechanism.inter.broker.protocol": "GSSAPI"},
            "sasl.mechanism.inter.broker.protocol must be one of sasl.enabled.mechanisms",
        ),
        (
            {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"},
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config must have a username and a password",
        ),
        (
            {"listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN_LINE[:-1]},
            "plain.sasl.jaas.config cannot be read: JAAS config entry not terminated by semi-colon",
        ),
        (
            {"listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.example.Login required;"},
            "must name org.apache.kafka.common.security.plain.PlainLoginModule: other Java classes",
        ),
        (
            {"listener.name.sasl_plaintext.plain.sasl.jaas.config": ""},
            "plain.sasl.jaas.config must be set: PLAIN takes its users from it",
        ),
    ],
)
def test_a_wrong_setting_of_logins_refuses_the_start_in_one_line(
    changed: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load_broker_config({**SETTINGS, **changed})

    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)
    assert PASSWORD not in str(raised.value)
