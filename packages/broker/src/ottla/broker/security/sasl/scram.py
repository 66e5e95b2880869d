"""SCRAM-SHA-256 and SCRAM-SHA-512 on the server's side (RFC 5802, RFC 7677), with Kafka's `tokenauth`.

The client learns from the answers neither whether a user exists nor whether its password was nearly right: a
user without credentials gets a salt that always is the same (`UnknownUsers`), and the same work is done for
its proof. Apache Kafka refuses such a user at the first message.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Final

from ottla.broker.security.sasl.mechanisms import Identity, MalformedToken, check_authorization_id
from ottla.zookeeper.frozen_classes import frozen

MAX_ITERATIONS: Final = 16_384
"""The most iterations that AlterUserScramCredentials accepts, as in Kafka."""


@frozen
class ScramHash:
    """One SCRAM mechanism of Kafka."""

    name: str
    algorithm: str
    size: int
    type: int
    """Kafka's number of it in requests."""
    min_iterations: int = 4_096

    def mac(self, key: bytes, message: bytes) -> bytes:
        """Return the HMAC of a message."""
        return hmac.digest(key, message, self.algorithm)

    def digest(self, data: bytes) -> bytes:
        """Return the hash of data."""
        return hashlib.new(self.algorithm, data).digest()


SHA_256: Final = ScramHash("SCRAM-SHA-256", "sha256", 32, 1)
SHA_512: Final = ScramHash("SCRAM-SHA-512", "sha512", 64, 2)
SCRAM_HASHES: Final[Mapping[str, ScramHash]] = {found.name: found for found in (SHA_256, SHA_512)}


@frozen
class ScramCredential:
    """Keys made from a password: enough to check a proof, too little to make one. `repr` shows none."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"

    def encode(self) -> str:
        """Write the credential as Kafka keeps it in ZooKeeper."""
        fields = ("salt", self.salt), ("stored_key", self.stored_key), ("server_key", self.server_key)
        keys = ",".join(f"{name}={base64.b64encode(value).decode()}" for name, value in fields)
        return f"{keys},iterations={self.iterations}"

    @classmethod
    def decode(cls, text: str) -> ScramCredential:
        """Read what `encode` or Kafka wrote. Raises ValueError without a word of the content."""
        fields = dict(item.partition("=")[::2] for item in text.split(","))
        if fields.keys() != {"salt", "stored_key", "server_key", "iterations"}:
            raise ValueError("must have salt, stored_key, server_key and iterations")
        try:
            keys = [_unbase64(fields[name]) for name in ("salt", "stored_key", "server_key")]
            return cls(keys[0], keys[1], keys[2], int(fields["iterations"]))
        except ValueError:
            raise ValueError("has a field that is no base64 or number") from None

    @classmethod
    def from_salted_password(
        cls, kind: ScramHash, salt: bytes, salted_password: bytes, iterations: int
    ) -> ScramCredential:
        """Derive the keys from what a client has hashed already."""
        stored_key = kind.digest(kind.mac(salted_password, b"Client Key"))
        return cls(salt, stored_key, kind.mac(salted_password, b"Server Key"), iterations)

    @classmethod
    def from_password(
        cls, kind: ScramHash, password: str, salt: bytes, iterations: int | None = None
    ) -> ScramCredential:
        """Hash a password; 4,096 iterations take some milliseconds."""
        count = iterations or kind.min_iterations
        salted = hashlib.pbkdf2_hmac(kind.algorithm, password.encode(), salt, count)
        return cls.from_salted_password(kind, salt, salted, count)


def new_salt(random_bits: int) -> bytes:
    """Return a salt of 130 random bits, written as Kafka writes its own."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text, rest = "", random_bits
    while rest:
        rest, digit = divmod(rest, 36)
        text = digits[digit] + text
    return (text or "0").encode()


class UnknownUsers:
    """Credentials that no password fits, for users that have none: one for each name, always the same."""

    def __init__(self, secret: bytes) -> None:
        """`secret` is the same on all brokers: else a client would see a user's salt change between them."""
        self._secret = secret

    def credential(self, kind: ScramHash, username: str) -> ScramCredential:
        """Return the credential for a name."""
        seed = hmac.digest(
            self._secret, f"{kind.name}\0{username}".encode("utf-8", "surrogatepass"), "sha512"
        )
        salt = new_salt(int.from_bytes(seed[:17]) >> 6)
        return ScramCredential(salt, seed[: kind.size], seed[-kind.size :], kind.min_iterations)


# ---- messages

_NAME: Final = r"(?:[^\x00=,]|=2C|=3D)+"
_PRINTABLE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = r"[A-Za-z0-9+/]*={0,2}"
_EXTENSIONS: Final = r"(?:,[A-Za-z]+=[^\x00,]*)*"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<authzid>{_NAME}))?,)"
    rf"(?P<bare>(?:m=[^\x00,]*,)?n=(?P<name>{_NAME}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<unproved>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("no base64") from None


def _matched(pattern: re.Pattern[str], token: bytes, name: str) -> re.Match[str]:
    try:
        found = pattern.fullmatch(token.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise MalformedToken(f"invalid {name} message of SCRAM")
    return found


def _name_of(text: str) -> str:
    return text.replace("=2C", ",").replace("=3D", "=")


@frozen
class ScramUser:
    """A user that may log in: its credential, and the identity that a proof of its password gives."""

    credential: ScramCredential
    identity: Identity


FindUser = Callable[[ScramHash, str, bool], ScramUser | None]
"""Returns a user by mechanism and name; the name is a delegation token's id where the last is true."""


def names_token(message: bytes) -> bool:
    """Whether a client's first message may name a delegation token, whose password has to be hashed."""
    return b"tokenauth=true" in message.lower()


class ScramServer:
    """One login by SCRAM: the client's name and nonce, then its proof."""

    def __init__(
        self, kind: ScramHash, find: FindUser, unknown: UnknownUsers, make_nonce: Callable[[], str]
    ) -> None:
        self._kind = kind
        self._find = find
        self._unknown = unknown
        self._make_nonce = make_nonce
        self._user: ScramUser | None = None
        self._credential: ScramCredential | None = None
        self._nonce = ""
        self._binding = b""
        self._messages = ""
        self.identity: Identity | None = None

    def evaluate(self, token: bytes) -> bytes:
        """Answer name and nonce with the salt, or the proof with the signature of the server."""
        return self._challenge(token) if self._credential is None else self._verify(token, self._credential)

    def _challenge(self, token: bytes) -> bytes:
        first = _matched(_CLIENT_FIRST, token, "first")
        username = _name_of(first["name"])
        extensions = dict(item.partition("=")[::2] for item in first["extensions"].split(",")[1:])
        by_token = extensions.get("tokenauth", "").lower() == "true"
        fake = self._unknown.credential(self._kind, username)  # made always: so it takes the same time
        user = self._find(self._kind, username, by_token)
        if user is not None and user.credential.iterations < self._kind.min_iterations:
            raise MalformedToken(
                f"the credential of {username!r} has {user.credential.iterations} iterations, "
                f"less than {self._kind.min_iterations}"
            )
        if not by_token:
            check_authorization_id(_name_of(first["authzid"] or ""), username)
        self._user, self._credential = user, fake if user is None else user.credential
        self._nonce, self._binding = first["nonce"] + self._make_nonce(), first["header"].encode()
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._messages = f"{first['bare']},{answer}"
        return answer.encode()

    def _verify(self, token: bytes, credential: ScramCredential) -> bytes:
        final = _matched(_CLIENT_FINAL, token, "final")
        # Kafka compares the end only: librdkafka writes its own part twice. The proof covers all of it.
        if not final["nonce"].endswith(self._nonce):
            raise MalformedToken("invalid client nonce in the final message of SCRAM")
        if _bytes_of(final["binding"]) != self._binding:
            raise MalformedToken("another channel binding in the final message of SCRAM than in the first")
        message = f"{self._messages},{final['unproved']}".encode()
        is_proved = self._is_proof(_bytes_of(final["proof"]), message, credential)
        signature = self._kind.mac(credential.server_key, message)
        if not is_proved or self._user is None:
            raise MalformedToken("invalid client credentials")
        self.identity = self._user.identity
        return b"v=" + base64.b64encode(signature)

    def _is_proof(self, proof: bytes, message: bytes, credential: ScramCredential) -> bool:
        kind = self._kind
        if len(proof) != kind.size:
            raise MalformedToken("a proof of another length than that of its hash")
        signature = kind.mac(credential.stored_key, message)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(kind.digest(client_key), credential.stored_key)


def _bytes_of(text: str) -> bytes:
    try:
        return _unbase64(text)
    except ValueError:
        raise MalformedToken("no base64 in the final message of SCRAM") from None
