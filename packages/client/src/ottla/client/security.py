"""Encryption and authentication: TLS, and SASL by PLAIN, SCRAM and OAUTHBEARER.

Each mechanism is a plain object that turns what the server said into what to say next; `authenticate`
carries its tokens in SaslHandshake and SaslAuthenticate requests (KIP-43, KIP-84, KIP-152, KIP-255).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from ottla.client.aliases import NO_KERBEROS, SECURITY_ALIASES
from ottla.client.errors import AuthenticationFailed
from ottla.client.settings import Alias, SettingError, validate
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    import ssl

    from ottla.client.connection import Connection

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
TokenProvider = Callable[[], Awaitable[str] | str]

MAX_STEPS = 8
# Alerts of TLS that tell a client that its certificate, or the lack of one, is what is wrong.
_ABOUT_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "ACCESS_DENIED")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """How a connection is secured. Names are Kafka's, in snake case."""

    security_protocol: SecurityProtocol = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    ssl_context: ssl.SSLContext | None = None
    """A context of one's own; without it the system's authorities are trusted, or `ssl_cafile`."""
    ssl_cafile: str | None = None
    """A PEM file with the authorities to trust."""
    ssl_certfile: str | None = None
    """A PEM file with this client's certificate."""
    ssl_keyfile: str | None = None
    """A PEM file with the key of that certificate."""
    ssl_check_hostname: bool = True
    """Whether the certificate must carry the host's name."""
    sasl_mechanism: str = "PLAIN"
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."""
    sasl_username: str | None = None
    """Who to be, for PLAIN and SCRAM."""
    sasl_password: str | None = field(default=None, repr=False)
    """The password, for PLAIN and SCRAM."""
    sasl_oauth_token_provider: TokenProvider | None = None
    """Gives a token for OAUTHBEARER when a connection is made: a callable, or what has a method `token`."""
    sasl_oauth_extensions: Mapping[str, str] = field(default_factory=dict)
    """Further keys and values for OAUTHBEARER (KIP-342)."""

    aliases: ClassVar[Mapping[str, Alias]] = SECURITY_ALIASES

    def __post_init__(self) -> None:
        validate(self)
        method = getattr(self.sasl_oauth_token_provider, "token", None)
        if method is not None:
            object.__setattr__(self, "sasl_oauth_token_provider", method)
        _check_files(self)
        _check_protocol(self)
        if self.uses_sasl:
            _check_credentials(self)

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether connections are authenticated with SASL."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def tls_context(self) -> ssl.SSLContext | None:
        """Return what TLS connections are made with, or None for plain ones. Raises OSError for bad files."""
        if not self.uses_tls or self.ssl_context is not None:
            return self.ssl_context if self.uses_tls else None
        import ssl

        context = ssl.create_default_context(cafile=self.ssl_cafile)
        context.check_hostname = self.ssl_check_hostname
        if self.ssl_certfile is not None:
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        return context


def _check_files(config: SecurityConfig) -> None:
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        path = getattr(config, name)
        if path is not None and not Path(path).is_file():
            raise SettingError(f"{name}: there is no file {path!r}")


def _check_protocol(config: SecurityConfig) -> None:
    """Refuse what would have no effect: somebody believes that connections are secured."""
    for name in ("ssl_context", "ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        if getattr(config, name) is not None and not config.uses_tls:
            raise SettingError(_without_effect(name, config, "SSL"))
    for name in ("sasl_username", "sasl_password", "sasl_oauth_token_provider"):
        if getattr(config, name) is not None and not config.uses_sasl:
            raise SettingError(_without_effect(name, config, "SASL_PLAINTEXT"))
    if config.sasl_mechanism != "PLAIN" and not config.uses_sasl:
        raise SettingError(_without_effect("sasl_mechanism", config, "SASL_PLAINTEXT"))


def _without_effect(name: str, config: SecurityConfig, wanted: str) -> str:
    return (
        f"{name} has no effect with security_protocol={config.security_protocol!r}: "
        f"set security_protocol={wanted!r} or 'SASL_SSL'"
    )


def _check_credentials(config: SecurityConfig) -> None:
    if config.sasl_mechanism == "OAUTHBEARER":
        if config.sasl_oauth_token_provider is None:
            raise ValueError("OAUTHBEARER needs sasl_oauth_token_provider")
        return
    if config.sasl_mechanism == "GSSAPI":
        raise SettingError(NO_KERBEROS)
    if config.sasl_mechanism not in ("PLAIN", *SCRAM_HASHES):
        raise ValueError(
            f"sasl_mechanism must be PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, "
            f"not {config.sasl_mechanism!r}"
        )
    if config.sasl_username is None or config.sasl_password is None:
        raise ValueError(f"{config.sasl_mechanism} needs sasl_username and sasl_password")


class Mechanism(Protocol):
    """One authentication: `first()`, then `answer(challenge)` until it returns None."""

    def first(self) -> bytes:
        """Return the token that opens the exchange."""
        ...

    def answer(self, challenge: bytes) -> bytes | None:
        """Return what to say to a challenge, or None when nothing more is to be said."""
        ...


class Plain:
    """Name and password in clear (RFC 4616): for encrypted connections."""

    def __init__(self, username: str, password: str) -> None:
        self._token = b"\0" + username.encode() + b"\0" + password.encode()

    def first(self) -> bytes:
        """Return name and password."""
        return self._token

    def answer(self, challenge: bytes) -> bytes | None:
        """Have nothing more to say."""
        return None


class OAuthBearer:
    """A token somebody else issued (RFC 7628)."""

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        pairs = "".join(f"{key}={value}\x01" for key, value in (extensions or {}).items())
        self._token = f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode()

    def first(self) -> bytes:
        """Return the token."""
        return self._token

    def answer(self, challenge: bytes) -> bytes | None:
        """Acknowledge the server's complaint, if it has one, so that it ends the exchange with an error."""
        return b"\x01" if challenge else None


SCRAM_HASHES: dict[str, Callable[..., hashlib._Hash]] = {
    "SCRAM-SHA-256": hashlib.sha256,
    "SCRAM-SHA-512": hashlib.sha512,
}
# Kafka's own least. Fewer would make the proof cheap to guess from, for whoever poses as the broker.
MIN_ITERATIONS = 4_096
MAX_ITERATIONS = 1_000_000


class Scram:
    """Proof of a password that never travels, and of the server's knowledge of it (RFC 5802)."""

    def __init__(self, mechanism: str, username: str, password: str, nonce: str) -> None:
        self._hash = SCRAM_HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={escaped},r={nonce}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        """Return name and nonce."""
        return f"n,,{self._first_bare}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """Prove the password, then check that the server knows it too. Raises AuthenticationFailed."""
        fields = _scram_fields(challenge)
        if "e" in fields:
            raise AuthenticationFailed(f"the broker refused the login: {fields['e']}")
        try:
            if self._server_signature is None:
                return self._prove(challenge, fields)
            self._check(fields)
        except (KeyError, ValueError) as error:
            raise AuthenticationFailed(f"the broker's SCRAM message makes no sense: {error!r}") from error
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


async def mechanism_for(config: SecurityConfig) -> Mechanism:
    """Make the mechanism a configuration asks for, with a fresh nonce or token."""
    if config.sasl_mechanism == "OAUTHBEARER":
        assert config.sasl_oauth_token_provider is not None
        token = config.sasl_oauth_token_provider()
        if isawaitable(token):
            token = await token
        return OAuthBearer(token, config.sasl_oauth_extensions)
    username, password = config.sasl_username or "", config.sasl_password or ""
    if config.sasl_mechanism == "PLAIN":
        return Plain(username, password)
    return Scram(config.sasl_mechanism, username, password, secrets.token_urlsafe(24))


async def authenticate(connection: Connection, config: SecurityConfig) -> int:
    """Log in, or log in again; return for how many ms the login lasts, 0 for as long as one likes.

    Raises AuthenticationFailed with the broker's words.
    """
    mechanism = await mechanism_for(config)
    handshake = await connection.send_ahead(
        SaslHandshakeRequest(mechanism=config.sasl_mechanism), SaslHandshakeResponse, min_version=1
    )
    if handshake.error_code != ErrorCode.NONE:
        offered = ", ".join(handshake.mechanisms) or "none"
        raise AuthenticationFailed(f"the broker does not take {config.sasl_mechanism}; it takes {offered}")
    token = mechanism.first()
    for _ in range(MAX_STEPS):
        request = SaslAuthenticateRequest(auth_bytes=token)
        reply = await connection.send_ahead(request, SaslAuthenticateResponse)
        if reply.error_code != ErrorCode.NONE:
            reason = reply.error_message or ErrorCode(reply.error_code).name
            raise AuthenticationFailed(f"the broker refused the login: {reason}")
        further = mechanism.answer(bytes(reply.auth_bytes))
        if further is None:
            return reply.session_lifetime_ms
        token = further
    raise AuthenticationFailed(f"{config.sasl_mechanism} did not come to an end in {MAX_STEPS} steps")


def renewal_s(lifetime_ms: int, chance: float) -> float:
    """Return after how many seconds to renew a login: at 85 to 95 % of its life, as Java's clients do.

    `chance` from 0 to 1 keeps the connections of a client from renewing all at once.
    """
    return lifetime_ms * (0.85 + 0.1 * chance) / 1_000


def distrust(error: BaseException) -> str | None:
    """Say which side does not trust the other's certificate, or None where that was not it."""
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the broker's certificate is not trusted: {error.verify_message}; "
            "ssl_cafile says whom to trust, ssl_check_hostname whether the name counts"
        )
    reason = str(getattr(error, "reason", None) or "") if isinstance(error, ssl.SSLError) else ""
    if "ALERT" in reason and any(word in reason for word in _ABOUT_CERTIFICATES):
        return f"the broker does not take our certificate ({reason}); ssl_certfile and ssl_keyfile give one"
    return None
