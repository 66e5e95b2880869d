"""Tokens for OAUTHBEARER from an authorization server, by client credentials, or from a file (KIP-768).

A token is kept for 80 % of its life, for all clients of the process that log in alike: a hundred connections
that begin at once ask the server once. Later logins ask again. While the server fails, the old token serves
until it ends.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

from ottla.client.environment import now_ms
from ottla.client.errors import AuthenticationFailed, ClientError
from ottla.client.settings import SettingError

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from urllib.request import OpenerDirector, Request

FRESH_SHARE: Final = 0.8
_TIMEOUT_S: Final = 10.0
_MAX_ANSWER_BYTES: Final = 1_000_000
_MAX_REASON_LENGTH: Final = 200


class TokenUnavailable(ClientError):
    """The authorization server did not answer, or failed; it may answer later."""

    retriable = True


class TokenSource(NamedTuple):
    """Where tokens come from: an https or http URL with client credentials, or a file URL."""

    url: str
    client_id: str | None = None
    client_secret: str | None = None
    scope: str | None = None
    cafile: str | None = None
    connect_timeout_s: float = _TIMEOUT_S
    read_timeout_s: float = _TIMEOUT_S
    quotes_credentials: bool = False
    """Whether id and secret are URL-encoded before they are joined, as RFC 6749 has it."""

    def check(self) -> None:
        """Raise SettingError if no token can come from here."""
        parts, name = urlsplit(self.url), "sasl_oauthbearer_token_endpoint_url"
        if parts.scheme == "file":
            return
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise SettingError(f"{name} must be an https, http or file URL, not {self.url!r}")
        if self.client_id is None or self.client_secret is None:
            raise SettingError(
                f"{name} needs sasl_oauthbearer_client_credentials_client_id and ..._client_secret"
            )

    def __repr__(self) -> str:
        return f"TokenSource({self.url!r}, client_id={self.client_id!r})"


class Token(NamedTuple):
    """A token and the time until which it is kept; `ends_ms` is 0 if its end is not known."""

    text: str
    fresh_until_ms: float
    ends_ms: float

    def __repr__(self) -> str:
        return f"Token(ends_ms={self.ends_ms:.0f})"


@dataclass(slots=True)
class _Kept:
    lock: threading.Lock = field(default_factory=threading.Lock)
    token: Token | None = None


class TokenCache:
    """Tokens by their sources. Threads and event loops may share it."""

    def __init__(self) -> None:
        self._kept: dict[TokenSource, _Kept] = {}

    async def token(self, source: TokenSource) -> str:
        """Return a token that is fresh. Raises AuthenticationFailed or TokenUnavailable."""
        kept = self._kept.setdefault(source, _Kept())
        if kept.token is not None and now_ms() < kept.token.fresh_until_ms:
            return kept.token.text
        return await asyncio.to_thread(self._renewed, source, kept)

    def forget(self, source: TokenSource, text: str) -> None:
        """Drop a token that a broker refused, unless a newer one took its place."""
        kept = self._kept.get(source)
        if kept is not None and kept.token is not None and kept.token.text == text:
            kept.token = None

    def _renewed(self, source: TokenSource, kept: _Kept) -> str:
        with kept.lock:  # those that wait here find the token of the first
            before = kept.token
            if before is not None and now_ms() < before.fresh_until_ms:
                return before.text
            try:
                kept.token = fetch_token(source)
            except TokenUnavailable:
                if before is None or now_ms() >= before.ends_ms:
                    raise
                return before.text
            return kept.token.text


TOKENS: Final = TokenCache()
"""The tokens of this process."""


def fetch_token(source: TokenSource) -> Token:
    """Ask for a token; it blocks. Raises AuthenticationFailed or TokenUnavailable."""
    parts = urlsplit(source.url)
    if parts.scheme == "file":
        return _from_file(Path(parts.path))
    answer = _ask(source)
    text = answer.get("access_token")
    if not isinstance(text, str) or not text.isascii() or not text.isprintable() or not text:
        raise AuthenticationFailed(f"{source.url} answered without an access_token")
    expires_in = answer.get("expires_in")
    return kept_for(text, now_ms(), expires_in if isinstance(expires_in, int | float) else None)


def _from_file(path: Path) -> Token:
    """Read a token; it is not kept, for another program replaces the file."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a token"
        raise AuthenticationFailed(f"the token in {path} cannot be read: {reason}") from None
    if not text:
        raise AuthenticationFailed(f"{path} holds no token")
    return Token(text, 0, 0)


def kept_for(text: str, now: float, expires_in_s: float | None) -> Token:
    """Return a token with its times: of the server's answer, else of the token if it is a JWT."""
    ends_ms = _claimed_end_s(text) * 1_000 if expires_in_s is None else now + expires_in_s * 1_000
    return Token(text, now + (ends_ms - now) * FRESH_SHARE, ends_ms) if ends_ms > now else Token(text, 0, 0)


def _claimed_end_s(text: str) -> float:
    parts = text.split(".")
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(found["exp"])
    except (IndexError, ValueError, KeyError, TypeError):  # opaque to us: the server's answer counts
        return 0.0


def _ask(source: TokenSource) -> dict[str, Any]:
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request

    form = {"grant_type": "client_credentials"} | ({"scope": source.scope} if source.scope else {})
    headers = {"Authorization": f"Basic {_credentials(source)}", "Accept": "application/json"}
    request = Request(source.url, urlencode(form).encode(), headers)
    try:
        with _opener(source).open(request, timeout=source.connect_timeout_s) as answer:
            body = answer.read(_MAX_ANSWER_BYTES)
    except HTTPError as error:
        with error:
            words = f"{source.url} answered {error.code} {_reason(error.read(_MAX_ANSWER_BYTES))}".rstrip()
        if error.code >= 500 or error.code == 429:
            raise TokenUnavailable(words) from None
        raise AuthenticationFailed(f"no token for {source.client_id!r}: {words}") from None
    except (URLError, HTTPException, OSError) as error:
        raise TokenUnavailable(f"{source.url} cannot be asked for a token: {_problem(error)}") from None
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise AuthenticationFailed(f"{source.url} did not answer with a JSON object")
    return found


def _credentials(source: TokenSource) -> str:
    names = [source.client_id or "", source.client_secret or ""]
    if source.quotes_credentials:
        names = [quote_plus(name) for name in names]
    return base64.b64encode(":".join(names).encode()).decode()


def _opener(source: TokenSource) -> OpenerDirector:
    """Return what opens URLs: connections have one bound until they are open, and another one behind it.

    They trust the system's authorities, and those that the connections to brokers trust.
    """
    import ssl
    from functools import partial
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.request import HTTPHandler, HTTPSHandler, build_opener

    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            self.sock.settimeout(source.read_timeout_s)

    class Encrypted(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            self.sock.settimeout(source.read_timeout_s)

    class Http(HTTPHandler):
        def http_open(self, request: Request) -> HTTPResponse:
            return self.do_open(Plain, request)

    class Https(HTTPSHandler):
        def https_open(self, request: Request) -> HTTPResponse:
            context = ssl.create_default_context()
            if source.cafile is not None:
                context.load_verify_locations(source.cafile)
            return self.do_open(partial(Encrypted, context=context), request)

    return build_opener(Http, Https)


def _reason(body: bytes) -> str:
    """Return `error` and `error_description` of RFC 6749, shortened."""
    try:
        found = json.loads(body)
        words = [str(found[key]) for key in ("error", "error_description") if key in found]
    except (ValueError, TypeError):
        return ""
    text = ": ".join(words)
    return "".join(letter for letter in text if letter.isprintable())[:_MAX_REASON_LENGTH]


def _problem(error: Exception) -> str:
    cause = getattr(error, "reason", error)
    return str(getattr(cause, "verify_message", None) or getattr(cause, "strerror", None) or cause)
