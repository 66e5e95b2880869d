from __future__ import annotations

import asyncio
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from ottla.client.authentication import (
    OAuthBearer,
    Plain,
    Scram,
    certificate_problem,
    mechanism_for,
    renewal_s,
)
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.client.connection_pool import Pool
from ottla.client.errors import (
    IDEMPOTENT_WRITE,
    AuthenticationFailed,
    ConnectFailed,
    ConnectionClosed,
    Need,
    error_about,
)
from ottla.client.security import SecurityConfig
from ottla.client.settings import SettingError, configure, from_properties
from ottla.client.testing import ScriptedBroker
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from peers.certificates import Authority, missing_openssl

# The exchange of RFC 7677, section 3.
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_LAST = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram() -> Scram:
    return Scram("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")


def test_scram_gives_the_messages_of_the_rfc() -> None:
    exchange = scram()

    assert exchange.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.answer(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.answer(SERVER_LAST) is None


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (b"e=unknown-user", "unknown-user"),
        (b"r=somebodyelse,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=999999999", "iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1", "iterations"),
        (b"\xff\xff", "is malformed"),
    ],
)
def test_a_scram_server_that_breaks_the_protocol_is_rejected(challenge: bytes, reason: str) -> None:
    with pytest.raises(AuthenticationFailed, match=reason):
        scram().answer(challenge)


def test_a_scram_server_that_does_not_know_the_password_is_refused() -> None:
    exchange = scram()
    exchange.answer(SERVER_FIRST)

    with pytest.raises(AuthenticationFailed, match="does not know the password"):
        exchange.answer(b"v=AAAA")


def test_names_with_commas_and_equal_signs_are_escaped_for_scram() -> None:
    assert Scram("SCRAM-SHA-512", "a,b=c", "x", "n").first() == b"n,,n=a=2Cb=3Dc,r=n"


def test_plain_and_oauthbearer_send_one_message() -> None:
    assert Plain("josef", "k").first() == b"\0josef\0k"
    assert OAuthBearer("token", {"tenant": "a"}).first() == b"n,,\x01auth=Bearer token\x01tenant=a\x01\x01"
    assert OAuthBearer("token").answer(b'{"status":"invalid_token"}') == b"\x01"


@pytest.mark.parametrize(
    "wrong",
    [
        {"security_protocol": "TLS"},
        {"security_protocol": "SASL_SSL"},
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"},
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
        {"security_protocol": "SSL", "ssl_cafile": "/no/such/file.pem"},
        {"security_protocol": "SSL", "ssl_certfile": "/no/such/file.pem"},
        {"ssl_cafile": __file__},
        {"sasl_username": "josef"},
        {"sasl_mechanism": "SCRAM-SHA-256"},
        {"security_protocol": "SSL", "sasl_password": "k"},
    ],
)
def test_an_invalid_configuration_is_rejected_at_once(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs|has no effect|there is no file"):
        SecurityConfig(**wrong)  # type: ignore[arg-type]


def test_a_setting_without_effect_is_rejected_with_advice() -> None:
    with pytest.raises(SettingError, match=r"ssl_cafile has no effect .*: set security_protocol='SSL' or"):
        SecurityConfig(ssl_cafile=__file__)
    with pytest.raises(SettingError, match=r"sasl_username has no effect .*: set security_protocol='SASL_"):
        SecurityConfig(sasl_username="josef", sasl_password="k")


def test_kerberos_needs_the_name_of_the_brokers_service() -> None:
    with pytest.raises(SettingError, match="GSSAPI needs sasl_kerberos_service_name"):
        SecurityConfig(security_protocol="SASL_SSL", sasl_mechanism="GSSAPI")


def test_a_password_is_not_shown() -> None:
    config = SecurityConfig(security_protocol="SASL_SSL", sasl_username="josef", sasl_password="secret")

    assert "secret" not in repr(config)


async def test_a_connection_logs_in() -> None:
    async with ScriptedBroker() as broker:
        broker.on(SaslHandshakeRequest, lambda _: SaslHandshakeResponse(mechanisms=["PLAIN"]))
        broker.on(SaslAuthenticateRequest, lambda _: SaslAuthenticateResponse())

        async with Connection(Address(broker.host, broker.port), plain_login()):
            (login,) = broker.seen(SaslAuthenticateRequest)

    assert bytes(login.auth_bytes) == b"\0josef\0k"


async def test_a_refused_login_says_why() -> None:
    async with ScriptedBroker() as broker:
        broker.on(SaslHandshakeRequest, lambda _: SaslHandshakeResponse(mechanisms=["PLAIN"]))
        broker.on(
            SaslAuthenticateRequest,
            lambda _: SaslAuthenticateResponse(error_code=58, error_message="wrong password"),
        )

        with pytest.raises(AuthenticationFailed, match="wrong password"):
            await Connection(Address(broker.host, broker.port), plain_login()).connect()


async def test_hashing_a_password_leaves_the_event_loop_to_others() -> None:
    turns, at = 0, []

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    def answer(request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        at.append(turns)
        if len(at) == 2:
            return SaslAuthenticateResponse(error_code=58, error_message="enough")
        nonce = bytes(request.auth_bytes).rpartition(b"r=")[2]
        return SaslAuthenticateResponse(auth_bytes=b"r=%sx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1000000" % nonce)

    login = ClientConfig(
        socket_connection_setup_timeout_ms=60_000,
        security=SecurityConfig(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username="josef",
            sasl_password="k",
        ),
    )
    async with ScriptedBroker() as broker, asyncio.TaskGroup() as tasks:
        broker.on(SaslHandshakeRequest, lambda _: SaslHandshakeResponse(mechanisms=["SCRAM-SHA-512"]))
        broker.on(SaslAuthenticateRequest, answer)
        counting = tasks.create_task(count())
        with pytest.raises(AuthenticationFailed, match="enough"):
            await Connection(Address(broker.host, broker.port), login).connect()
        counting.cancel()

    began, proved = at
    assert proved - began > 200


async def test_reading_many_authorities_leaves_the_event_loop_to_others(tmp_path: Path) -> None:
    if missing := missing_openssl():
        pytest.skip(missing)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    many = tmp_path / "many.pem"
    many.write_text(Authority(tmp_path).cafile.read_text() * 3_000)
    config = ClientConfig(security=SecurityConfig(security_protocol="SSL", ssl_cafile=str(many)))
    async with asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(count())
        with pytest.raises(ConnectFailed, match="Connection refused"):
            await Connection(Address("127.0.0.1", 1), config).connect()
        counting.cancel()

    assert turns > 100


async def test_a_mechanism_the_broker_lacks_is_refused_with_those_it_has() -> None:
    async with ScriptedBroker() as broker:
        broker.on(
            SaslHandshakeRequest,
            lambda _: SaslHandshakeResponse(error_code=33, mechanisms=["SCRAM-SHA-256", "GSSAPI"]),
        )

        with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256, GSSAPI"):
            await Connection(Address(broker.host, broker.port), plain_login()).connect()


def plain_login() -> ClientConfig:
    security = SecurityConfig(security_protocol="SASL_PLAINTEXT", sasl_username="josef", sasl_password="k")
    return ClientConfig(security=security)


async def test_a_login_that_ends_is_renewed_before_anything_else_is_sent() -> None:
    async with ScriptedBroker() as broker:
        broker.on(SaslHandshakeRequest, lambda _: SaslHandshakeResponse(mechanisms=["PLAIN"]))
        broker.on(SaslAuthenticateRequest, lambda _: SaslAuthenticateResponse(session_lifetime_ms=1))
        broker.on(MetadataRequest, lambda _: broker.metadata())

        async with Connection(Address(broker.host, broker.port), plain_login()) as connection:
            await asyncio.sleep(0.002)  # only the clock ends the login
            asked = (connection.send(MetadataRequest(topics=[]), MetadataResponse) for _ in range(8))
            await asyncio.gather(*asked)

        kinds = [type(request) for request, _ in broker.requests]
        assert broker.connections == 1
    login = [SaslHandshakeRequest, SaslAuthenticateRequest]
    assert kinds[1:6] == [*login, *login, MetadataRequest]
    # No other request is sent between the two requests of a login.
    assert all(
        kinds[index + 1] is SaslAuthenticateRequest
        for index, kind in enumerate(kinds)
        if kind is SaslHandshakeRequest
    )


async def test_a_renewal_that_is_refused_ends_the_connection() -> None:
    async with ScriptedBroker() as broker:
        broker.on(SaslHandshakeRequest, lambda _: SaslHandshakeResponse(mechanisms=["PLAIN"]))
        broker.on(SaslAuthenticateRequest, lambda _: SaslAuthenticateResponse(session_lifetime_ms=1))
        broker.on(MetadataRequest, lambda _: broker.metadata())

        async with Connection(Address(broker.host, broker.port), plain_login()) as connection:
            await asyncio.sleep(0.002)  # only the clock ends the login
            broker.on(
                SaslAuthenticateRequest,
                lambda _: SaslAuthenticateResponse(error_code=58, error_message="not any more"),
            )
            with pytest.raises(AuthenticationFailed, match="not any more"):
                await connection.send(MetadataRequest(topics=[]), MetadataResponse)
            assert not connection.is_open


async def test_a_renewal_that_does_not_end_ends_the_connection() -> None:
    asked = 0

    async def provider() -> str:
        nonlocal asked
        asked += 1
        if asked > 1:
            await asyncio.get_running_loop().create_future()
        return "token"

    config = ClientConfig(
        socket_connection_setup_timeout_ms=2_000,
        security=SecurityConfig(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=provider,
        ),
    )
    async with ScriptedBroker() as broker:
        broker.on(SaslHandshakeRequest, lambda _: SaslHandshakeResponse(mechanisms=["OAUTHBEARER"]))
        broker.on(SaslAuthenticateRequest, lambda _: SaslAuthenticateResponse(session_lifetime_ms=1))
        broker.on(MetadataRequest, lambda _: broker.metadata())

        async with Connection(Address(broker.host, broker.port), config) as connection:
            await asyncio.sleep(0.002)  # only the clock ends the login
            async with asyncio.timeout(60):
                with pytest.raises(ConnectionClosed, match="not logged in again within 2 s"):
                    await connection.send(MetadataRequest(topics=[]), MetadataResponse)
            assert not connection.is_open


@pytest.mark.parametrize("kind", ["a function", "a function that returns a coroutine", "an object", "async"])
async def test_a_token_provider_may_be_of_any_kind_and_one_that_blocks_leaves_the_loop_to_others(
    kind: str,
) -> None:
    threads = list[threading.Thread]()

    def blocking() -> str:
        threads.append(threading.current_thread())
        return "token"

    async def waiting() -> str:
        threads.append(threading.current_thread())
        return "token"

    class Provider:
        def token(self) -> str:
            return blocking()

    providers: dict[str, Any] = {
        "a function": blocking,
        "a function that returns a coroutine": lambda: waiting(),
        "an object": Provider(),
        "async": waiting,
    }

    mechanism = await mechanism_for(bearer(providers[kind]))

    assert b"auth=Bearer token\x01" in mechanism.first()
    is_async = kind in ("async", "a function that returns a coroutine")
    assert (threads == [threading.current_thread()]) == is_async


def bearer(provider: Any) -> SecurityConfig:
    return SecurityConfig(
        security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=provider
    )


@pytest.mark.parametrize("found", [None, b"s3cret", "", "s3cret\x01auth=", "s3cret\n", 31337])
async def test_a_provider_that_returns_no_token_is_named_and_its_value_is_not(found: Any) -> None:
    with pytest.raises(AuthenticationFailed, match="sasl_oauth_token_provider returned no token") as failed:
        await mechanism_for(bearer(lambda: found))

    assert "s3cret" not in str(failed.value)
    assert "31337" not in str(failed.value)


async def test_one_refused_login_is_that_of_all_tasks_that_waited_for_the_connection() -> None:
    async with ScriptedBroker() as broker, Pool(plain_login()) as pool:
        broker.on(SaslHandshakeRequest, lambda _: SaslHandshakeResponse(mechanisms=["PLAIN"]))
        broker.on(
            SaslAuthenticateRequest, lambda _: SaslAuthenticateResponse(error_code=58, error_message="no")
        )
        address = Address(broker.host, broker.port)

        found = await asyncio.gather(*(pool.get(address) for _ in range(8)), return_exceptions=True)

        assert [type(error) for error in found] == [AuthenticationFailed] * 8
        assert broker.connections == 1
        with pytest.raises(AuthenticationFailed):
            await pool.get(address)
        assert broker.connections == 2


@pytest.mark.parametrize(
    "more",
    [
        {"ssl_cafile": __file__},
        {"ssl_truststore_certificates": "PEM"},
        {"ssl_certfile": __file__},
        {"ssl_check_hostname": False},
        {"ssl_enabled_protocols": "TLSv1.3"},
        {"ssl_cipher_suites": "TLS_AES_256_GCM_SHA384"},
    ],
)
def test_settings_of_tls_that_a_given_context_ignores_are_refused(more: dict[str, Any]) -> None:
    context = ssl.create_default_context()
    with pytest.raises(SettingError, match=rf"{next(iter(more))} has no effect with ssl_context"):
        SecurityConfig(security_protocol="SSL", ssl_context=context, **more)


@pytest.mark.parametrize(
    "wrong",
    [{"sasl_password": 12345}, {"sasl_plain_password": 12345}, {"sasl_jaas_config": 'password="12345";'}],
)
def test_messages_about_passwords_do_not_show_them(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="the value given") as caught:
        configure(ClientConfig, wrong)
    assert "12345" not in str(caught.value)


def test_renewals_are_spread_over_a_tenth_of_the_session() -> None:
    assert [renewal_s(10_000, chance) for chance in (0.0, 1.0)] == pytest.approx([8.5, 9.5])


def test_other_errors_are_no_certificate_problem() -> None:
    assert certificate_problem(OSError("no")) is None
    assert certificate_problem(ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")) is None


def test_a_delegation_token_is_marked_in_the_first_message() -> None:
    exchange = Scram("SCRAM-SHA-256", "token-id", "aG1hYw==", "n", token_auth=True)

    assert exchange.first() == b"n,,n=token-id,r=n,tokenauth=true"


def test_a_login_module_of_java_may_name_a_delegation_token() -> None:
    jaas = 'org.x.ScramLoginModule required username="id" password="a\\"b\\\\" tokenauth="true";'
    config = from_properties(
        ClientConfig,
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": jaas,
        },
    ).security

    assert (config.sasl_username, config.sasl_password, config.sasl_token_auth) == ("id", 'a"b\\', True)


def test_a_delegation_token_needs_scram() -> None:
    with pytest.raises(SettingError, match="sasl_token_auth needs a SCRAM mechanism, not PLAIN"):
        SecurityConfig(
            security_protocol="SASL_SSL", sasl_username="id", sasl_password="h", sasl_token_auth=True
        )


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (29, "topic t: not permitted to READ TOPIC 't'"),
        (30, "topic t: not permitted to READ GROUP 'g'"),
        (31, "topic t: not permitted to IDEMPOTENT_WRITE CLUSTER 'kafka-cluster'"),
        (53, "topic t"),
        (3, "topic t"),
    ],
)
def test_an_error_names_the_permission_that_is_missing(code: int, words: str) -> None:
    needs = (
        Need(Operation.READ, ResourceType.TOPIC, "t"), Need(Operation.READ, ResourceType.GROUP, "g"),
        IDEMPOTENT_WRITE,
    )  # fmt: skip

    assert str(error_about(code, "topic t", *needs)) == words
    assert str(error_about(29, None, *needs)) == "not permitted to READ TOPIC 't'"
    assert str(error_about(29, None)) == "not permitted for the topic"
