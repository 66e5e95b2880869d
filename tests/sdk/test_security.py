"""Our clients against brokers that want to know who they are, or that encrypt, or both."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Self

import pytest

from ottla.admin import Acl, Admin, Operation, PatternType, PermissionType, ResourceType
from ottla.client.config import ClientConfig, parse_bootstrap_servers
from ottla.client.connection import Connection
from ottla.client.errors import AuthenticationFailed, ClientError
from ottla.client.security import SecurityConfig
from ottla.consumer import Consumer, SyncConsumer
from ottla.producer import Producer, SyncProducer
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from peers.certificates import missing_openssl
from peers.maven import missing_tools
from peers.secured_kafka import PASSWORD, SESSION_MS, USER, SecuredKafka, secured_kafka
from sdk.conftest import chosen_kinds

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

Removal = Callable[[], Coroutine[Any, Any, None]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kafka" in metafunc.fixturenames:
        metafunc.parametrize("kafka", chosen_kinds(metafunc.config), indirect=True, scope="module")


@pytest.fixture(scope="module")
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """One secured broker for the tests of this module, one kind after the other."""
    if missing := (request.param != "ottla" and missing_tools()) or missing_openssl():
        pytest.skip(missing)
    with secured_kafka(tmp_path_factory.mktemp("secured"), request.param) as running:
        yield running


def unsecured_token(lasts_s: int = 3_600) -> str:
    """Make a JWS without a signature, as Kafka takes them where it is told to trust everybody."""
    now_s = int(time.time())
    parts = ({"alg": "none"}, {"sub": USER, "iat": now_s, "exp": now_s + lasts_s})
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    return b".".join(encoded).decode() + "."


def login(mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": unsecured_token}
    return {"sasl_mechanism": mechanism, "sasl_username": USER, "sasl_password": password}


async def delegation_token(kafka: SecuredKafka) -> dict[str, Any]:
    """Make a token for the user, and return the login by it."""
    security = SecurityConfig(security_protocol="SASL_PLAINTEXT", **login("SCRAM-SHA-256"))
    async with Admin(kafka.at("LOGIN"), ClientConfig(security=security)) as admin:
        token = await admin.tokens.create()
    return {
        "sasl_mechanism": "SCRAM-SHA-256", "sasl_username": token.token_id, "sasl_password": token.password,
        "sasl_token_auth": True,
    }  # fmt: skip


async def settings_for(kafka: SecuredKafka, way: str, listener: str) -> dict[str, Any]:
    """Return all settings of a client that logs in on a listener by a mechanism, a token or a certificate."""
    servers: dict[str, Any] = {"bootstrap_servers": kafka.at(listener)}
    tls = {"ssl_cafile": str(kafka.cafile)}
    if way == "certificate":
        own = {"ssl_certfile": str(kafka.certfile), "ssl_keyfile": str(kafka.keyfile)}
        return servers | {"security_protocol": "SSL"} | tls | own
    known = await delegation_token(kafka) if way == "delegation token" else login(way)
    if listener == "BOTH":
        return servers | {"security_protocol": "SASL_SSL"} | tls | known
    return servers | {"security_protocol": "SASL_PLAINTEXT"} | known


async def round_trip(servers: str, topic: str, **security: Any) -> None:
    """Create a topic, send a record and read it again, in a group."""
    async with Admin(servers, ClientConfig(security=SecurityConfig(**security))) as admin:
        await admin.topics.create(topic)
    async with Producer(servers, **security) as producer:
        await producer.send_and_wait(topic, b"hush")
    async with Consumer(
        topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest", **security
    ) as consumer:
        async with asyncio.timeout(30):
            record = await anext(consumer)
    assert record.value == b"hush"


def round_trip_of_threads(topic: str, settings: dict[str, Any]) -> None:
    with SyncProducer(**settings) as producer:
        producer.send(topic, b"hush").result(60)
    reading = settings | {"group_id": topic, "auto_offset_reset": "earliest", "consumer_timeout_ms": 60_000}
    with SyncConsumer(topic, **reading) as consumer:
        assert next(iter(consumer)).value == b"hush"


async def once_known(call: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Await a call again until brokers have learned of a token that was made just now."""
    ends_s = time.monotonic() + 30
    while True:
        try:
            await call()
        except AuthenticationFailed:
            if time.monotonic() > ends_s:
                raise
            await asyncio.sleep(0.1)
        else:
            return


WAYS = [
    *((mechanism, listener) for mechanism in MECHANISMS for listener in ("LOGIN", "BOTH")),
    ("delegation token", "LOGIN"), ("delegation token", "BOTH"), ("certificate", "MUTUAL"),
]  # fmt: skip


@pytest.mark.parametrize(("way", "listener"), WAYS)
async def test_each_login_lets_us_in(
    kafka: SecuredKafka, fresh: Callable[[str], str], way: str, listener: str
) -> None:
    settings = await settings_for(kafka, way, listener)
    security = {name: value for name, value in settings.items() if name != "bootstrap_servers"}

    await once_known(lambda: round_trip(settings["bootstrap_servers"], fresh("login"), **security))
    await asyncio.to_thread(round_trip_of_threads, fresh("threads"), settings)


async def test_encryption_by_a_file_of_authorities_or_a_context_of_ones_own(
    kafka: SecuredKafka, fresh: Callable[[str], str]
) -> None:
    await round_trip(
        kafka.at("ENCRYPTED"), fresh("tls"), security_protocol="SSL", ssl_cafile=str(kafka.cafile)
    )
    context = ssl.create_default_context(cafile=str(kafka.cafile))
    await round_trip(kafka.at("ENCRYPTED"), fresh("tls"), security_protocol="SSL", ssl_context=context)


async def test_dotted_properties_of_java_open_the_same_doors(
    kafka: SecuredKafka, fresh: Callable[[str], str]
) -> None:
    from ottla.producer import ProducerConfig

    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    config = ProducerConfig.from_properties(
        {
            "bootstrap.servers": kafka.at("BOTH"),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{module} required username="{USER}" password="{PASSWORD}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(kafka.cafile),
        }
    )
    async with Producer(config=config) as producer:
        await producer.send_and_wait(fresh("dotted"), b"hush")


class AiokafkaTokens:
    """A token provider in aiokafka's shape."""

    def __init__(self) -> None:
        self.asked = 0

    async def token(self) -> str:
        self.asked += 1
        return unsecured_token()


async def test_token_providers_in_aiokafkas_shape_are_taken(
    kafka: SecuredKafka, fresh: Callable[[str], str]
) -> None:
    tokens = AiokafkaTokens()
    security = login("OAUTHBEARER") | {"sasl_oauth_token_provider": tokens}
    await round_trip(kafka.at("LOGIN"), fresh("token"), security_protocol="SASL_PLAINTEXT", **security)
    assert tokens.asked >= 2


# --- doors that stay shut


async def refusal(servers: str, **security: Any) -> str:
    """Return in which words a producer fails to start, well before it would give up trying."""
    async with asyncio.timeout(60):
        with pytest.raises(ClientError) as failure:
            await Producer(servers, **security).start()
    words = str(failure.value)
    assert "\n" not in words
    return words


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_refused_at_once(kafka: SecuredKafka, mechanism: str) -> None:
    words = await refusal(
        kafka.at("LOGIN"), security_protocol="SASL_PLAINTEXT", **login(mechanism, "not the password")
    )
    assert "refused the login" in words
    assert "uthentication failed" in words
    assert "not the password" not in words


async def test_a_token_that_has_expired_is_refused_at_once(kafka: SecuredKafka) -> None:
    security = login("OAUTHBEARER") | {"sasl_oauth_token_provider": lambda: unsecured_token(-3_600)}
    words = await refusal(kafka.at("LOGIN"), security_protocol="SASL_PLAINTEXT", **security)
    assert "refused the login" in words


async def test_an_authority_that_we_do_not_trust_is_named_at_once(kafka: SecuredKafka) -> None:
    words = await refusal(kafka.at("ENCRYPTED"), security_protocol="SSL", ssl_cafile=str(kafka.other_cafile))
    assert "certificate" in words
    assert "ssl_cafile" in words


async def test_a_missing_certificate_of_ours_is_named_at_once(kafka: SecuredKafka) -> None:
    words = await refusal(kafka.at("MUTUAL"), security_protocol="SSL", ssl_cafile=str(kafka.cafile))
    assert "ssl_certfile" in words


@pytest.mark.parametrize(
    ("listener", "protocol", "words"),
    [
        ("ENCRYPTED", "PLAINTEXT", "speaks TLS, connect with security.protocol=SSL or SASL_SSL"),
        ("BOTH", "SASL_PLAINTEXT", "speaks TLS, connect with security.protocol=SASL_SSL"),
        ("LOGIN", "PLAINTEXT", "asks for a login, connect with security.protocol=SASL_PLAINTEXT"),
        ("BOTH", "SSL", "asks for a login, connect with security.protocol=SASL_SSL"),
        ("LOGIN", "SASL_SSL", "speaks no TLS, connect with security.protocol=SASL_PLAINTEXT"),
    ],
)
async def test_a_client_that_speaks_another_protocol_is_told_which_one(
    kafka: SecuredKafka, listener: str, protocol: str, words: str
) -> None:
    security: dict[str, Any] = {"security_protocol": protocol, "bootstrap_timeout_ms": 1_000}
    if protocol.startswith("SASL"):
        security |= login("PLAIN")
    if protocol.endswith("SSL"):
        security["ssl_cafile"] = str(kafka.cafile)
    assert words in await refusal(kafka.at(listener), **security)


# --- sessions that end


@pytest.mark.long
async def test_logins_are_renewed_before_they_end(kafka: SecuredKafka) -> None:
    config = ClientConfig(security=SecurityConfig(security_protocol="SASL_PLAINTEXT", **login("PLAIN")))
    (address,) = parse_bootstrap_servers(kafka.at("SESSION"))
    async with Connection(address, config) as connection:
        ends_s = time.monotonic() + 2.5 * SESSION_MS / 1_000
        while time.monotonic() < ends_s:
            questions = (connection.send(MetadataRequest(topics=[]), MetadataResponse) for _ in range(20))
            answers = await asyncio.gather(*questions)
            assert len(answers) == 20
            await asyncio.sleep(0.02)  # the rate of questions, nothing is awaited by it


@pytest.mark.long
async def test_a_connection_that_was_idle_past_its_session_goes_on(kafka: SecuredKafka) -> None:
    config = ClientConfig(
        security=SecurityConfig(security_protocol="SASL_PLAINTEXT", **login("SCRAM-SHA-256"))
    )
    (address,) = parse_bootstrap_servers(kafka.at("SESSION"))
    async with Connection(address, config) as connection:
        await asyncio.sleep(1.2 * SESSION_MS / 1_000)  # the session is over by the clock alone
        answer = await connection.send(MetadataRequest(topics=[]), MetadataResponse)
    assert answer.brokers


class Endpoint:
    """An authorization server that issues tokens of which a client asks for the next one at each login."""

    def __init__(self) -> None:
        self.issued: list[str] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def token(self) -> str:
        self.issued.append(unsecured_token(3_600 + len(self.issued)))
        return self.issued[-1]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Authorization: Basic " in head
        body = json.dumps({"access_token": self.token(), "expires_in": 1}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    def login(self) -> dict[str, Any]:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return {
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_token_endpoint_url": f"http://127.0.0.1:{port}/token",
            "sasl_oauthbearer_client_credentials_client_id": USER,
            "sasl_oauthbearer_client_credentials_client_secret": PASSWORD,
        }


@pytest.mark.long
async def test_records_that_are_in_flight_during_new_logins_arrive_once_and_in_order(
    kafka: SecuredKafka, fresh: Callable[[str], str]
) -> None:
    topic, servers, found = fresh("stream"), kafka.at("SESSION"), list[bytes]()
    async with Admin(kafka.bootstrap_servers) as admin:
        await admin.topics.create(topic)

    async def produce(producer: Producer) -> int:
        sent, ends_s = 0, time.monotonic() + 3 * SESSION_MS / 1_000
        while time.monotonic() < ends_s:
            for _ in range(50):
                await producer.send(topic, b"%d" % sent)
                sent += 1
            await asyncio.sleep(0.005)  # the rate of the stream
        await producer.send(topic, b"end")
        return sent

    async with Endpoint() as endpoint:
        by_token = {"security_protocol": "SASL_PLAINTEXT", **endpoint.login()}
        by_password = {"security_protocol": "SASL_PLAINTEXT", **login("SCRAM-SHA-512")}
        reading = {"group_id": topic, "auto_offset_reset": "earliest", **by_password}
        async with (
            asyncio.timeout(120),
            Producer(servers, linger_ms=1, **by_token) as producer,
            Consumer(topic, bootstrap_servers=servers, **reading) as consumer,
            asyncio.TaskGroup() as tasks,
        ):
            producing = tasks.create_task(produce(producer))
            async for record in consumer:
                if record.value == b"end":
                    break
                found.append(record.value or b"")
    assert found == [b"%d" % number for number in range(producing.result())]
    assert len(found) > 1_000
    assert len(set(endpoint.issued)) > 2, "each login asks for the next token"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["asyncio", "threads"])
async def test_a_login_that_is_refused_amid_a_stream_ends_producer_and_consumer(
    kafka: SecuredKafka, fresh: Callable[[str], str], kind: str
) -> None:
    user, topic, servers = fresh("user"), fresh("stream"), kafka.at("SESSION")
    settings: dict[str, Any] = {
        "bootstrap_servers": servers, "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512", "sasl_username": user, "sasl_password": PASSWORD,
    }  # fmt: skip
    reading = settings | {"group_id": topic, "auto_offset_reset": "earliest"}
    async with Admin(kafka.bootstrap_servers) as admin:
        await admin.topics.create(topic)
        await admin.acls.create([
            Acl(kind_of, "*", PatternType.LITERAL, f"User:{user}", "*", Operation.ALL, PermissionType.ALLOW)
            for kind_of in (ResourceType.TOPIC, ResourceType.GROUP)
        ])  # fmt: skip
        await admin.users.set_password(user, PASSWORD, "SCRAM-SHA-512")

        async def remove() -> None:
            await admin.users.delete(user, ["SCRAM-SHA-512"])

        async def start() -> None:
            await asyncio.to_thread(send_once, topic, settings)

        await once_known(start)
        ends_of = ends_of_tasks if kind == "asyncio" else ends_of_threads
        async with asyncio.timeout(120):
            ends = await ends_of(topic, settings, reading, remove)
    assert [type(end) for end in ends] == [AuthenticationFailed, AuthenticationFailed]
    assert all("refused the login" in str(end) for end in ends)


def send_once(topic: str, settings: dict[str, Any]) -> None:
    with SyncProducer(**settings) as producer:
        producer.send(topic, b"first").result(60)


async def ends_of_tasks(
    topic: str, settings: dict[str, Any], reading: dict[str, Any], remove: Removal
) -> Sequence[BaseException | None]:
    async def produce() -> None:
        while True:
            await producer.send_and_wait(topic, b"x")
            await asyncio.sleep(0.01)  # the rate of the stream

    async def consume() -> None:
        async for _ in consumer:
            pass

    async with AsyncExitStack() as stack:
        producer, consumer = Producer(**settings), Consumer(topic, **reading)
        await producer.start()
        stack.push_async_callback(ended, producer.stop)
        await consumer.start()
        stack.push_async_callback(ended, consumer.stop)
        await anext(consumer)
        await remove()
        return await asyncio.gather(produce(), consume(), return_exceptions=True)


async def ends_of_threads(
    topic: str, settings: dict[str, Any], reading: dict[str, Any], remove: Removal
) -> Sequence[BaseException | None]:
    def produce() -> None:
        while True:
            producer.send(topic, b"x").result(60)
            time.sleep(0.01)  # the rate of the stream

    def consume() -> None:
        for _ in consumer:
            pass

    async with AsyncExitStack() as stack:
        producer = await asyncio.to_thread(SyncProducer(**settings).start)
        stack.push_async_callback(ended, partial(asyncio.to_thread, producer.stop))
        consumer = await asyncio.to_thread(SyncConsumer(topic, **reading).start)
        stack.push_async_callback(ended, partial(asyncio.to_thread, consumer.stop))
        await asyncio.to_thread(next, iter(consumer))
        await remove()
        return await asyncio.gather(
            asyncio.to_thread(produce), asyncio.to_thread(consume), return_exceptions=True
        )


async def ended(stop: Removal) -> None:
    """Stop a client that a refused login has ended."""
    with suppress(AuthenticationFailed):
        await stop()
