"""For tests: the settings of a broker with logins, and logins byte for byte over one connection."""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
from typing import Any, Self

from ottla.broker.security.sasl.scram import SCRAM_HASHES
from ottla.client.authentication import Scram
from ottla.protocol.api import RequestHeader, encode_request
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ottla.protocol.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from ottla.protocol.schema import Message

BOUND_S = 60.0

PASSWORD = "correct horse"
"""That of alice, a user of `PLAIN_LINE`."""
PLAIN_LINE = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="admin" password="admin-secret" user_admin="admin-secret" user_alice="{PASSWORD}";'
)
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN_LINE,
}
"""The settings of a broker whose clients log in."""


class Wire:
    """Requests and answers, byte for byte, over one connection."""

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None, source: str = "127.0.0.1") -> None:
        """Connect from an address of this machine, encrypted with `tls`."""
        self._socket = socket.create_connection(("127.0.0.1", port), BOUND_S, source_address=(source, 0))
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="127.0.0.1")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def send_frame(self, frame: bytes) -> None:
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def send(self, request: Message, version: int) -> None:
        self.send_frame(encode_request(RequestHeader(request.API_KEY, version, 7, "wire"), request))

    def frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            received = self._socket.recv(size - len(found))
            if not received:
                raise EOFError
            found += received
        return found

    def ask(self, request: Message, answer: Any, version: int) -> Any:
        self.send(request, version)
        frame = self.frame()
        flexible = request.FLEXIBLE_FROM is not None and version >= request.FLEXIBLE_FROM
        return answer.decode(frame[5 if flexible else 4 :], version)

    def handshake(self, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
        answer: SaslHandshakeResponse = self.ask(
            SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, version
        )
        return answer

    def token(self, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
        answer: SaslAuthenticateResponse = self.ask(
            SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, version
        )
        return answer

    def log_in(self, token: bytes = b"\0admin\0admin-secret", version: int = 2) -> SaslAuthenticateResponse:
        assert self.handshake("PLAIN").error_code == 0
        return self.token(token, version)

    def log_in_by_scram(self, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> int:
        """Log in, for the first time or again; return the error code of the end."""
        client = Scram(mechanism, user, password, "nonce")
        assert self.handshake(mechanism).error_code == 0
        proof = client.answer(self.token(client.first()).auth_bytes)
        assert proof is not None
        return self.token(proof).error_code

    def is_closed(self) -> bool:
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def serves(self) -> bool:
        self.send(HeartbeatRequest(group_id="g", member_id="m"), 0)
        return len(self.frame()) > 0

    def alter(self, **change: Any) -> list[tuple[int, str | None]]:
        request = AlterUserScramCredentialsRequest(**change)
        answer = self.ask(request, AlterUserScramCredentialsResponse, 0)
        return [(result.error_code, result.error_message) for result in answer.results]

    def set_password(self, user: str, password: str, iterations: int = 4096) -> None:
        for name in SCRAM_HASHES:  # one request each: Kafka 4 refuses a user twice in one
            upsertion = upsertion_of(user, name, password, iterations)
            assert [code for code, _ in self.alter(upsertions=[upsertion])] == [0]


def upsertion_of(
    user: str, mechanism: str, password: str, iterations: int = 4096
) -> ScramCredentialUpsertion:
    kind, salt = SCRAM_HASHES[mechanism], b"salt of " + user.encode()
    salted = hashlib.pbkdf2_hmac(kind.algorithm, password.encode(), salt, max(1, min(iterations, 20_000)))
    return ScramCredentialUpsertion(
        name=user, mechanism=kind.type, iterations=iterations, salt=salt, salted_password=salted
    )


def logs_in(port: int, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> bool:
    """Return whether a user may log in by SCRAM."""
    with Wire(port) as wire:
        return wire.log_in_by_scram(user, password, mechanism) == 0
