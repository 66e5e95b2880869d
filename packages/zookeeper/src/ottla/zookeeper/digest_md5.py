"""SASL's DIGEST-MD5 (RFC 2831) as ZooKeeper uses it, both sides, without sockets.

It is the only mechanism beside Kerberos that Apache's ZooKeeper knows, and the only way in which Apache
Kafka's tools show a password. Its strength is MD5's: where others can hear the connection, it belongs inside
TLS. Only `qop=auth` is spoken: neither side protects what follows the login.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import md5
from typing import Final

from ottla.zookeeper.environment import new_secret

REALM: Final = "zk-sasl-md5"
"""The realm and the host of every ZooKeeper server, in place of its own name."""

_MAX_TOKEN_BYTES: Final = 4_096
_DIRECTIVE: Final = re.compile(r'\s*([a-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]*))\s*(?:,+|\Z)', re.ASCII)
_ESCAPED: Final = re.compile(r"\\(.)")


class RefusedLogin(ValueError):
    """The other side's token is malformed, or does not show the password."""


@dataclass
class DigestMd5Client:
    """A login with a password: answers the challenge, then checks that the server knows it, too."""

    username: str
    password: str = field(repr=False)
    service: str = "zookeeper"
    new_nonce: Callable[[], str] = new_secret
    is_complete: bool = False
    _is_begun: bool = False
    _expected: str = field(default="", repr=False)

    def step(self, token: bytes) -> bytes:
        """Return the answer to a token of the server; the first token is empty. Raises RefusedLogin."""
        if not token and not self._is_begun:
            self._is_begun = True
            return b""
        directives = directives_of(token)
        if self._expected:
            if not hmac.compare_digest(directives.get("rspauth", "").encode(), self._expected.encode()):
                raise RefusedLogin("the server does not know the password either")
            self.is_complete = True
            return b""
        return self._answer(directives)

    def _answer(self, challenge: Mapping[str, str]) -> bytes:
        if "auth" not in re.split(r"[\s,]+", challenge.get("qop", "auth")):
            raise RefusedLogin(f"the server wants qop={challenge['qop']}, here only auth is spoken")
        if challenge.get("algorithm") != "md5-sess" or not challenge.get("nonce"):
            raise RefusedLogin("the server's challenge is not one of DIGEST-MD5")
        said = {
            "username": self.username,
            "realm": challenge.get("realm", REALM),
            "nonce": challenge["nonce"],
            "cnonce": self.new_nonce(),
            "nc": "00000001",
            "qop": "auth",
            "digest-uri": f"{self.service}/{REALM}",
        }
        self._expected = _proof(said, self.password, "")
        said["response"] = _proof(said, self.password, "AUTHENTICATE")
        plain = ("nc", "qop", "response")
        parts = [f"{name}={text if name in plain else _quoted(text)}" for name, text in said.items()]
        return ",".join(["charset=utf-8", *parts]).encode()


@dataclass
class DigestMd5Server:
    """The login of one client to a server with one user."""

    username: str
    password: str = field(repr=False)
    new_nonce: Callable[[], str] = new_secret
    is_complete: bool = False
    _nonce: str | None = None
    _is_answered: bool = False

    def step(self, token: bytes) -> bytes:
        """Return the answer to a token of the client; the first one is empty. Raises RefusedLogin."""
        if self._is_answered:
            raise RefusedLogin("the login is over")
        if self._nonce is None:
            self._nonce = self.new_nonce()
            challenge = f'realm="{REALM}",nonce="{self._nonce}",charset=utf-8,algorithm=md5-sess,qop="auth"'
            return challenge.encode()
        said = directives_of(token)
        self._is_answered = True  # one try for each challenge
        if (said.get("nonce"), said.get("nc"), said.get("qop", "auth")) != (self._nonce, "00000001", "auth"):
            raise RefusedLogin("the answer is not one to this challenge")
        expected = _proof(said, self.password, "AUTHENTICATE")
        knows = hmac.compare_digest(said.get("response", "").encode(), expected.encode())
        is_user = hmac.compare_digest(said.get("username", "").encode(), self.username.encode())
        if not (knows and is_user):
            raise RefusedLogin("the user or the password is wrong")
        self.is_complete = True
        return f"rspauth={_proof(said, self.password, '')}".encode()


def directives_of(token: bytes) -> dict[str, str]:
    """Return the directives of a token. Raises RefusedLogin for a malformed one, or for one given twice."""
    try:
        text = token.decode() if len(token) <= _MAX_TOKEN_BYTES else ""
    except UnicodeDecodeError:
        text = ""
    found: dict[str, str] = {}
    position = 0
    while match := _DIRECTIVE.match(text, position):
        name, quoted, plain = match.groups()
        if name in found:
            raise RefusedLogin(f"{name} is given twice")
        found[name] = plain if quoted is None else _ESCAPED.sub(r"\1", quoted)
        position = match.end()
    if not text or position != len(text):
        raise RefusedLogin("a token of DIGEST-MD5 cannot be read")
    return found


def _proof(said: Mapping[str, str], password: str, method: str) -> str:
    """Return the proof of the password: the client's with the method AUTHENTICATE, the server's without."""
    username, realm = said.get("username", ""), said.get("realm", "")
    user = md5(b":".join(map(_hashed_form, (username, realm, password)))).digest()
    nonce, cnonce = said.get("nonce", ""), said.get("cnonce", "")
    parts = [user, nonce.encode(), cnonce.encode()]
    if said.get("authzid"):
        parts.append(said["authzid"].encode())
    session_key = md5(b":".join(parts)).hexdigest()
    purpose = md5(f"{method}:{said.get('digest-uri', '')}".encode()).hexdigest()
    middle = f"{nonce}:{said.get('nc', '')}:{cnonce}:auth"
    return md5(f"{session_key}:{middle}:{purpose}".encode()).hexdigest()


def _hashed_form(text: str) -> bytes:
    """Return the bytes of a name that are hashed: of ISO 8859-1 where that has all its letters."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
