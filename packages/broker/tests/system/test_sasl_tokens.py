"""Logins by tokens: OAUTHBEARER with unmodified clients, and delegation tokens."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from ottla.broker.config import ConfigError, load_broker_config
from ottla.broker.config.logins import LOGIN_MODULES
from ottla.broker.security.sasl.testing import BOUND_S, Wire, logs_in
from ottla.broker.testing import BrokerFailed, BrokerThread
from ottla.client.authentication import Scram
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delegation_tokens import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PLAIN_LINE = (
    f'{LOGIN_MODULES["PLAIN"]} required username="admin" password="a" user_admin="a" user_alice="b" '
    'user_bob="c";'
)
BASE = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN_LINE,
}
BEARER_LINE = "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config"
UNSECURED = {
    BEARER_LINE: f'{LOGIN_MODULES["OAUTHBEARER"]} required unsecuredValidatorPrincipalClaimName="sub";'
}
TOKEN_KEY = "a key for tokens"


def bearer(settings: Mapping[str, str]) -> dict[str, str]:
    return {**BASE, "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER", **settings}


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    folder = tmp_path_factory.mktemp("jwks")
    entry = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
    (folder / "jwks.json").write_text(json.dumps({"keys": [{**entry, "kid": "one"}]}))
    settings = {
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "jwks.json").as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
    }
    with BrokerThread(folder / "data", bearer(settings)) as running:
        yield running


def token_of(**claims: Any) -> str:
    now_s = int(time.time())
    fine = {"sub": "alice", "aud": "kafka", "iat": now_s, "exp": now_s + 600, **claims}
    token: str = jwt.encode(fine, KEY, "RS256", {"kid": "one"})
    return token


async def test_aiokafka_logs_in_with_a_signed_token(signed: BrokerThread) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return token_of()

    producer = AIOKafkaProducer(
        bootstrap_servers=signed.bootstrap_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
    )
    async with producer:
        assert (await producer.send_and_wait("aiokafka", b"v")).topic == "aiokafka"


def test_librdkafka_logs_in_with_a_signed_token(signed: BrokerThread) -> None:
    from confluent_kafka import Producer

    delivered: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": signed.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (token_of(), time.time() + 600),
        }
    )
    producer.produce("librdkafka", b"v", on_delivery=lambda error, _: delivered.append(error))

    assert producer.flush(BOUND_S) == 0
    assert delivered == [None]


async def test_our_own_client_logs_in_with_a_signed_token(signed: BrokerThread) -> None:
    from ottla.client.errors import AuthenticationFailed
    from ottla.producer import Producer

    def producer_of(**claims: Any) -> Producer:
        return Producer(
            signed.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=lambda: token_of(**claims),
        )

    async with producer_of() as producer:
        assert (await (await producer.send("ottla", b"v"))).topic == "ottla"
    with pytest.raises(AuthenticationFailed, match="invalid_token"):
        async with producer_of(aud="other") as producer:
            await producer.send("ottla", b"v")


def test_a_login_ends_with_its_token(signed: BrokerThread) -> None:
    with Wire(signed.port) as wire:
        wire.handshake("OAUTHBEARER")
        answer = wire.token(f"n,,\x01auth=Bearer {token_of(exp=int(time.time()) + 300)}\x01\x01".encode())

    assert answer.error_code == 0
    assert 200_000 < answer.session_lifetime_ms <= 300_000


def test_a_token_without_a_signature_is_accepted_only_where_the_jaas_line_says_so(
    signed: BrokerThread, tmp_path: Path
) -> None:
    def part(content: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    claims = {"sub": "alice", "exp": int(time.time()) + 600}
    message = f"n,,\x01auth=Bearer {part({'alg': 'none'})}.{part(claims)}.\x01\x01".encode()
    with Wire(signed.port) as wire:
        wire.handshake("OAUTHBEARER")
        assert wire.token(message).auth_bytes == b'{"status":"invalid_token"}'
        assert wire.token(b"\x01").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert wire.is_closed()
    with BrokerThread(tmp_path, bearer(UNSECURED)) as broker, Wire(broker.port) as wire:
        wire.handshake("OAUTHBEARER")
        assert wire.token(message).error_code == 0
        assert wire.serves()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "sasl.oauthbearer.jwks.endpoint.url must be set for OAUTHBEARER"),
        ({**UNSECURED, "sasl.oauthbearer.jwks.endpoint.url": "file:///x"}, "must have no option"),
        (
            {**UNSECURED, "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"},
            "sasl.oauthbearer.token.endpoint.url must be set, with clientId and clientSecret in ",
        ),
    ],
)
def test_a_wrong_setting_refuses_the_start(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_broker_config(bearer(settings))


def test_a_start_without_the_keys_is_refused(tmp_path: Path) -> None:
    missing = {"sasl.oauthbearer.jwks.endpoint.url": (tmp_path / "missing.json").as_uri()}

    with pytest.raises(BrokerFailed, match=r"sasl.oauthbearer.jwks.endpoint.url .* it cannot be read"):
        BrokerThread(tmp_path / "data", bearer(missing)).start()


# ---- delegation tokens


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    settings = {
        **BASE,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "delegation.token.secret.key": TOKEN_KEY,
        "delegation.token.max.lifetime.ms": "100000",
        "delegation.token.expiry.time.ms": "50000",
    }
    with BrokerThread(tmp_path_factory.mktemp("tokens"), settings) as running:
        yield running


class Member(Wire):
    """A client that has logged in by PLAIN."""

    def __init__(self, broker: BrokerThread, user: str = "alice", password: str = "b") -> None:
        super().__init__(broker.port)
        assert self.log_in(f"\0{user}\0{password}".encode()).error_code == 0

    def create(self, **fields: Any) -> CreateDelegationTokenResponse:
        request = CreateDelegationTokenRequest(**{"renewers": [], "max_lifetime_ms": -1, **fields})
        answer: CreateDelegationTokenResponse = self.ask(request, CreateDelegationTokenResponse, 3)
        return answer

    def renew(self, secret: bytes, period_ms: int = -1) -> tuple[int, int]:
        request = RenewDelegationTokenRequest(hmac=secret, renew_period_ms=period_ms)
        answer = self.ask(request, RenewDelegationTokenResponse, 2)
        return answer.error_code, answer.expiry_timestamp_ms

    def expire(self, secret: bytes, period_ms: int = -1) -> tuple[int, int]:
        request = ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=period_ms)
        answer = self.ask(request, ExpireDelegationTokenResponse, 2)
        return answer.error_code, answer.expiry_timestamp_ms

    def describe(self, *owners: str) -> DescribeDelegationTokenResponse:
        asked = [DescribeDelegationTokenOwner(principal_type="User", principal_name=name) for name in owners]
        request = DescribeDelegationTokenRequest(owners=asked or None)
        answer: DescribeDelegationTokenResponse = self.ask(request, DescribeDelegationTokenResponse, 3)
        return answer


def test_a_token_is_a_name_and_a_password_for_its_owner(tokens: BrokerThread) -> None:
    with Member(tokens) as alice:
        made = alice.create()
        assert made.error_code == 0
        assert (made.principal_type, made.principal_name) == ("User", "alice")
        assert made.expiry_timestamp_ms == made.issue_timestamp_ms + 50_000
        assert made.max_timestamp_ms == made.issue_timestamp_ms + 100_000
    password = base64.b64encode(made.hmac).decode()
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        with Wire(tokens.port) as wire:
            answer = log_in_by_token(wire, made.token_id, password, mechanism)
            assert answer.error_code == 0
            assert 0 < answer.session_lifetime_ms <= 50_000
            assert wire.serves()
            request = CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
            refused = wire.ask(request, CreateDelegationTokenResponse, 3)
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    with Wire(tokens.port) as wire:
        answer = log_in_by_token(wire, made.token_id, "wrong", "SCRAM-SHA-256")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert not logs_in(tokens.port, made.token_id, password)  # without tokenauth


def log_in_by_token(wire: Wire, token_id: str, password: str, mechanism: str) -> Any:
    client = Scram(mechanism, token_id, password, "nonce")
    client._first_bare += ",tokenauth=true"
    wire.handshake(mechanism)
    proof = client.answer(wire.token(client.first()).auth_bytes)
    assert proof is not None
    return wire.token(proof)


def test_owners_and_renewers_renew_and_end_a_token(tokens: BrokerThread) -> None:
    with Member(tokens) as alice, Member(tokens, "bob", "c") as bob, Member(tokens, "admin", "a") as admin:
        made = alice.create(renewers=[CreatableRenewers(principal_type="User", principal_name="bob")])

        assert alice.renew(made.hmac, 1 << 60) == (0, made.max_timestamp_ms)
        code, expiry_ms = bob.renew(made.hmac, 10_000)
        assert (code, expiry_ms < made.max_timestamp_ms) == (0, True)
        assert admin.renew(made.hmac) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, -1)
        assert admin.expire(made.hmac) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, -1)
        assert alice.renew(b"unknown") == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)
        assert alice.expire(made.hmac, 20_000)[0] == 0
        assert bob.expire(made.hmac)[0] == 0
        assert alice.expire(made.hmac) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)
    with Wire(tokens.port) as wire:
        answer = log_in_by_token(wire, made.token_id, base64.b64encode(made.hmac).decode(), "SCRAM-SHA-256")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_token_that_is_over_lets_nobody_in_and_is_not_renewed(tokens: BrokerThread) -> None:
    with Member(tokens) as alice:
        made = alice.create(max_lifetime_ms=1)
        while alice.renew(made.hmac)[0] == 0:
            pass

        assert alice.renew(made.hmac) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, -1)
    with Wire(tokens.port) as wire:
        answer = log_in_by_token(wire, made.token_id, base64.b64encode(made.hmac).decode(), "SCRAM-SHA-256")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert tokens.broker is not None
    stored = tokens.broker.services.delegation_tokens
    assert stored is not None
    tokens.call(stored.remove_expired(is_controller=False))
    assert made.token_id in {token.token_id for token in stored.all()}
    tokens.call(stored.remove_expired(is_controller=True))
    assert made.token_id not in {token.token_id for token in stored.all()}


def test_tokens_are_described_to_those_that_they_belong_to(tokens: BrokerThread) -> None:
    with Member(tokens, "bob", "c") as bob:
        made = bob.create(
            owner_principal_type="User",
            owner_principal_name="carol",
            renewers=[CreatableRenewers(principal_type="User", principal_name="dave")],
        )
        found = [token for token in bob.describe("carol").tokens if token.token_id == made.token_id]
        assert [(token.principal_name, token.token_requester_principal_name) for token in found] == [
            ("carol", "bob")
        ]
        assert found[0].hmac == made.hmac
        assert [renewer.principal_name for renewer in found[0].renewers] == ["dave"]
        assert made.token_id in {token.token_id for token in bob.describe().tokens}
        assert made.token_id not in {token.token_id for token in bob.describe("alice").tokens}


def test_principals_of_another_type_have_no_tokens(tokens: BrokerThread) -> None:
    with Member(tokens) as alice:
        renewers = [CreatableRenewers(principal_type="Group", principal_name="bob")]
        assert alice.create(renewers=renewers).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


def test_the_znode_of_a_token_is_as_kafka_writes_it(tokens: BrokerThread) -> None:
    with Member(tokens) as alice:
        made = alice.create()
    assert tokens.broker is not None
    zookeeper = tokens.broker.services.zookeeper
    data, _ = tokens.call(zookeeper.get(f"/delegation_token/tokens/{made.token_id}"))

    assert json.loads(data) == {
        "version": 3,
        "owner": "User%3Aalice",
        "tokenRequester": "User%3Aalice",
        "renewers": [],
        "issueTimestamp": made.issue_timestamp_ms,
        "maxTimestamp": made.max_timestamp_ms,
        "expiryTimestamp": made.expiry_timestamp_ms,
        "tokenId": made.token_id,
    }
    changes = tokens.call(zookeeper.children("/delegation_token/token_changes"))
    assert changes
    last, _ = tokens.call(zookeeper.get(f"/delegation_token/token_changes/{max(changes)}"))
    assert last.decode() == made.token_id


def test_without_a_key_there_are_no_tokens(signed: BrokerThread) -> None:
    with Member(signed) as alice:
        assert alice.create().error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        assert alice.renew(b"x") == (ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, -1)
        assert alice.describe().error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def test_an_anonymous_client_has_no_tokens(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, {"delegation.token.secret.key": TOKEN_KEY}) as broker:
        with Wire(broker.port) as wire:
            request = DescribeDelegationTokenRequest(owners=None)
            answer = wire.ask(request, DescribeDelegationTokenResponse, 3)
            assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
