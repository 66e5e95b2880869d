"""A broker with listeners, users and an authorizer for hostile clients, and what they may not reach."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import jwt
from attack_costs import attack
from cryptography.hazmat.primitives.asymmetric import ec
from measured_broker import MeasuredBroker

from ottla.broker.config.logins import LOGIN_MODULES
from ottla.broker.security.sasl.testing import Wire
from ottla.broker.security.tls.testing import Authority
from ottla.broker.testing import free_port
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.acls import DescribeAclsRequest, DescribeAclsResponse

ADMIN: Final = "admin"
"""A super user."""
PASSWORDS: Final = {ADMIN: "admin-secret", "canary": "canary-secret", "alice": "alice-secret"}
"""The users of PLAIN and SCRAM; `alice` has no rights."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
AUDIENCE: Final = "kafka"
KEY_ID: Final = "key"
MOST_LINES: Final = 200
"""In the log, behind an attack."""
BOUND_S: Final = 60.0
ALL_RULES: Final = DescribeAclsRequest(
    resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
)
MAPPING_RULES: Final = "RULE:^.*OU=(a|a|(a+)+)+b.*$/$1/,RULE:^CN=(.*?),.*$/$1/,DEFAULT"
"""A pattern that takes others exponential time."""


class SecuredBroker(MeasuredBroker):
    """A broker whose port is that of a plain listener for well-behaved clients, where all are super users.

    The listeners for hostile ones are in `ports`: SASL_SSL, SASL_PLAINTEXT, and SSL with client certificates.
    """

    def __init__(self, data_dir: Path, settings: Mapping[str, str] | None = None) -> None:
        self.authority = Authority()
        self.token_key = ec.generate_private_key(ec.SECP256R1())
        self.files = data_dir / "secrets"
        self.files.mkdir(parents=True)
        self.cafile = self.authority.write(self.files / "ca.pem")
        self.keystore = Path(self.authority.sign("broker").write(self.files / "broker.pem"))
        self.ports = {name: free_port("127.0.0.1") for name in ("SASL_SSL", "SASL_PLAINTEXT", "SSL")}
        port = free_port("127.0.0.1")
        super().__init__(data_dir, {**self._secured(port), **(settings or {})})
        self.port = port

    def _secured(self, port: int) -> dict[str, str]:
        entry = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.token_key.public_key()))
        keys = self.files / "jwks.json"
        keys.write_text(json.dumps({"keys": [{**entry, "kid": KEY_ID}]}))
        listeners = {"PLAINTEXT": port, **self.ports}
        users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
        settings = {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.cafile,
            "listener.name.ssl.ssl.client.auth": "requested",
            "listener.name.ssl.ssl.principal.mapping.rules": MAPPING_RULES,
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{ADMIN};User:canary",
            "delegation.token.secret.key": "a key for tokens",
        }
        for name in ("sasl_ssl", "sasl_plaintext"):
            settings[f"listener.name.{name}.plain.sasl.jaas.config"] = (
                f"{LOGIN_MODULES['PLAIN']} required {users};"
            )
        return settings

    def start(self) -> Self:
        super().start()
        with self.wire("SASL_PLAINTEXT") as wire:
            log_in(wire)
            for user, password in PASSWORDS.items():
                wire.set_password(user, password)
        return self

    def trusting(self, *, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts the broker."""
        context = ssl.create_default_context(cafile=self.cafile)
        if version is not None:
            context.minimum_version = context.maximum_version = version
        return context

    def wire(self, listener: str, *, tls: ssl.SSLContext | None = None, source: str = "127.0.0.1") -> Wire:
        """Connect to a listener from an address of this machine; TLS is used where the listener has it."""
        context = (tls or self.trusting()) if listener.endswith("SSL") else None
        return Wire(self.ports[listener], tls=context, source=source)

    def token(self, key: Any = None, algorithm: str = "ES256", **claims: Any) -> str:
        """Return a token for `alice` as the issuer signs it, or with other claims, or another key."""
        now_s = int(time.time())
        fine = {"sub": "alice", "aud": AUDIENCE, "iat": now_s, "exp": now_s + 600, **claims}
        made: str = jwt.encode(fine, self.token_key if key is None else key, algorithm, {"kid": KEY_ID})
        return made

    def check_honest_clients(self) -> None:
        """Raise AssertionError unless users log in by each listener, and a wrong password does not."""
        for listener in ("SASL_SSL", "SASL_PLAINTEXT"):
            with self.wire(listener) as wire:
                log_in(wire)
                assert wire.serves()
            with self.wire(listener) as wire:
                assert wire.handshake("PLAIN").error_code == 0
                assert wire.token(plain(ADMIN, "wrong")).error_code != 0
                assert wire.is_closed()


def plain(user: str, password: str) -> bytes:
    """Return the token of PLAIN."""
    return f"\0{user}\0{password}".encode()


def bearer(token: str) -> bytes:
    """Return the first message of OAUTHBEARER."""
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def unsigned(payload: Mapping[str, Any], algorithm: str = "none") -> str:
    """Return a token without a signature."""

    def part(value: Mapping[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': algorithm, 'kid': KEY_ID})}.{part(payload)}."


def log_in(wire: Wire, user: str = ADMIN) -> None:
    """Log a user in by PLAIN."""
    answer = wire.log_in(plain(user, PASSWORDS[user]))
    assert answer.error_code == 0, answer


# ---- attacks


def secured_attack(name: str) -> Callable[[Callable[[SecuredBroker], None]], object]:
    """Register an attack on a secured broker; behind it honest clients are served, and the log is short."""

    def register(made: Callable[[SecuredBroker], None]) -> object:
        def run(broker: SecuredBroker) -> None:
            made(broker)
            broker.check_honest_clients()
            lines = broker.log_file.read_text(errors="replace").count("\n")
            assert lines <= MOST_LINES, f"{lines:,} lines in the log"

        attack(f"secured: {name}", SecuredBroker)(run)
        return run

    return register


@contextlib.contextmanager
def opened(broker: SecuredBroker, listener: str) -> Iterator[socket.socket]:
    """Connect to a listener, without TLS."""
    with socket.create_connection(("127.0.0.1", broker.ports[listener]), BOUND_S) as plug:
        yield plug


class Framed:
    """Requests over a socket that is connected already."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def versions(self) -> None:
        self._link.sendall(framed(struct.pack(">hhih", 18, 0, 1, -1)))
        assert len(self._link.recv(65_536)) > 50


def handshake_request(mechanism: str) -> bytes:
    return struct.pack(">hhihh", 17, 1, 1, -1, len(mechanism)) + mechanism.encode()


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def assert_closed(plug: socket.socket) -> None:
    """Raise AssertionError unless the broker closes the connection."""
    try:
        while plug.recv(65_536):
            pass
    except ConnectionError:
        return
    except TimeoutError:
        raise AssertionError("the connection stays open") from None


def assert_ends(wire: Wire, ask: Callable[[Wire], object]) -> None:
    """Raise AssertionError unless a request is refused, and the connection closed."""
    with contextlib.suppress(EOFError, ConnectionError):
        assert ask(wire), "what is out of order is accepted"
    assert wire.is_closed()


def assert_without_rights(wire: Wire) -> None:
    """Raise AssertionError if a client may read the rules, which needs a right on the cluster."""
    answer = wire.ask(ALL_RULES, DescribeAclsResponse, 1)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, answer
