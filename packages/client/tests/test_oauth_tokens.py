"""Tokens of an authorization server: asked for once, kept for most of their life, never shown."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from ottla.client.authentication import mechanism_for
from ottla.client.config import ClientConfig
from ottla.client.environment import now_ms
from ottla.client.errors import AuthenticationFailed
from ottla.client.oauth_tokens import (
    AFTER_FAILURE_MS,
    RefreshRules,
    TokenCache,
    TokenSource,
    TokenUnavailable,
    fetch_token,
    kept_for,
)
from ottla.client.retry import Backoff
from ottla.client.security import SecurityConfig
from ottla.client.settings import SettingError, from_properties
from peers.certificates import Authority, missing_openssl

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
REDIRECTS = (301, 302, 303, 307, 308)
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class AuthorizationServer:
    """Answers each request for a token with the next of `answers`, the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, object]] = [(200, {"access_token": "first", "expires_in": 3_600})]
        self.requests: list[tuple[str | None, dict[str, list[str]]]] = []
        self.location = ""
        self.bytes_kept_back = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"] or 0)).decode())
                outer.requests.append((self.headers["Authorization"], form))
                outer.may_answer.wait(60)
                code, answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(code)
                if code in REDIRECTS:
                    self.send_header("Location", outer.location)
                self.send_header("Content-Length", str(len(body) + outer.bytes_kept_back))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def source(self) -> TokenSource:
        return TokenSource(f"http://127.0.0.1:{self._server.server_port}/token", "me", "s3cret", "kafka")

    def encrypt(self, certfile: Path, keyfile: Path) -> None:
        """Speak TLS on connections from now on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certfile, keyfile)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture
def server() -> Iterator[AuthorizationServer]:
    server = AuthorizationServer()
    yield server
    server.close()


def jwt(**claims: object) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({}, claims)]
    return b".".join([*parts, b"sig"]).decode()


async def test_many_logins_at_once_ask_for_one_token_with_the_clients_credentials(
    server: AuthorizationServer,
) -> None:
    cache = TokenCache()

    found = await asyncio.gather(*(cache.token(server.source) for _ in range(8)))

    assert set(found) == {"first"}
    assert server.requests == [
        (
            f"Basic {base64.b64encode(b'me:s3cret').decode()}",
            {"grant_type": ["client_credentials"], "scope": ["kafka"]},
        )
    ]


async def test_a_token_past_most_of_its_life_is_replaced(server: AuthorizationServer) -> None:
    server.answers = [
        (200, {"access_token": jwt(exp=now_ms() // 1_000 - 5)}), (200, {"access_token": "second"}),
    ]  # fmt: skip
    cache = TokenCache()

    first, second = await cache.token(server.source), await cache.token(server.source)

    assert (first != second, second) == (True, "second")


@pytest.mark.parametrize(
    ("issued_before_ms", "left_ms", "chance", "due_after_ms"),
    [
        (0, HOUR_MS, 0.0, 0.8 * HOUR_MS),
        (0, HOUR_MS, 1.0, 0.85 * HOUR_MS),
        (None, HOUR_MS, 0.0, 0.8 * HOUR_MS),  # begins now
        (HOUR_MS / 2, HOUR_MS / 2, 0.0, 0.3 * HOUR_MS),  # its share counts from its beginning
        (0.9 * HOUR_MS, 0.1 * HOUR_MS + 1, 0.0, 60_000),  # the least time; the share is over
        (0, 1_000_000, 0.0, 700_000),  # the buffer begins before the share is over
        (0, 300_000, 0.0, 240_000),  # shorter than least time and buffer together: both are ignored
        (0, 1_000, 0.0, 800),
        (HOUR_MS, -1, 0.0, AFTER_FAILURE_MS),
    ],
)
def test_the_next_token_comes_when_kafkas_rule_has_it(
    issued_before_ms: float | None, left_ms: float, chance: float, due_after_ms: float
) -> None:
    began_ms = None if issued_before_ms is None else NOW_MS - issued_before_ms
    due_ms = RefreshRules().due_ms(began_ms, NOW_MS + left_ms, NOW_MS, chance)

    assert due_ms - NOW_MS == pytest.approx(due_after_ms, abs=2)


def test_a_token_is_kept_by_the_rule_for_the_servers_answer_or_its_own_claims() -> None:
    rules = RefreshRules(window_factor=0.5, window_jitter=0.2, min_period_s=0, buffer_s=0)
    opaque = kept_for("opaque", 1_000, 100, rules)
    claimed = kept_for(jwt(exp=101), 1_000, None, rules)
    begun = kept_for(jwt(iat=-99, exp=101), 1_000, None, rules, 0.5)

    assert (opaque.fresh_until_ms, opaque.ends_ms) == (51_000, 101_000)
    assert (claimed.fresh_until_ms, claimed.ends_ms) == (51_000, 101_000)
    assert begun.fresh_until_ms == pytest.approx(21_000)
    for text in ("opaque", "a.%%%.c", jwt(iat=1), f"a.{base64.b64encode(b'[' * 100_000).decode()}.c"):
        assert kept_for(text, 1_000, None, rules)[1:] == (0, 0)


async def test_a_refused_token_is_forgotten_but_not_a_newer_one(server: AuthorizationServer) -> None:
    server.answers.append((200, {"access_token": "second", "expires_in": 60}))
    cache = TokenCache()

    await cache.token(server.source)
    cache.forget(server.source, "another")
    assert await cache.token(server.source) == "first"
    cache.forget(server.source, "first")
    assert await cache.token(server.source) == "second"


async def test_the_old_token_serves_while_the_server_fails(server: AuthorizationServer) -> None:
    server.answers = [(200, {"access_token": "first", "expires_in": 3_600}), (503, b"busy")]
    cache = TokenCache()
    await cache.token(server.source)
    change_kept(cache, server.source, fresh_until_ms=0)

    assert await cache.token(server.source) == "first"

    change_kept(cache, server.source, ends_ms=1)
    with pytest.raises(TokenUnavailable, match="answered 503"):
        await cache.token(server.source)


def change_kept(cache: TokenCache, source: TokenSource, **times: Any) -> None:
    """Change the times of the kept token."""
    kept = cache._of(source)
    assert kept.token is not None
    kept.token = kept.token._replace(**times)


async def test_the_old_token_serves_while_the_server_is_silent(server: AuthorizationServer) -> None:
    server.answers.append((200, {"access_token": "second", "expires_in": 60}))
    cache = TokenCache(old_serves_after_s=0.01)
    await cache.token(server.source)
    change_kept(cache, server.source, fresh_until_ms=0)
    server.may_answer.clear()

    assert await cache.token(server.source) == "first"
    change_kept(cache, server.source, ends_ms=1)
    waiting = [asyncio.create_task(cache.token(server.source)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting.pop().cancel()  # its end is not that of the others
    server.may_answer.set()

    assert await asyncio.gather(*waiting) == ["second", "second"]
    assert len(server.requests) == 2


async def test_a_server_that_failed_is_left_alone_for_the_backoff(server: AuthorizationServer) -> None:
    server.answers = [(503, b""), (200, {"access_token": "first", "expires_in": 60})]
    cache = TokenCache()
    for first_ms, requests in ((60_000, 1), (0, 2)):
        source = server.source._replace(backoff=Backoff(first_ms, 60_000))
        server.answers.insert(0, (503, b""))
        server.requests.clear()

        with pytest.raises(TokenUnavailable, match="answered 503"):
            await cache.token(source)
        with suppress(TokenUnavailable):
            await cache.token(source)

        assert len(server.requests) == requests


@pytest.mark.parametrize("code", REDIRECTS)
async def test_no_redirect_takes_the_clients_secret_to_another_host(
    server: AuthorizationServer, code: int
) -> None:
    other = AuthorizationServer()
    server.answers, server.location = [(code, b"")], other.source.url
    try:
        with pytest.raises(
            AuthenticationFailed, match=rf"/token answered {code}, .* follow it to {other.source.url}"
        ):
            await TokenCache().token(server.source)
    finally:
        other.close()

    assert other.requests == []


async def test_an_answer_that_is_cut_short_may_be_whole_the_next_time(server: AuthorizationServer) -> None:
    server.bytes_kept_back = 10

    with pytest.raises(TokenUnavailable, match="its answer was cut short"):
        await TokenCache().token(server.source)


def test_a_server_that_answers_byte_by_byte_is_given_up_after_the_read_timeout() -> None:
    def trickle(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            while True:
                connection.sendall(b"HTTP/1.1 200 OK\r\nA: ")
                for _ in range(200):
                    connection.sendall(b"x")
                    threading.Event().wait(0.01)
                connection.sendall(b"\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=trickle, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/token"

        with pytest.raises(TokenUnavailable, match=r"timed out, without an answer in 0\.2 s"):
            fetch_token(TokenSource(url, "me", "s3cret", read_timeout_s=0.2))
        thread.join(60)

    assert not thread.is_alive()


@pytest.mark.parametrize("kind", ["PEM file", "PEM text", "PKCS#12 file"])
def test_the_token_endpoint_is_trusted_by_the_authorities_of_the_brokers(
    server: AuthorizationServer, tmp_path: Path, kind: str
) -> None:
    if missing := missing_openssl():
        pytest.skip(missing)
    authority = Authority(tmp_path)
    server.encrypt(*authority.sign("127.0.0.1"))
    store = tmp_path / "authority.p12"
    export = ("openssl", "pkcs12", "-export", "-nokeys", "-in", authority.cafile, "-out", store)
    subprocess.run([*export, "-passout", "pass:kaffee"], check=True, capture_output=True, timeout=60)
    trusted: dict[str, dict[str, Any]] = {
        "PEM file": {"ssl_cafile": str(authority.cafile)},
        "PEM text": {"ssl_truststore_certificates": authority.cafile.read_text()},
        "PKCS#12 file": {"ssl_cafile": str(store), "ssl_truststore_password": "kaffee"},
    }
    settings: dict[str, Any] = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": server.source.url.replace("http:", "https:"),
        "sasl_oauthbearer_client_credentials_client_id": "me",
        "sasl_oauthbearer_client_credentials_client_secret": "s3cret",
    }
    source, stranger = (SecurityConfig(**(settings | more)).token_source for more in (trusted[kind], {}))
    assert source is not None
    assert stranger is not None

    assert fetch_token(source).text == "first"
    with pytest.raises(TokenUnavailable, match="unable to get local issuer certificate"):
        fetch_token(stranger)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (
            (401, {"error": "invalid_client", "error_description": "no\nsuch client"}),
            AuthenticationFailed,
            "no token for 'me': .* answered 401 invalid_client: nosuch client",
        ),
        ((400, b"<html>"), AuthenticationFailed, "answered 400"),
        ((500, b""), TokenUnavailable, "answered 500"),
        ((200, {"token": "x"}), AuthenticationFailed, "without an access_token"),
        ((200, {"access_token": "a\x01b"}), AuthenticationFailed, "without an access_token"),
        ((200, b"[]"), AuthenticationFailed, "did not answer with a JSON object"),
        ((200, b"{"), AuthenticationFailed, "did not answer with a JSON object"),
        ((200, b"[" * 100_000), AuthenticationFailed, "did not answer with a JSON object"),
        ((400, b"[" * 100_000), AuthenticationFailed, "answered 400"),
    ],
)
async def test_a_server_that_gives_no_token_is_named_and_the_secret_is_not(
    server: AuthorizationServer, answer: tuple[int, object], error: type[Exception], words: str
) -> None:
    server.answers = [answer]

    with pytest.raises(error, match=words) as caught:
        await TokenCache().token(server.source)

    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(server.source)
    assert "\n" not in str(caught.value)


async def test_a_server_that_is_not_there_may_come_back() -> None:
    with pytest.raises(TokenUnavailable, match="cannot be asked for a token: Connection refused"):
        await TokenCache().token(TokenSource("http://127.0.0.1:1/token", "me", "s3cret"))


async def test_a_tokens_file_is_read_at_each_login(tmp_path: Path) -> None:
    file = tmp_path / "the token"
    config = SecurityConfig(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url=file.as_uri(),
    )
    with pytest.raises(AuthenticationFailed, match="token cannot be read: No such file"):
        await mechanism_for(config)

    for text in ("one", "two"):
        file.write_text(f"{text}\n")
        assert f"Bearer {text}\x01".encode() in (await mechanism_for(config)).first()
    file.write_text("\n")
    with pytest.raises(AuthenticationFailed, match="holds no token"):
        await mechanism_for(config)


@pytest.mark.parametrize(
    "properties",
    [
        {
            "sasl.jaas.config": f'{MODULE} required clientId="me" clientSecret="s3\\"cret" scope="kafka" '
            'extension_tenant="a";',
        },
        {
            "sasl.oauthbearer.client.credentials.client.id": "me",
            "sasl.oauthbearer.client.credentials.client.secret": 's3"cret',
            "sasl.oauthbearer.scope": "kafka",
            "sasl.jaas.config": f"{MODULE} required;",
            "sasl.oauthbearer.extensions": "tenant=a",
        },
        {
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": 's3"cret',
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.extensions": "tenant=a",
        },
    ],
)
def test_settings_of_java_and_librdkafka_name_the_same_source(properties: dict[str, str]) -> None:
    common = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
    }

    config = from_properties(ClientConfig, common | properties).security

    assert config.token_source == TokenSource("https://login.example.com/token", "me", 's3"cret', "kafka")
    assert config.sasl_oauth_extensions == {"tenant": "a"}
    assert 's3"cret' not in repr(config)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "needs sasl_oauthbearer_token_endpoint_url or sasl_oauth_token_provider"),
        ({"sasl_oauthbearer_token_endpoint_url": "ftp://a/b"}, "must be an https, http or file URL"),
        ({"sasl_oauthbearer_token_endpoint_url": "https:///b"}, "must be an https, http or file URL"),
        (
            {"sasl_oauthbearer_token_endpoint_url": "https://me:s3cret@a/b"},
            "must not have a user or a password",
        ),
        ({"sasl_oauthbearer_token_endpoint_url": "https://a/b"}, "needs sasl_oauthbearer_client_cred"),
    ],
)
def test_a_source_that_can_give_no_token_is_refused_at_once(given: dict[str, str], words: str) -> None:
    with pytest.raises(SettingError, match=words) as refused:
        SecurityConfig(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", **given)  # type: ignore[arg-type]

    assert "s3cret" not in str(refused.value)


def test_credentials_are_quoted_where_the_source_says_so(server: AuthorizationServer) -> None:
    source = server.source._replace(client_id="a b:c", client_secret="d/e%")

    for quotes in (False, True):
        fetch_token(source._replace(quotes_credentials=quotes))

    sent = [base64.b64decode((authorization or "").split()[1]) for authorization, _ in server.requests]
    assert sent == [b"a b:c:d/e%", b"a+b%3Ac:d%2Fe%25"]


def test_a_server_that_accepts_and_does_not_answer_is_given_up_after_the_read_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/token"
        source = TokenSource(url, "me", "s3cret", connect_timeout_s=60.0, read_timeout_s=0.05)

        with pytest.raises(TokenUnavailable, match=r"cannot be asked for a token: .*timed out"):
            fetch_token(source)
