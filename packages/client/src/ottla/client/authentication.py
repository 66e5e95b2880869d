"""Authenticate a connection with SASL: PLAIN, SCRAM, OAUTHBEARER, GSSAPI (KIP-43, KIP-84, KIP-152, KIP-255).

Each mechanism is a plain object that turns a challenge of the broker into the next token; `authenticate`
carries the tokens in SaslHandshake and SaslAuthenticate requests.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from ottla.client.environment import login_threads, nonce
from ottla.client.errors import AuthenticationFailed, UnsupportedByBroker
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ottla.protocol.schema import Message

if TYPE_CHECKING:
    from ottla.client.security import SecurityConfig, TokenProvider

R = TypeVar("R", bound=Message)
T = TypeVar("T")

MAX_STEPS = 8
# Alerts of TLS by which a broker refuses a client's certificate, or the lack of one.
_ABOUT_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "ACCESS_DENIED")


class Requester(Protocol):
    """The part of a connection that a login needs."""

    async def send_ahead(
        self, request: Message, response_type: type[R], *, min_version: int | None = None
    ) -> R:
        """Send a request of a login, ahead of all requests that wait for the login."""
        ...


class Mechanism(Protocol):
    """One authentication exchange: `first()`, then `answer(challenge)` until it returns None."""

    blocks: ClassVar[bool]
    """Whether its steps may wait for a server, or compute for long."""

    def first(self) -> bytes:
        """Return the token that opens the exchange."""
        ...

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the response to a challenge, or None when the exchange is over."""
        ...


class Plain:
    """PLAIN: name and password in clear text (RFC 4616), for encrypted connections."""

    blocks: ClassVar[bool] = False

    def __init__(self, username: str, password: str) -> None:
        self._token = b"\0" + username.encode() + b"\0" + password.encode()

    def first(self) -> bytes:
        """Return name and password."""
        return self._token

    def answer(self, challenge: bytes) -> bytes | None:
        """End the exchange: PLAIN has one message."""
        return None


class OAuthBearer:
    """OAUTHBEARER: a token that an authorization server issued (RFC 7628)."""

    blocks: ClassVar[bool] = False

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        self.bearer = token
        pairs = "".join(f"{key}={value}\x01" for key, value in (extensions or {}).items())
        self._token = f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode()

    def first(self) -> bytes:
        """Return the token."""
        return self._token

    def answer(self, challenge: bytes) -> bytes | None:
        """Acknowledge the server's error, if it sent one, so that it ends the exchange with that error."""
        return b"\x01" if challenge else None


SCRAM_HASHES: dict[str, Callable[..., hashlib._Hash]] = {
    "SCRAM-SHA-256": hashlib.sha256,
    "SCRAM-SHA-512": hashlib.sha512,
}
# Kafka's own minimum. With fewer iterations an impostor could guess the password from the proof.
MIN_ITERATIONS = 4_096
MAX_ITERATIONS = 1_000_000


class Scram:
    """SCRAM: both sides prove that they know the password without sending it (RFC 5802)."""

    blocks: ClassVar[bool] = True
    """To hash a password takes 1 ms with 4,096 iterations, and half a second with the most allowed."""

    def __init__(
        self, mechanism: str, username: str, password: str, nonce: str, *, token_auth: bool = False
    ) -> None:
        """With `token_auth` they are the id and the HMAC of a delegation token."""
        self._hash = SCRAM_HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={escaped},r={nonce}" + (",tokenauth=true" if token_auth else "")
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        """Return name and nonce."""
        return f"n,,{self._first_bare}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """Send the proof, then check the server's signature. Raises AuthenticationFailed."""
        fields = _scram_fields(challenge)
        if "e" in fields:
            raise AuthenticationFailed(f"the broker refused the login: {fields['e']}")
        try:
            if self._server_signature is None:
                return self._prove(challenge, fields)
            self._check(fields)
        except (KeyError, ValueError) as error:
            raise AuthenticationFailed(f"the broker's SCRAM message is malformed: {error!r}") from error
        return None

    def _prove(self, challenge: bytes, fields: Mapping[str, str]) -> bytes:
        nonce, iterations = fields["r"], int(fields["i"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationFailed("the broker's SCRAM nonce does not continue ours")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise AuthenticationFailed(
                f"the broker asks for {iterations} SCRAM iterations, not {MIN_ITERATIONS} to {MAX_ITERATIONS}"
            )
        name = self._hash().name
        salted = hashlib.pbkdf2_hmac(name, self._password, base64.b64decode(fields["s"]), iterations)
        client_key = self._mac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        message = b",".join((self._first_bare.encode(), challenge, without_proof.encode()))
        signature = self._mac(self._hash(client_key).digest(), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._mac(self._mac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _check(self, fields: Mapping[str, str]) -> None:
        assert self._server_signature is not None
        if not hmac.compare_digest(base64.b64decode(fields["v"]), self._server_signature):
            raise AuthenticationFailed("the broker does not know the password: it may be another server")

    def _mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


def _scram_fields(message: bytes) -> dict[str, str]:
    pairs = (part.partition("=") for part in message.decode("utf-8", "replace").split(","))
    return {key: value for key, _, value in pairs}


async def mechanism_for(config: SecurityConfig, host: str = "") -> Mechanism:
    """Return the mechanism that a config names, with a fresh nonce or token, for a login at a host."""
    if config.sasl_mechanism == "OAUTHBEARER":
        return OAuthBearer(await _bearer_token(config), config.sasl_oauth_extensions)
    if config.sasl_mechanism == "GSSAPI":
        from ottla.client.kerberos import Kerberos

        return Kerberos(
            config.sasl_kerberos_service_name or "",
            config.sasl_kerberos_domain_name or host,
            config.sasl_kerberos_principal,
            config.sasl_kerberos_keytab,
        )
    username, password = config.sasl_username or "", config.sasl_password or ""
    if config.sasl_mechanism == "PLAIN":
        return Plain(username, password)
    return Scram(config.sasl_mechanism, username, password, nonce(), token_auth=config.sasl_token_auth)


async def _bearer_token(config: SecurityConfig) -> str:
    if config.sasl_oauth_token_provider is None:
        from ottla.client.oauth_tokens import TOKENS

        assert config.token_source is not None
        return await TOKENS.token(config.token_source)
    from ottla.client.oauth_tokens import is_token

    found = await _provided(config.sasl_oauth_token_provider)
    if not is_token(found):
        raise AuthenticationFailed("sasl_oauth_token_provider returned no token, which is a text")
    return found


async def _provided(provider: TokenProvider) -> object:
    """Return the result of a provider: one that is not `async` may ask a server, and runs on a thread."""
    if iscoroutinefunction(provider):
        return await provider()
    context = copy_context()
    found = await asyncio.get_running_loop().run_in_executor(login_threads(), context.run, provider)
    return await found if isawaitable(found) else found


async def authenticate(connection: Requester, config: SecurityConfig, host: str = "") -> int:
    """Authenticate at a host, first or again; return the login's lifetime in ms, 0 for unlimited.

    Raises AuthenticationFailed with the broker's message.
    """
    mechanism = await mechanism_for(config, host)
    handshake = await _handshake(connection, config)
    if handshake.error_code != ErrorCode.NONE:
        offered = ", ".join(handshake.mechanisms) or "none"
        raise AuthenticationFailed(
            f"the broker does not accept {config.sasl_mechanism}; it accepts {offered}"
        )
    token = await _step(mechanism, mechanism.first)
    for _ in range(MAX_STEPS):
        request = SaslAuthenticateRequest(auth_bytes=token)
        reply = await connection.send_ahead(request, SaslAuthenticateResponse)
        if reply.error_code != ErrorCode.NONE:
            reason = reply.error_message or ErrorCode(reply.error_code).name
            if isinstance(mechanism, OAuthBearer) and config.token_source is not None:
                from ottla.client.oauth_tokens import TOKENS

                TOKENS.forget(config.token_source, mechanism.bearer)
            raise AuthenticationFailed(f"the broker refused the login: {reason}")
        further = await _step(mechanism, partial(mechanism.answer, bytes(reply.auth_bytes)))
        if further is None:
            return reply.session_lifetime_ms
        token = further
    raise AuthenticationFailed(f"{config.sasl_mechanism} did not end within {MAX_STEPS} steps")


async def _step(mechanism: Mechanism, step: Callable[[], T]) -> T:
    """Return the result of a step; on a thread if it asks a server, as Kerberos, or hashes, as SCRAM."""
    if not mechanism.blocks:
        return step()
    if isinstance(mechanism, Scram):
        return await asyncio.to_thread(step)
    return await asyncio.get_running_loop().run_in_executor(login_threads(), step)


async def _handshake(connection: Requester, config: SecurityConfig) -> SaslHandshakeResponse:
    request = SaslHandshakeRequest(mechanism=config.sasl_mechanism)
    try:
        return await connection.send_ahead(request, SaslHandshakeResponse, min_version=1)
    except UnsupportedByBroker as error:
        if error.is_served:
            raise
        without = "SSL" if config.uses_tls else "PLAINTEXT"
        raise AuthenticationFailed(
            f"the broker knows no logins (SASL): connect with security.protocol={without}, "
            f"not {config.security_protocol}"
        ) from error


def renewal_s(lifetime_ms: int, chance: float) -> float:
    """Return the seconds after which to renew a login: 85 to 95 % of its lifetime, as Java's clients do.

    `chance` from 0 to 1 keeps the connections of a client from renewing all at once.
    """
    return lifetime_ms * (0.85 + 0.1 * chance) / 1_000


def certificate_problem(error: BaseException) -> str | None:
    """Return which side rejected the other's certificate, or None for any other error."""
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the broker's certificate is not trusted: {error.verify_message}; "
            "ssl_cafile names trusted authorities, ssl_check_hostname=False ignores the host name"
        )
    reason = str(getattr(error, "reason", None) or "") if isinstance(error, ssl.SSLError) else ""
    if "ALERT" in reason and any(word in reason for word in _ABOUT_CERTIFICATES):
        return f"the broker rejected our certificate ({reason}); set ssl_certfile and ssl_keyfile"
    return None
