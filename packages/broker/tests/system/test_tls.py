"""Brokers over TLS: real clients with and without certificates, other brokers, and certificates exchanged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from ottla.admin import Admin
from ottla.admin.configs import BROKER
from ottla.broker.config import load_broker_config
from ottla.broker.security.tls.testing import DAY, Authority
from ottla.broker.server.broker import Broker
from ottla.broker.testing import BrokerFailed, BrokerThread
from ottla.client.config import ClientConfig
from ottla.client.errors import ClientError
from ottla.client.security import SecurityConfig
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.errors import InvalidConfig
from ottla.zookeeper.embedded import EmbeddedCoordinator

BOUND_S = 60
AUTHORITY = Authority()
ALICE = AUTHORITY.sign("alice")


def key_settings(directory: Path, name: str = "broker", **more: str) -> dict[str, str]:
    """Settings of a broker's stores, whose files stand in a directory."""
    directory.mkdir(exist_ok=True, parents=True)
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": AUTHORITY.sign(name).write(directory / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": AUTHORITY.write(directory / "authority.pem"),
        **{key.replace("_", "."): value for key, value in more.items()},
    }


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """The files of a client with a certificate."""
    alice = tmp_path / "alice.pem"
    return {"authority": AUTHORITY.write(tmp_path / "ca.pem"), "alice": ALICE.write(alice)}


CLIENT_AUTH = ["none", "required"]


@pytest.mark.parametrize("auth", CLIENT_AUTH)
def test_unmodified_clients_write_and_read_over_tls(
    auth: str, tmp_path: Path, files: Mapping[str, str]
) -> None:
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "security.inter.broker.protocol": "SSL",
        **key_settings(tmp_path / "keys", ssl_client_auth=auth),
    }
    with BrokerThread(tmp_path / "data", settings) as broker:
        servers = broker.bootstrap_servers
        with_certificate = auth == "required"
        context = ssl.create_default_context(cafile=files["authority"])
        if with_certificate:
            context.load_cert_chain(files["alice"])
        asyncio.run(round_trip_aiokafka(servers, context))
        asyncio.run(round_trip_ottla(servers, files, with_certificate=with_certificate))
        round_trip_confluent(servers, files, with_certificate=with_certificate)
        round_trip_kafka_python(servers, context)


async def round_trip_aiokafka(servers: str, context: ssl.SSLContext) -> None:
    secure = {"bootstrap_servers": servers, "security_protocol": "SSL", "ssl_context": context}
    async with asyncio.timeout(BOUND_S), aiokafka.AIOKafkaProducer(**secure) as producer:
        await producer.send_and_wait("aiokafka", b"x" * 300_000)
    consumer = aiokafka.AIOKafkaConsumer("aiokafka", auto_offset_reset="earliest", group_id="g", **secure)
    async with asyncio.timeout(BOUND_S), consumer:
        assert len((await consumer.getone()).value) == 300_000


async def round_trip_ottla(servers: str, files: Mapping[str, str], *, with_certificate: bool) -> None:
    secure: Any = {"security_protocol": "SSL", "ssl_cafile": files["authority"]}
    if with_certificate:
        secure["ssl_certfile"] = files["alice"]
    async with asyncio.timeout(BOUND_S):
        async with Producer(servers, **secure) as producer:
            await producer.send_and_wait("ottla", b"x" * 300_000)
        reading = Consumer(
            "ottla", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest", **secure
        )
        async with reading as consumer:
            record = await anext(aiter(consumer))
            assert len(record.value or b"") == 300_000


def round_trip_confluent(servers: str, files: Mapping[str, str], *, with_certificate: bool) -> None:
    secure = {
        "bootstrap.servers": servers,
        "security.protocol": "SSL",
        "ssl.ca.location": files["authority"],
        "ssl.endpoint.identification.algorithm": "https",
    }
    if with_certificate:
        secure |= {"ssl.certificate.location": files["alice"], "ssl.key.location": files["alice"]}
    producer = confluent_kafka.Producer(secure)
    producer.produce("confluent", b"x" * 300_000)
    assert producer.flush(BOUND_S) == 0
    consumer = confluent_kafka.Consumer({**secure, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["confluent"])
    try:
        message = consumer.poll(BOUND_S)
        assert message is not None
        assert message.error() is None
        assert len(message.value() or b"") == 300_000
    finally:
        consumer.close()


def round_trip_kafka_python(servers: str, context: ssl.SSLContext) -> None:
    secure = {"bootstrap_servers": servers, "security_protocol": "SSL", "ssl_context": context}
    with contextlib.closing(kafka.KafkaProducer(**secure)) as producer:
        producer.send("kafka-python", b"x" * 300_000).get(BOUND_S)
    consumer = kafka.KafkaConsumer(
        "kafka-python", auto_offset_reset="earliest", consumer_timeout_ms=BOUND_S * 1_000, **secure
    )
    with contextlib.closing(consumer):
        assert len(next(consumer).value) == 300_000


# ---- clients that may not


def test_our_clients_say_why_they_are_refused(tmp_path: Path, files: Mapping[str, str]) -> None:
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "security.inter.broker.protocol": "SSL",
        **key_settings(tmp_path / "keys", ssl_client_auth="required"),
    }
    bob = AUTHORITY.sign("bob", lasts=-DAY).write(tmp_path / "bob.pem")
    foreign = Authority("foreign").write(tmp_path / "foreign.pem")

    async def refusal(servers: str, **secure: str) -> str:
        config = SecurityConfig(security_protocol="SSL", **secure)  # type: ignore[arg-type]
        with pytest.raises(ClientError) as caught:
            async with asyncio.timeout(BOUND_S), Admin(servers, ClientConfig(security=config)) as admin:
                await admin.topics.list()
        return str(caught.value)

    with BrokerThread(tmp_path / "data", settings) as broker:
        servers, authority = broker.bootstrap_servers, files["authority"]
        assert "rejected our certificate" in asyncio.run(
            refusal(servers, ssl_cafile=authority, ssl_certfile=bob)
        )
        assert "is not trusted" in asyncio.run(refusal(servers, ssl_cafile=foreign))


# ---- brokers


@asynccontextmanager
async def two_brokers(tmp_path: Path, **more: str) -> AsyncIterator[list[Broker]]:
    """Brokers that know each other over TLS with client certificates, and clients over plain text."""
    async with EmbeddedCoordinator() as coordinator, AsyncExitStack() as stack:
        brokers = []
        for number in (1, 2):
            settings = {
                "broker.id": str(number),
                "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
                "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:SSL",
                "inter.broker.listener.name": "BROKERS",
                "zookeeper.connect": coordinator.connect_string,
                "log.dirs": str(tmp_path / f"data-{number}"),
                "default.replication.factor": "2",
                "offsets.topic.replication.factor": "2",
                "group.initial.rebalance.delay.ms": "0",
                **{
                    f"listener.name.brokers.{key}": value
                    for key, value in key_settings(
                        tmp_path / f"keys-{number}", ssl_client_auth="required"
                    ).items()
                },
                **{key.replace("_", "."): value for key, value in more.items()},
            }
            config = load_broker_config(flags=settings).config
            brokers.append(await stack.enter_async_context(Broker(config)))
        yield brokers


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_brokers_replicate_over_tls_with_certificates(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as brokers:
        await write_replicated(brokers, "replicated")
        listeners = {
            connection.session.listener_name: str(connection.session.principal)
            for broker in brokers
            for connection in broker._server.connections.all()
        }
        assert listeners["BROKERS"] == "User:CN=broker"


async def write_replicated(brokers: list[Broker], topic: str) -> None:
    servers = brokers[0].address
    async with asyncio.timeout(BOUND_S):
        async with Admin(servers) as admin:
            await admin.topics.create(topic, partitions=4, replication_factor=2)
        async with Producer(servers, acks="all") as producer:
            for number in range(4):
                await producer.send_and_wait(topic, b"value", partition=number)

    def is_copied() -> bool:
        return all(
            replica.log.log_end_offset == 1
            for broker in brokers
            for replica in broker.services.replicas
            if replica.topic_partition.topic == topic
        )

    await until(is_copied)


def test_a_broker_without_a_usable_certificate_does_not_start(tmp_path: Path) -> None:
    settings = {"listeners": "SSL://127.0.0.1:0", "security.inter.broker.protocol": "SSL"}

    with pytest.raises(BrokerFailed, match=r"ssl\.keystore\.location must be set: a listener with TLS needs"):
        BrokerThread(tmp_path, settings).start()


# ---- new certificates


async def names_seen(port: int, authority: Path) -> bytes:
    """Return the certificate that a new connection sees."""
    context = ssl.create_default_context(cafile=str(authority))
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


@asynccontextmanager
async def one_broker(tmp_path: Path, **more: str) -> AsyncIterator[tuple[Broker, int, Path]]:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
        **{f"listener.name.ssl.{key}": text for key, text in key_settings(tmp_path / "keys").items()},
        **more,
    }
    async with asyncio.timeout(BOUND_S), Broker(load_broker_config(flags=settings).config) as broker:
        yield broker, broker.listeners.port_of("SSL"), tmp_path / "keys" / "authority.pem"


async def test_a_certificate_whose_file_changes_is_used_and_open_connections_go_on(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as (broker, port, authority):
        secure = SecurityConfig(security_protocol="SSL", ssl_cafile=str(authority))
        async with Admin(f"127.0.0.1:{port}", ClientConfig(security=secure)) as admin:
            await admin.topics.list()
            opened = set(broker._server.connections.all())
            before = await names_seen(port, authority)
            new = AUTHORITY.sign("broker")
            new.write(tmp_path / "keys" / "broker.pem")

            assert before != new.der
            await eventually(lambda: names_seen(port, authority), new.der)
            await admin.topics.list()
            assert opened <= set(broker._server.connections.all())


async def eventually(ask: Callable[[], Awaitable[bytes]], expected: bytes) -> None:
    while await ask() != expected:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def test_an_authority_that_is_trusted_no_more_ends_logins_and_open_connections_go_on(
    tmp_path: Path, files: dict[str, str]
) -> None:
    client = {"security_protocol": "SSL", "ssl_cafile": files["authority"], "ssl_certfile": files["alice"]}
    config = ClientConfig(security=SecurityConfig(**client), bootstrap_timeout_ms=2_000)  # type: ignore[arg-type]
    trusted = tmp_path / "keys" / "trusted.pem"
    required = {
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.ssl.ssl.truststore.location": str(trusted),
    }
    trusted.parent.mkdir()
    trusted.write_text(AUTHORITY.pem)
    async with one_broker(tmp_path, **required) as (_, port, _), Admin(f"127.0.0.1:{port}", config) as admin:
        await admin.topics.list()

        trusted.write_text(Authority("another").pem)

        async def is_refused() -> bytes:
            try:
                async with Admin(f"127.0.0.1:{port}", config) as newcomer:
                    await newcomer.topics.list()
            except ClientError:
                return b"refused"
            return b"served"

        await eventually(is_refused, b"refused")
        await admin.topics.list()


async def test_a_broken_certificate_is_refused_and_the_present_one_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refusals() -> list[str]:
        return [
            str(record.__dict__["reason"])
            for record in caplog.records
            if record.getMessage() == "new certificate refused"
        ]

    with caplog.at_level(logging.INFO):
        async with one_broker(tmp_path) as (_, port, authority):
            before = await names_seen(port, authority)
            file = tmp_path / "keys" / "broker.pem"
            for number, broken in enumerate(
                (
                    "nothing",
                    AUTHORITY.sign("another").pem,
                    AUTHORITY.sign("broker", ["127.0.0.1"]).pem,
                    AUTHORITY.sign("broker").chain_pem + AUTHORITY.sign("broker").key_pem(),
                )
            ):
                file.write_text(broken)
                await until(lambda number=number: len(refusals()) > number)  # type: ignore[misc]
                assert await names_seen(port, authority) == before
    assert len(refusals()) == 4  # each once, though the file was looked at many times


async def test_a_certificate_is_exchanged_by_the_configuration(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as (broker, port, authority):
        new = AUTHORITY.sign("broker")
        key = "listener.name.ssl.ssl.keystore.location"
        async with Admin(broker.address) as admin:
            for broken in ("/no/such/file", AUTHORITY.sign("x").write(tmp_path / "x.pem")):
                with pytest.raises(InvalidConfig, match=r"ssl\.keystore\.location"):
                    await admin.configs.alter(BROKER, str(broker.broker_id), {key: broken})
            with pytest.raises(InvalidConfig, match="can be dynamically updated only per-listener"):
                await admin.configs.alter(
                    BROKER, str(broker.broker_id), {"ssl.keystore.location": new.write(tmp_path / "new.pem")}
                )
            await admin.configs.alter(BROKER, str(broker.broker_id), {key: new.write(tmp_path / "new.pem")})
        assert await names_seen(port, authority) == new.der
