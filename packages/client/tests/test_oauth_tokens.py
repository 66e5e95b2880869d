"""Tokens of an authorization server: asked for once, kept for most of their life, never shown."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from ottla.client.authentication import mechanism_for
from ottla.client.config import ClientConfig
from ottla.client.environment import now_ms
from ottla.client.errors import AuthenticationFailed
from ottla.client.oauth_tokens import TokenCache, TokenSource, TokenUnavailable, fetch_token, kept_for
from ottla.client.security import SecurityConfig
from ottla.client.settings import SettingError, from_properties

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


class AuthorizationServer:
    """Answers each request for a token with the next of `answers`, the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, object]] = [(200, {"access_token": "first", "expires_in": 3_600})]
        self.requests: list[tuple[str, dict[str, list[str]]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                outer.requests.append((self.headers["Authorization"], form))
                code, answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def source(self) -> TokenSource:
        return TokenSource(f"http://127.0.0.1:{self._server.server_port}/token", "me", "s3cret", "kafka")

    def close(self) -> None:
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


def test_a_token_is_kept_for_four_fifths_of_its_life() -> None:
    by_answer, by_claims = kept_for("opaque", 1_000, 100), kept_for(jwt(exp=101), 1_000, None)

    assert (by_answer.fresh_until_ms, by_answer.ends_ms) == (81_000, 101_000)
    assert (by_claims.fresh_until_ms, by_claims.ends_ms) == (81_000, 101_000)
    assert kept_for("opaque", 1_000, None)[1:] == (0, 0)
    assert kept_for("a.%%%.c", 1_000, None)[1:] == (0, 0)


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
    kept = cache._kept[server.source]
    assert kept.token is not None
    kept.token = kept.token._replace(fresh_until_ms=0)

    assert await cache.token(server.source) == "first"

    kept.token = kept.token._replace(ends_ms=1)
    with pytest.raises(TokenUnavailable, match="answered 503"):
        await cache.token(server.source)


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
    file = tmp_path / "token"
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
        ({"sasl_oauthbearer_token_endpoint_url": "https://a/b"}, "needs sasl_oauthbearer_client_cred"),
    ],
)
def test_a_source_that_can_give_no_token_is_refused_at_once(given: dict[str, str], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        SecurityConfig(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", **given)  # type: ignore[arg-type]


def test_credentials_are_quoted_where_the_source_says_so(server: AuthorizationServer) -> None:
    source = server.source._replace(client_id="a b:c", client_secret="d/e%")

    for quotes in (False, True):
        fetch_token(source._replace(quotes_credentials=quotes))

    sent = [base64.b64decode(authorization.split()[1]) for authorization, _ in server.requests]
    assert sent == [b"a b:c:d/e%", b"a+b%3Ac:d%2Fe%25"]


def test_a_server_that_accepts_and_does_not_answer_is_given_up_after_the_read_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/token"
        source = TokenSource(url, "me", "s3cret", connect_timeout_s=60.0, read_timeout_s=0.05)

        with pytest.raises(TokenUnavailable, match=r"cannot be asked for a token: .*timed out"):
            fetch_token(source)
