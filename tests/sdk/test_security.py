"""Our clients against Apache Kafka that wants to know who they are, or that encrypts, or both."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.client.config import ClientConfig, parse_bootstrap_servers
from ottla.client.connection import Connection
from ottla.client.errors import ClientError
from ottla.client.security import SecurityConfig
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from peers.certificates import missing_openssl
from peers.maven import missing_tools
from peers.secured_kafka import PASSWORD, SESSION_MS, USER, SecuredKafka, secured_kafka
from sdk.conftest import chosen_kinds

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kafka" in metafunc.fixturenames:
        kinds = [kind for kind in chosen_kinds(metafunc.config) if kind != "ottla"]
        metafunc.parametrize("kafka", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """One secured broker for the tests of this module, one kind after the other."""
    if missing := missing_tools() or missing_openssl():
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


async def round_trip(servers: str, topic: str, **security: Any) -> None:
    """Send a record and read it again, in a group."""
    async with Producer(servers, **security) as producer:
        await producer.send_and_wait(topic, b"hush")
    async with Consumer(
        topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest", **security
    ) as consumer:
        async with asyncio.timeout(30):
            record = await anext(consumer)
    assert record.value == b"hush"


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_each_mechanism_lets_us_in(
    kafka: SecuredKafka, fresh: Callable[[str], str], mechanism: str
) -> None:
    security = {"security_protocol": "SASL_PLAINTEXT", **login(mechanism)}
    await round_trip(kafka.at("LOGIN"), fresh("login"), **security)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_each_mechanism_works_inside_tls(
    kafka: SecuredKafka, fresh: Callable[[str], str], mechanism: str
) -> None:
    security = {"security_protocol": "SASL_SSL", "ssl_cafile": str(kafka.cafile), **login(mechanism)}
    await round_trip(kafka.at("BOTH"), fresh("both"), **security)


async def test_encryption_by_a_file_of_authorities_or_a_context_of_ones_own(
    kafka: SecuredKafka, fresh: Callable[[str], str]
) -> None:
    await round_trip(
        kafka.at("ENCRYPTED"), fresh("tls"), security_protocol="SSL", ssl_cafile=str(kafka.cafile)
    )
    context = ssl.create_default_context(cafile=str(kafka.cafile))
    await round_trip(kafka.at("ENCRYPTED"), fresh("tls"), security_protocol="SSL", ssl_context=context)


async def test_a_certificate_says_who_we_are(kafka: SecuredKafka, fresh: Callable[[str], str]) -> None:
    await round_trip(
        kafka.at("MUTUAL"),
        fresh("mutual"),
        security_protocol="SSL",
        ssl_cafile=str(kafka.cafile),
        ssl_certfile=str(kafka.certfile),
        ssl_keyfile=str(kafka.keyfile),
    )


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


# --- sessions that end


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


async def test_a_connection_that_was_idle_past_its_session_goes_on(kafka: SecuredKafka) -> None:
    config = ClientConfig(
        security=SecurityConfig(security_protocol="SASL_PLAINTEXT", **login("SCRAM-SHA-256"))
    )
    (address,) = parse_bootstrap_servers(kafka.at("SESSION"))
    async with Connection(address, config) as connection:
        await asyncio.sleep(1.2 * SESSION_MS / 1_000)  # the session is over by the clock alone
        answer = await connection.send(MetadataRequest(topics=[]), MetadataResponse)
    assert answer.brokers


async def test_producer_and_consumer_live_through_many_sessions(
    kafka: SecuredKafka, fresh: Callable[[str], str]
) -> None:
    topic, security = fresh("sessions"), {"security_protocol": "SASL_PLAINTEXT", **login("OAUTHBEARER")}
    servers = kafka.at("SESSION")
    async with (
        Producer(servers, **security) as producer,
        Consumer(
            topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest", **security
        ) as consumer,
    ):
        ends_s, sent = time.monotonic() + 2.5 * SESSION_MS / 1_000, 0
        while time.monotonic() < ends_s:
            await producer.send_and_wait(topic, b"%d" % sent)
            async with asyncio.timeout(60):
                record = await anext(consumer)
            assert record.value == b"%d" % sent
            sent += 1
