"""OAUTHBEARER on the server's side: its messages, tokens with and without signatures, and their keys."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from time import monotonic
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.security.sasl.broker_tokens import Backoff
from ottla.broker.security.sasl.jwks import BadJwks, JwksKeys, JwksUnavailable, fetch_jwks, keys_in
from ottla.broker.security.sasl.mechanisms import Identity, MalformedToken
from ottla.broker.security.sasl.oauthbearer import (
    ClaimRules,
    InvalidToken,
    OAuthBearerServer,
    SignedTokens,
    UnsecuredTokens,
)
from ottla.protocol.errors import SaslAuthenticationFailed

NOW_S = 1_700_000_000
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
CLAIMS: Mapping[str, Any] = {"sub": "alice", "iat": NOW_S - 10, "exp": NOW_S + 600}


def jwk(key: Any, key_id: str, **more: str) -> dict[str, Any]:
    algorithm: Any = (
        jwt.algorithms.RSAAlgorithm
        if hasattr(key, "key_size") and not hasattr(key, "curve")
        else jwt.algorithms.ECAlgorithm
    )
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": key_id, **more}


DOCUMENT = json.dumps(
    {"keys": [jwk(RSA, "rsa"), jwk(OTHER_RSA, "other", alg="RS512"), jwk(EC, "ec")]}
).encode()


class MemoryKeys:
    def __init__(self, document: bytes = DOCUMENT) -> None:
        self._keys = keys_in(document)

    def find(self, key_id: str | None) -> Any:
        return self._keys.get(key_id)


def signed(
    claims: Mapping[str, Any] = CLAIMS, key: Any = RSA, algorithm: str = "RS256", **header: Any
) -> str:
    token: str = jwt.encode(dict(claims), key, algorithm, {"kid": "rsa", **header})
    return token


def validator(**rules: Any) -> SignedTokens:
    return SignedTokens(MemoryKeys(), ClaimRules(**rules), lambda: NOW_S * 1000.0)


def part(content: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def first(token: str, header: str = "n,,", more: str = "") -> bytes:
    return f"{header}\x01auth=Bearer {token}\x01{more}\x01".encode()


def test_a_signed_token_gives_the_name_and_the_end_of_the_login() -> None:
    server = OAuthBearerServer(validator())

    assert server.evaluate(first(signed(), more="traceId=1\x01")) == b""
    assert server.identity == Identity("alice", (NOW_S + 600) * 1000)


@pytest.mark.parametrize(
    ("key", "algorithm", "key_id"),
    [(RSA, "RS256", "rsa"), (RSA, "PS384", "rsa"), (OTHER_RSA, "RS512", "other"), (EC, "ES256", "ec")],
)
def test_every_algorithm_of_a_key_is_accepted(key: Any, algorithm: str, key_id: str) -> None:
    token = signed(key=key, algorithm=algorithm, kid=key_id)

    assert validator().check(token).subject == "alice"


def public_pem() -> bytes:
    pem: bytes = RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem


def with_public_key_as_secret() -> str:
    import hashlib
    import hmac

    head = part({"alg": "HS256", "typ": "JWT", "kid": "rsa"}) + "." + part(CLAIMS)
    signature = hmac.new(public_pem(), head.encode(), hashlib.sha256).digest()
    return f"{head}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (f"{part({'alg': 'none', 'kid': 'rsa'})}.{part(CLAIMS)}.", "'none' are not accepted"),
        (f"{part({'alg': 'None', 'kid': 'rsa'})}.{part(CLAIMS)}.", "'None' are not accepted"),
        (with_public_key_as_secret(), "'HS256' are not accepted"),
        (signed(key=OTHER_RSA), "signature is wrong"),
        (signed(kid="other"), "algorithm is not one of its key"),
        (signed(kid="ec"), "algorithm is not one of its key"),
        (signed(kid="unknown"), "no key"),
        (jwt.encode(dict(CLAIMS), RSA, "RS256"), "no key"),
        (signed(key=EC, algorithm="ES256"), "algorithm is not one of its key"),
        (f"{part({'alg': 'RS256', 'kid': ['rsa']})}.{part(CLAIMS)}.AAAA", "no key|no signed token"),
        (f"{part({'alg': 'RS256', 'kid': 7})}.{part(CLAIMS)}.AAAA", "no key|no signed token"),
        (signed(kid="x" * 60_000), "no key|over 65536"),
        (f"{part({'alg': 'RS256', 'kid': 'rsa', 'b64': False})}.{part(CLAIMS)}.AAAA", "no signed token"),
        (signed(key=OTHER_RSA, jwk=jwk(OTHER_RSA, "rsa")), "signature is wrong"),
        (signed(key=OTHER_RSA, jku="https://attacker.example/keys"), "signature is wrong"),
        (f"{part({'alg': 'ES256', 'kid': 'ec'})}.{part(CLAIMS)}.{'A' * 86}", "signature is wrong"),
        (f"{part({'alg': ['RS256'], 'kid': 'rsa'})}.{part(CLAIMS)}.AAAA", "not accepted|no signed token"),
        ("a.b.c.d.e", "no signed token"),
        (signed(crit=["exp"], exp=1), "critical extension|no signed token"),
        (signed()[:-4] + "AAAA", "signature is wrong"),
        (signed().rpartition(".")[0] + ".", "signature is wrong"),
        ("a.b.c", "no signed token"),
        ("", "no signed token"),
        ("." * 1000, "no signed token"),
        ("x" * 70_000, "over 65536 characters"),
        (part("[" * 20_000) + "." + "[" * 20_000, "no signed token"),
    ],
)
def test_a_token_that_no_key_of_its_algorithm_has_signed_is_refused(token: str, reason: str) -> None:
    with pytest.raises(InvalidToken, match=reason):
        validator().check(token)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"exp": NOW_S - 31}, "expired"),
        ({"exp": None}, "'exp' is no time"),
        ({"exp": "tomorrow"}, "'exp' is no time"),
        ({"exp": True}, "'exp' is no time"),
        ({"exp": 10**400}, "'exp' is no time|no signed token"),
        ({"exp": 2**60}, "'exp' is no time"),
        ({"exp": -1}, "'exp' is no time"),
        ({"exp": float("nan")}, "'exp' is no time|no signed token"),
        ({"exp": float("inf")}, "'exp' is no time|no signed token"),
        ({"iat": NOW_S + 10**9}, "'iat' is in the future"),
        ({"scope": ["a"] * 20_000}, "over 65536 characters"),
        ({"nested": "[" * 60_000}, "over 65536 characters"),
        ({"iat": None}, "'iat' is no time"),
        ({"iat": NOW_S + 31}, "'iat' is in the future"),
        ({"iat": NOW_S + 20, "exp": NOW_S + 10}, "issued after its end"),
        ({"nbf": NOW_S + 31}, "'nbf' is in the future"),
        ({"sub": None}, "'sub' is no text"),
        ({"sub": " "}, "'sub' is no text"),
        ({"sub": ["alice"]}, "'sub' is no text"),
        ({"sub": "x" * 1025}, "over 1024 characters"),
        ({"iss": "https://other"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "other"}, "none of sasl.oauthbearer.expected.audience"),
        ({"aud": None}, "none of sasl.oauthbearer.expected.audience"),
        ({"aud": [["kafka"]]}, "none of sasl.oauthbearer.expected.audience"),
        ({"scope": {"a": 1}}, "neither text nor a list"),
        ({"scope": [1]}, "neither text nor a list"),
    ],
)
def test_a_claim_that_does_not_fit_is_refused(change: Mapping[str, Any], reason: str) -> None:
    fine = {**CLAIMS, "iss": "https://issuer", "aud": ["x", "kafka"], "scope": "a b"}
    checked = validator(issuer="https://issuer", audiences=("kafka", "ottla"))
    assert checked.check(signed(fine)).subject == "alice"
    claims = {name: value for name, value in {**fine, **change}.items() if value is not None}

    with pytest.raises(InvalidToken, match=reason):
        checked.check(signed(claims))


def test_clocks_may_differ_by_the_skew() -> None:
    for change in ({"exp": NOW_S - 29, "iat": NOW_S - 60}, {"iat": NOW_S + 29}, {"nbf": NOW_S + 29}):
        assert validator().check(signed({**CLAIMS, **change})).subject == "alice"


def test_another_claim_may_name_the_user() -> None:
    claims = {**CLAIMS, "sub": 7, "upn": "alice@example"}

    assert validator(subject_claim_name="upn").check(signed(claims)).subject == "alice@example"


@pytest.mark.parametrize("name", ["a b", "ünï ☃", "a,b=c;d", "User:bob", "*", "a\0b\nc\x1b[2J", "\u202ea"])
def test_a_name_of_odd_characters_stays_as_it_is(name: str) -> None:
    assert validator().check(signed({**CLAIMS, "sub": name})).subject == name


# ---- tokens without a signature


def test_a_token_without_a_signature_is_accepted_where_it_is_allowed() -> None:
    rules = ClaimRules(requires_issued_at=False, required_scope=frozenset({"a"}))
    checked = UnsecuredTokens(rules, lambda: NOW_S * 1000.0)
    token = f"{part({'alg': 'none'})}.{part({**CLAIMS, 'scope': 'a b'})}."

    assert checked.check(token).subject == "alice"
    with pytest.raises(InvalidToken, match="lacks a required scope") as raised:
        checked.check(f"{part({'alg': 'none'})}.{part(CLAIMS)}.")
    assert raised.value.status == "insufficient_scope"
    for wrong in (
        signed(),
        token + "x",
        "a.b",
        f"{part({'alg': 'RS256'})}.{part(CLAIMS)}.",
        "[.[.",
        f"{part(1)}.{part(2)}.",
    ):
        with pytest.raises(InvalidToken):
            checked.check(wrong)


# ---- messages


def test_a_refused_token_is_answered_with_its_status_and_the_next_message_ends_the_login() -> None:
    server = OAuthBearerServer(validator())

    assert server.evaluate(first("a.b.c")) == b'{"status":"invalid_token"}'
    with pytest.raises(SaslAuthenticationFailed) as raised:
        server.evaluate(b"\x01")

    assert str(raised.value) == '{"status":"invalid_token"}'
    assert "no signed token" in raised.value.reason  # type: ignore[attr-defined]
    assert server.identity is None


def test_a_refused_client_cannot_try_another_token() -> None:
    server = OAuthBearerServer(validator())
    server.evaluate(first("a.b.c"))

    with pytest.raises(MalformedToken):
        server.evaluate(first(signed()))
    assert server.identity is None


def test_a_client_may_ask_for_its_own_name_only() -> None:
    assert OAuthBearerServer(validator()).evaluate(first(signed(), "n,a=alice,")) == b""
    with pytest.raises(SaslAuthenticationFailed, match="authorization id"):
        OAuthBearerServer(validator()).evaluate(first(signed(), "n,a=bob,"))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer x",
        b"y,,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Bearer x\x01a1=b\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,a=\xff,\x01auth=Bearer x\x01\x01",
        b"n,,\x01" + b"a=b\x01" * 100_000,
    ],
)
def test_a_message_that_is_none_is_refused(message: bytes) -> None:
    with pytest.raises(MalformedToken):
        OAuthBearerServer(validator()).evaluate(message)


@given(st.binary(max_size=200))
def test_any_bytes_are_answered_or_refused(message: bytes) -> None:
    server = OAuthBearerServer(validator())
    for sent in (message, b"n,,\x01auth=Bearer " + message + b"\x01\x01"):
        try:
            server.evaluate(sent)
        except (MalformedToken, SaslAuthenticationFailed):
            continue
    assert server.identity is None


# ---- keys


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": []}',
        b'{"keys": [1]}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}',
        b"[" * 100_000,
    ],
)
def test_a_document_without_a_public_key_is_refused(document: bytes) -> None:
    with pytest.raises(BadJwks):
        keys_in(document)


def test_keys_for_other_uses_and_private_keys_are_left_out() -> None:
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(OTHER_RSA))
    entries = [
        jwk(RSA, "enc", use="enc"),
        {**private, "kid": "private"},
        jwk(EC, "ec", alg="ES512"),
        jwk(RSA, "fine"),
    ]

    assert keys_in(json.dumps({"keys": entries}).encode()).keys() == {None, "fine"}


async def test_keys_are_read_from_a_file_and_again_when_one_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(json.dumps({"keys": [jwk(RSA, "rsa")]}).encode())
    keys = JwksKeys(path.as_uri(), 3600.0)
    await keys.load()
    assert keys.find("rsa") is not None
    assert keys.find("ec") is None

    path.write_bytes(DOCUMENT)
    await keys.load()
    assert keys.find("ec") is not None
    path.write_bytes(b"broken")
    with pytest.raises(BadJwks):
        await keys.load()
    assert keys.find("ec") is not None


async def test_missing_keys_have_the_document_read_soon_and_not_at_once() -> None:
    from ottla.broker.security.sasl import jwks

    loop, times = asyncio.get_running_loop(), []

    def fetch(url: str) -> bytes:
        times.append(url)
        return DOCUMENT

    assert jwks.MIN_PAUSE_S >= 10
    keys = JwksKeys("file:///x", 0.01, fetch)
    refreshing = asyncio.create_task(keys.refresh())
    async with asyncio.timeout(60):
        while len(times) < 2:
            keys.find("unknown")
            await asyncio.sleep(0.001)
    refreshing.cancel()
    assert loop.time() > 0
    assert keys.find("rsa") is not None


async def test_a_server_of_keys_that_does_not_answer_is_asked_again() -> None:
    answers: list[Exception | bytes] = [JwksUnavailable("later"), JwksUnavailable("later"), DOCUMENT]

    def fetch(url: str) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    keys = JwksKeys("https://login.example.com/keys", 3600.0, fetch, Backoff(1, 60_000))
    await keys.load()
    assert keys.find("rsa") is not None

    answers[:] = [BadJwks("it is no JWKS document"), DOCUMENT]
    with pytest.raises(BadJwks, match="no JWKS document"):
        await keys.load()


def test_only_urls_of_documents_are_read(tmp_path: Path) -> None:
    for url in ("ftp://127.0.0.1/x", "jwks.json", "data:,x", (tmp_path / "missing").as_uri()):
        with pytest.raises(BadJwks):
            fetch_jwks(url)
    (tmp_path / "large").write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(BadJwks, match="over 1048576 bytes"):
        fetch_jwks((tmp_path / "large").as_uri())


def test_a_redirect_of_a_document_is_not_followed() -> None:
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            document = json.dumps({"keys": [jwk(RSA, "1")]}).encode()
            self.send_response(302 if self.path == "/jwks" else 200)
            self.send_header("location", "/elsewhere")
            self.send_header("content-length", str(len(document)))
            self.end_headers()
            self.wfile.write(document)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(JwksUnavailable, match="answers 302 and leads to /elsewhere: name the document"):
            fetch_jwks(f"http://127.0.0.1:{server.server_port}/jwks")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

    assert asked == ["/jwks"]


@pytest.mark.parametrize("begin", [b"x", b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"])
def test_a_server_that_sends_a_document_byte_by_byte_is_left_in_time(begin: bytes) -> None:
    is_left = threading.Event()
    ended_by_itself = threading.Event()

    def drip() -> None:
        connection, _ = server.accept()
        until_s = monotonic() + 20
        with connection, suppress(OSError):
            connection.sendall(begin)
            while not is_left.wait(0.02):
                connection.sendall(b"x")
                if monotonic() > until_s:
                    ended_by_itself.set()
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(JwksUnavailable, match=r"not there within 0\.3 s"):
            fetch_jwks(f"http://127.0.0.1:{server.getsockname()[1]}/jwks", within_s=0.3)
        is_left.set()
        thread.join()

    assert not ended_by_itself.is_set()
