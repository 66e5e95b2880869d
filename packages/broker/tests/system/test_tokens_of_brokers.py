"""Brokers log in at each other by tokens that end all the time, and refuse a start without one."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from ottla.broker.config.logins import LOGIN_MODULES
from ottla.broker.metrics.registry import Gauge
from ottla.broker.security.sasl.testing import BOUND_S
from ottla.broker.testing import BrokerFailed, BrokerThread, _coordinator_for_tests
from ottla.zookeeper.testing import Background

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
BEARER_LINE = "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config"


class Issuer:
    """An authorization server whose tokens live for a second and a half, for a client `me` with `s3cret`."""

    def __init__(self) -> None:
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                is_known = self.headers["Authorization"] == f"Basic {base64.b64encode(b'me:s3cret').decode()}"
                outer.asked += is_known
                now_s = time.time()
                claims = {"sub": "broker", "iat": now_s, "exp": now_s + 1.5}
                token = jwt.encode(claims, KEY, "RS256", {"kid": "one"})
                body = json.dumps(
                    {"access_token": token} if is_known else {"error": "invalid_client"}
                ).encode()
                self.send_response(200 if is_known else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/token"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(BOUND_S)


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


def of_brokers(kind: str, issuer: Issuer, folder: Path) -> dict[str, str]:
    """Return the settings of a listener where brokers log in by tokens without or with a signature."""
    if kind == "unsecured":
        options = 'unsecuredLoginStringClaim_sub="broker" unsecuredLoginLifetimeSeconds="2"'
        return {"line": f'{options} unsecuredValidatorPrincipalClaimName="sub"'}
    entry = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
    (folder / "jwks.json").write_text(json.dumps({"keys": [{**entry, "kid": "one"}]}))
    return {
        "line": 'clientId="me" clientSecret="s3cret"',
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "jwks.json").as_uri(),
        "sasl.oauthbearer.token.endpoint.url": issuer.url,
        "sasl.login.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
        ),
    }


@pytest.mark.parametrize("kind", ["unsecured", "signed"])
async def test_brokers_log_in_at_each_other_by_tokens_that_end_all_the_time(
    tmp_path: Path, issuer: Issuer, kind: str
) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    settings = of_brokers(kind, issuer, tmp_path)
    line = f"{LOGIN_MODULES['OAUTHBEARER']} required {settings.pop('line')};"
    async with asyncio.timeout(BOUND_S):
        with Background(_coordinator_for_tests()) as coordinator, ExitStack() as stack:
            settings |= {
                "zookeeper.connect": coordinator.value.connect_string,
                "listeners": "PLAINTEXT://127.0.0.1:0,BROKERS://127.0.0.1:0",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:SASL_PLAINTEXT",
                "inter.broker.listener.name": "BROKERS",
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
                "listener.name.brokers.oauthbearer.sasl.jaas.config": line,
                "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
                "super.users": "User:broker;User:ANONYMOUS",
            }
            running = []
            for broker_id in ("1", "2"):
                broker = BrokerThread(tmp_path / broker_id, settings | {"broker.id": broker_id})
                running.append(await asyncio.to_thread(stack.enter_context, broker))
            servers = [broker.bootstrap_servers for broker in running]
            admin = AIOKafkaAdminClient(bootstrap_servers=servers)
            await admin.start()
            topic = NewTopic("t", 2, 2, topic_configs={"min.insync.replicas": "2"})
            await admin.create_topics([topic], timeout_ms=30_000)
            await admin.close()
            async with AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer:
                while min(logins_again(broker) for broker in running) < 2:
                    for partition in range(2):
                        await producer.send_and_wait("t", b"v", partition=partition)

    assert issuer.asked > 2 or kind == "unsecured"


def logins_again(running: BrokerThread) -> float:
    """Return how often other brokers have logged in again, on connections that went on."""
    assert running.broker is not None
    found = running.broker.metrics.get(
        "kafka.server", "socket-server-metrics", "successful-reauthentication-total", listener="BROKERS"
    )
    assert isinstance(found, Gauge)
    return found.value


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ('clientId="me" clientSecret="wrong"', r"no token for 'me': http://\S+ answered 401 invalid_client"),
        ('clientId="me" clientSecret="s3cret"', r"^(?!.*s3cret).*User:broker, which may not perform"),
    ],
)
def test_a_broker_without_a_token_or_permissions_refuses_its_start_in_one_line(
    tmp_path: Path, issuer: Issuer, options: str, problem: str
) -> None:
    settings = of_brokers("signed", issuer, tmp_path)
    with Background(_coordinator_for_tests()) as coordinator:
        settings |= {
            "zookeeper.connect": coordinator.value.connect_string,
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            BEARER_LINE: f"{LOGIN_MODULES['OAUTHBEARER']} required {options};",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:other",
        }
        settings.pop("line")
        with pytest.raises(BrokerFailed, match=problem) as raised:
            BrokerThread(tmp_path / "data", settings).start()
    assert "\n" not in str(raised.value)


def test_a_start_waits_for_the_server_of_tokens(tmp_path: Path, issuer: Issuer) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}/token"
    settings = of_brokers("signed", issuer, tmp_path) | {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        BEARER_LINE: f'{LOGIN_MODULES["OAUTHBEARER"]} required clientId="me" clientSecret="s3cret";',
        "sasl.oauthbearer.token.endpoint.url": closed,
        "sasl.login.retry.backoff.ms": "1",
        "sasl.login.retry.backoff.max.ms": "50",
    }
    settings.pop("line")

    with pytest.raises(BrokerFailed, match=r"OAUTHBEARER: http://\S+ cannot be asked for a token: "):
        BrokerThread(tmp_path / "data", settings).start()
