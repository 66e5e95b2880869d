"""OAUTHBEARER on the server's side (RFC 7628, KIP-255, KIP-768): the exchange, and checks of web tokens.

Signed tokens are checked with PyJWT and the keys of a JWKS document. Tokens without a signature are accepted
only where the JAAS line of the listener has an option `unsecuredValidator…`: anybody can make those.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from ottla.broker.security.sasl.mechanisms import Identity, MalformedToken, TokenRefused
from ottla.protocol.errors import SaslAuthenticationFailed
from ottla.zookeeper.frozen_classes import frozen

MAX_TOKEN_BYTES: Final = 65_536
"""A longer token is refused before anything of it is read."""
MAX_NAME_CHARACTERS: Final = 1_024
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by key pairs alone: with a shared secret, the broker could make tokens, and a public key that is
taken for a secret would let everybody make them."""

_CONTROL_A: Final = b"\x01"
_FIRST: Final = re.compile(
    rb"n,(?:a=(?P<authzid>(?:[^\x00\x01,=]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]*\x01)*)\x01"
)


class InvalidToken(Exception):
    """A token is refused. The reason is for the log of the broker, and has no part of the token."""

    def __init__(self, reason: str, status: str = "invalid_token") -> None:
        super().__init__(reason)
        self.status = status


@frozen
class Claims:
    """The claims of a token that the broker uses."""

    subject: str
    expires_at_ms: int
    issued_at_ms: int | None = None


class Validator(Protocol):
    """Checks tokens. It answers at once: keys are in memory."""

    def check(self, token: str) -> Claims:
        """Return the claims of a token. Raises `InvalidToken`."""
        ...


class OAuthBearerServer:
    """One login by OAUTHBEARER: the token; after a refusal also the client's word that it has seen it."""

    def __init__(self, validator: Validator) -> None:
        self._validator = validator
        self._refusal: InvalidToken | None = None
        self.identity: Identity | None = None

    def evaluate(self, token: bytes) -> bytes:
        """Check the token; a refused one is answered with its status, and the next message ends the login."""
        if self._refusal is not None:
            if token == _CONTROL_A:
                raise TokenRefused(_status(self._refusal), str(self._refusal))
            raise MalformedToken("a message behind a refused token")
        authorization_id, bearer = _read(token)
        try:
            claims = self._validator.check(bearer)
        except InvalidToken as refusal:
            self._refusal = refusal
            return _status(refusal).encode()
        if authorization_id and authorization_id != claims.subject:
            raise SaslAuthenticationFailed(
                f"Authentication failed: Client requested an authorization id ({authorization_id}) that is "
                f"different from the token's principal name ({claims.subject})"
            )
        self.identity = Identity(claims.subject, claims.expires_at_ms)
        return b""


def _status(refusal: InvalidToken) -> str:
    return json.dumps({"status": refusal.status}, separators=(",", ":"))


def _read(message: bytes) -> tuple[str, str]:
    """Return the authorization id and the token of the client's first message. Raises `MalformedToken`."""
    match = _FIRST.fullmatch(message)
    if match is None:
        raise MalformedToken("invalid first message of OAUTHBEARER")
    pairs = dict(pair.partition(b"=")[::2] for pair in match["pairs"].split(_CONTROL_A) if pair)
    scheme, _, token = pairs.get(b"auth", b"").decode("ascii").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise MalformedToken("the first message of OAUTHBEARER has no bearer token")
    try:
        authorization_id = (match["authzid"] or b"").decode()
    except UnicodeDecodeError:
        raise MalformedToken("the authorization id of OAUTHBEARER is not UTF-8") from None
    return authorization_id.replace("=2C", ",").replace("=3D", "="), token.strip()


# ---- claims


@frozen(kw_only=True)
class ClaimRules:
    """The settings `sasl.oauthbearer.*` by which claims are checked."""

    scope_claim_name: str = "scope"
    subject_claim_name: str = "sub"
    clock_skew_ms: int = 30_000
    issuer: str | None = None
    audiences: Sequence[str] = ()
    required_scope: frozenset[str] = frozenset()
    requires_issued_at: bool = True


def claims_in(payload: Mapping[str, Any], rules: ClaimRules, now_ms: float) -> Claims:
    """Check the claims of a token whose signature is right. Raises `InvalidToken`."""
    subject = payload.get(rules.subject_claim_name)
    if not isinstance(subject, str) or not subject.strip():
        raise InvalidToken(f"the claim {rules.subject_claim_name!r} is no text")
    if len(subject) > MAX_NAME_CHARACTERS:
        raise InvalidToken(
            f"the claim {rules.subject_claim_name!r} has over {MAX_NAME_CHARACTERS} characters"
        )
    expires_at_ms = _time_ms(payload, "exp", is_required=True)
    issued_at_ms = _time_ms(payload, "iat", is_required=rules.requires_issued_at)
    not_before_ms = _time_ms(payload, "nbf", is_required=False)
    assert expires_at_ms is not None
    if now_ms - rules.clock_skew_ms >= expires_at_ms:
        raise InvalidToken("the token has expired")
    for name, begins_at_ms in (("iat", issued_at_ms), ("nbf", not_before_ms)):
        if begins_at_ms is not None and begins_at_ms > now_ms + rules.clock_skew_ms:
            raise InvalidToken(f"the claim {name!r} is in the future")
    if issued_at_ms is not None and issued_at_ms > expires_at_ms:
        raise InvalidToken("the token was issued after its end")
    if rules.issuer is not None and payload.get("iss") != rules.issuer:
        raise InvalidToken("the token has another issuer than sasl.oauthbearer.expected.issuer")
    _check_audience(payload.get("aud"), rules)
    _check_scope(payload.get(rules.scope_claim_name), rules)
    return Claims(subject, expires_at_ms, issued_at_ms)


def _time_ms(payload: Mapping[str, Any], name: str, *, is_required: bool) -> int | None:
    seconds = payload.get(name)
    if seconds is None and not is_required:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 2**43:
        raise InvalidToken(f"the claim {name!r} is no time")
    return int(seconds * 1000)


def _check_audience(audience: Any, rules: ClaimRules) -> None:
    given = [audience] if isinstance(audience, str) else audience
    if not rules.audiences:
        return
    if not isinstance(given, list) or not any(name in rules.audiences for name in given):
        raise InvalidToken("the token is for none of sasl.oauthbearer.expected.audience")


def _check_scope(scope: Any, rules: ClaimRules) -> None:
    given = scope.split() if isinstance(scope, str) else [] if scope is None else scope
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise InvalidToken(f"the claim {rules.scope_claim_name!r} is neither text nor a list of texts")
    if not rules.required_scope <= set(given):
        raise InvalidToken("the token lacks a required scope", "insufficient_scope")


# ---- tokens


@frozen
class SigningKey:
    """A public key, and the algorithms by which it may have signed."""

    key: Any
    algorithms: Sequence[str]


class Keys(Protocol):
    """Public keys of an issuer of tokens, by their ids."""

    def find(self, key_id: str | None) -> SigningKey | None:
        """Return the key with an id, or the only key for None; asks for a refresh if there is none."""
        ...


class SignedTokens:
    """Accepts tokens that a key of a JWKS document has signed."""

    def __init__(self, keys: Keys, rules: ClaimRules, now_ms: Callable[[], float]) -> None:
        self._keys = keys
        self._rules = rules
        self._now_ms = now_ms

    def check(self, token: str) -> Claims:
        """Check signature and claims."""
        import jwt

        _check_length(token)
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if algorithm not in ALGORITHMS:
                raise InvalidToken(f"tokens signed by {str(algorithm)[:20]!r} are not accepted")
            if "crit" in header:
                raise InvalidToken("the token has a critical extension")
            key = self._keys.find(key_id)
            if key is None:
                raise InvalidToken("no key for signatures has the id of the token's")
            if algorithm not in key.algorithms:
                raise InvalidToken("the token's algorithm is not one of its key")
            options: Any = dict.fromkeys(_CHECKED_HERE, False)
            payload = jwt.decode(token, key.key, algorithms=[algorithm], options=options)
        except InvalidToken:
            raise
        except jwt.InvalidSignatureError:
            raise InvalidToken("the signature is wrong") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError) as error:
            raise InvalidToken(f"it is no signed token: {type(error).__name__}") from None
        return claims_in(payload, self._rules, self._now_ms())


_CHECKED_HERE: Final = (
    "verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss", "verify_sub", "verify_jti",
)  # fmt: skip
"""PyJWT's checks of claims: they would take `sub` from one name alone, and know no skew of Kafka's."""


def _check_length(token: str) -> None:
    if len(token) > MAX_TOKEN_BYTES:
        raise InvalidToken(f"the token has over {MAX_TOKEN_BYTES} characters")


class UnsecuredTokens:
    """Accepts tokens without a signature (`alg: none`), which anybody can make: for tests of clients."""

    def __init__(self, rules: ClaimRules, now_ms: Callable[[], float]) -> None:
        self._rules = rules
        self._now_ms = now_ms

    def check(self, token: str) -> Claims:
        """Check the claims alone."""
        _check_length(token)
        parts = token.split(".")
        if len(parts) != 3 or parts[2]:
            raise InvalidToken("it is no token without a signature")
        if _json_of(parts[0]).get("alg") != "none":
            raise InvalidToken("the token names an algorithm, and has no signature")
        return unverified_claims(token, self._rules, self._now_ms())


def unverified_claims(token: str, rules: ClaimRules, now_ms: float) -> Claims:
    """Check the claims of a token whose signature does not matter. Raises `InvalidToken`."""
    _check_length(token)
    parts = token.split(".")
    if len(parts) != 3:
        raise InvalidToken("it is no web token")
    return claims_in(_json_of(parts[1]), rules, now_ms)


def _json_of(part: str) -> Mapping[str, Any]:
    try:
        found = json.loads(base64.b64decode(part + "=" * (-len(part) % 4), b"-_", validate=True))
    except (ValueError, RecursionError):
        raise InvalidToken("a part of the token is no JSON") from None
    if not isinstance(found, dict):
        raise InvalidToken("a part of the token is no JSON object")
    return found
