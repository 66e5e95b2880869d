"""Tokens for OAUTHBEARER from an authorization server, by client credentials, or from a file (KIP-768).

A token is kept for a share of its life, by Kafka's rule and its settings `sasl.login.refresh.*`, for all
clients of the process that log in alike: a hundred connections that begin at once ask the server once. The
first login behind that asks again. While the server fails, the old token serves until it ends.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeGuard
from urllib.parse import quote_plus, unquote, urlencode, urlsplit

from ottla.client.environment import chance, login_threads, monotonic_s, now_ms
from ottla.client.errors import AuthenticationFailed, ClientError
from ottla.client.key_stores import Authorities
from ottla.client.retry import Backoff
from ottla.client.settings import SettingError

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from urllib.error import HTTPError
    from urllib.request import OpenerDirector, Request

LOGIN_TIMEOUT_MS: Final = 10_000
"""How long a server may take to connect, and to answer, where no setting says it."""
AFTER_FAILURE_MS: Final = 10_000
"""The pause before the next token, behind one that has ended."""
_MAX_ANSWER_BYTES: Final = 1_000_000
_MAX_REASON_LENGTH: Final = 200


class TokenUnavailable(ClientError):
    """The authorization server did not answer, or failed; it may answer later."""

    retriable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshRules:
    """When the next token is asked for: the settings `sasl.login.refresh.*`."""

    window_factor: float = 0.8
    window_jitter: float = 0.05
    min_period_s: int = 60
    buffer_s: int = 300

    def due_ms(self, began_ms: float | None, ends_ms: float, now_ms: float, chance: float) -> float:
        """Return the time for the next token, behind one that began (None: now) and ends.

        `chance` is from 0 to 1.
        """
        if now_ms > ends_ms:
            return now_ms + AFTER_FAILURE_MS
        share = self.window_factor + self.window_jitter * chance
        if now_ms + 1000 * (self.min_period_s + self.buffer_s) > ends_ms:
            return now_ms + (ends_ms - now_ms) * share
        since_ms = now_ms if began_ms is None else began_ms
        proposed_ms = since_ms + (ends_ms - since_ms) * share
        latest_ms = ends_ms - 1000 * self.buffer_s
        return latest_ms if proposed_ms > latest_ms else max(proposed_ms, now_ms + 1000 * self.min_period_s)


class TokenSource(NamedTuple):
    """Where tokens come from: an https or http URL with client credentials, or a file URL."""

    url: str
    client_id: str | None = None
    client_secret: str | None = None
    scope: str | None = None
    authorities: Authorities = Authorities()
    """Those to trust beside the system's."""
    connect_timeout_s: float = LOGIN_TIMEOUT_MS / 1_000
    read_timeout_s: float = LOGIN_TIMEOUT_MS / 1_000
    quotes_credentials: bool = False
    """Whether id and secret are URL-encoded before they are joined, as RFC 6749 has it."""
    refresh: RefreshRules = RefreshRules()
    backoff: Backoff = Backoff(100, 10_000, jitter=0)
    """How long a server that fails is left alone: `sasl.login.retry.*`."""

    def check(self) -> None:
        """Raise SettingError if no token can come from here."""
        parts, name = urlsplit(self.url), "sasl_oauthbearer_token_endpoint_url"
        if parts.scheme == "file":
            return
        if "@" in parts.netloc:
            raise SettingError(f"{name} must not have a user or a password: they would stand in errors")
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
    asked: Future[Token] | None = None
    """The answer that all logins wait for, on whichever thread and event loop."""
    failures: int = 0
    """Times in a row that the server failed."""
    not_before_s: float = 0.0
    """When it may be asked again: until then logins fail with its last error."""


class TokenCache:
    """Tokens by their sources. Threads and event loops may share it."""

    def __init__(self, old_serves_after_s: float = 2.0) -> None:
        """`old_serves_after_s` is how long a login waits for a new token while the old one is still good."""
        self._old_serves_after_s = old_serves_after_s
        self._kept: dict[tuple[int, TokenSource], _Kept] = {}

    async def token(self, source: TokenSource) -> str:
        """Return a token that is fresh. Raises AuthenticationFailed or TokenUnavailable."""
        kept = self._of(source)
        with kept.lock:
            old = kept.token
            if old is not None and now_ms() < old.fresh_until_ms:
                return old.text
            asked = _asked(source, kept)
        serves = old is not None and now_ms() < old.ends_ms
        try:
            async with asyncio.timeout(self._old_serves_after_s if serves else None):
                return (await asyncio.wrap_future(asked)).text
        except (TokenUnavailable, TimeoutError):
            if old is None or not serves:
                raise
            return old.text

    def forget(self, source: TokenSource, text: str) -> None:
        """Drop a token that a broker refused, unless a newer one took its place."""
        kept = self._of(source)
        with kept.lock:
            if kept.token is not None and kept.token.text == text:
                kept.token = None

    def _of(self, source: TokenSource) -> _Kept:
        # A forked process has none of its parent's threads, of which one may ask right now.
        return self._kept.setdefault((os.getpid(), source), _Kept())


TOKENS: Final = TokenCache()
"""The tokens of this process."""


def _asked(source: TokenSource, kept: _Kept) -> Future[Token]:
    """Ask for a token on a thread, unless that is done, or it is too early; the caller holds the lock.

    No waiter can cancel the future for the others.
    """
    if kept.asked is not None and (not kept.asked.done() or monotonic_s() < kept.not_before_s):
        return kept.asked
    asked: Future[Token] = Future()
    asked.set_running_or_notify_cancel()
    login_threads().submit(_ask_for_all, source, kept, asked)
    kept.asked = asked
    return asked


def _ask_for_all(source: TokenSource, kept: _Kept, asked: Future[Token]) -> None:
    try:
        token = fetch_token(source)
    except TokenUnavailable as error:
        with kept.lock:
            kept.not_before_s = monotonic_s() + source.backoff.delay_ms(kept.failures, chance()) / 1_000
            kept.failures += 1
        asked.set_exception(error)
    except BaseException as error:
        asked.set_exception(error)
    else:
        with kept.lock:
            kept.token, kept.failures, kept.not_before_s = token, 0, 0.0
        asked.set_result(token)


def fetch_token(source: TokenSource) -> Token:
    """Ask for a token; it blocks. Raises AuthenticationFailed or TokenUnavailable."""
    parts = urlsplit(source.url)
    if parts.scheme == "file":
        return _from_file(Path(unquote(parts.path)))
    answer = _ask(source)
    text = answer.get("access_token")
    if not is_token(text):
        raise AuthenticationFailed(f"{source.url} answered without an access_token")
    expires_in = answer.get("expires_in")
    lasts_s = expires_in if isinstance(expires_in, int | float) else None
    return kept_for(text, now_ms(), lasts_s, source.refresh, chance())


def is_token(text: object) -> TypeGuard[str]:
    """Return whether a value can stand in a message of OAUTHBEARER."""
    return isinstance(text, str) and text != "" and text.isascii() and text.isprintable()


def _from_file(path: Path) -> Token:
    """Read a token; it is not kept, for another program replaces the file."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a token"
        raise AuthenticationFailed(f"the token in {path} cannot be read: {reason}") from None
    if not is_token(text):
        raise AuthenticationFailed(f"{path} holds no token")
    return Token(text, 0, 0)


def kept_for(
    text: str, now: float, expires_in_s: float | None, rules: RefreshRules, chance: float = 0.0
) -> Token:
    """Return a token with its times: of the server's answer, else of the token if it is a JWT."""
    began_s, ends_s = _claimed_times_s(text)
    ends_ms = ends_s * 1_000 if expires_in_s is None else now + expires_in_s * 1_000
    if not ends_ms > now:
        return Token(text, 0, 0)
    began_ms = None if began_s is None else min(now, began_s * 1_000)
    return Token(text, rules.due_ms(began_ms, ends_ms, now, chance), ends_ms)


def _claimed_times_s(text: str) -> tuple[float | None, float]:
    """Return the times `iat` and `exp` of a JWT; None and 0 where a token has none."""
    try:
        payload = text.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        began = found.get("iat")
        return None if began is None else float(began), float(found["exp"])
    except (IndexError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, 0.0  # opaque to us: the server's answer counts


def _ask(source: TokenSource) -> dict[str, Any]:
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError

    with _Bound(source.read_timeout_s) as bound:
        try:
            with _opener(source, bound).open(_request(source), timeout=source.connect_timeout_s) as answer:
                body = answer.read(_MAX_ANSWER_BYTES)
                is_cut = bound.is_over or (answer.length and len(body) < _MAX_ANSWER_BYTES)
        except HTTPError as error:
            raise _refusal(source, error) from None
        except SettingError as error:
            raise AuthenticationFailed(f"no token of {source.url}: {error}") from None
        except (URLError, HTTPException, OSError) as error:
            problem = bound.words if bound.is_over else _problem(error)
            raise TokenUnavailable(f"{source.url} cannot be asked for a token: {problem}") from None
    if is_cut:
        reason = bound.words if bound.is_over else "its answer was cut short"
        raise TokenUnavailable(f"{source.url} cannot be asked for a token: {reason}")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise AuthenticationFailed(f"{source.url} did not answer with a JSON object")
    return found


def _request(source: TokenSource) -> Request:
    from urllib.request import Request

    form = {"grant_type": "client_credentials"} | ({"scope": source.scope} if source.scope else {})
    headers = {"Authorization": f"Basic {_credentials(source)}", "Accept": "application/json"}
    return Request(source.url, urlencode(form).encode(), headers)


def _credentials(source: TokenSource) -> str:
    names = [source.client_id or "", source.client_secret or ""]
    if source.quotes_credentials:
        names = [quote_plus(name) for name in names]
    return base64.b64encode(":".join(names).encode()).decode()


def _refusal(source: TokenSource, error: HTTPError) -> ClientError:
    """Return the error of an answer that is not a token."""
    body = b""
    with error, suppress(OSError):
        body = error.read(_MAX_ANSWER_BYTES)
    if 300 <= error.code < 400:
        target = _printable(str(error.headers.get("Location")))
        return AuthenticationFailed(
            f"{source.url} answered {error.code}, and the client's secret does not follow it to {target}: "
            "set sasl_oauthbearer_token_endpoint_url to the token endpoint itself"
        )
    words = f"{source.url} answered {error.code} {_reason(body)}".rstrip()
    if error.code >= 500 or error.code == 429:
        return TokenUnavailable(words)
    return AuthenticationFailed(f"no token for {source.client_id!r}: {words}")


class _Bound:
    """Ends the connection to a server that has not answered in time, however slowly it goes on sending."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._timer: threading.Timer | None = None
        self.is_over = False

    @property
    def words(self) -> str:
        """The reason of an error, when the time is over."""
        return f"timed out, without an answer in {self._within_s:g} s"

    def watch(self, opened: socket.socket) -> None:
        """Begin to count the time for an answer."""
        opened.settimeout(self._within_s)
        self._timer = threading.Timer(self._within_s, self._end, (opened,))
        self._timer.daemon = True
        self._timer.start()

    def _end(self, opened: socket.socket) -> None:
        self.is_over = True
        with suppress(OSError):
            socket.socket.shutdown(opened, socket.SHUT_RDWR)  # also of TLS: its own would wait

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _opener(source: TokenSource, bound: _Bound) -> OpenerDirector:
    """Return the opener of URLs: connections have one bound until they are open, and another one behind it.

    They trust the system's authorities, and those that the connections to brokers trust. They follow no
    redirect: the request has the client's secret, and urllib would send that to any other host.
    """
    import ssl
    from functools import partial
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, build_opener

    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            bound.watch(self.sock)

    class Encrypted(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            bound.watch(self.sock)

    class Http(HTTPHandler):
        def http_open(self, request: Request) -> HTTPResponse:
            return self.do_open(Plain, request)

    class Https(HTTPSHandler):
        def https_open(self, request: Request) -> HTTPResponse:
            context = ssl.create_default_context()
            if source.authorities != Authorities():
                context.load_verify_locations(**source.authorities.places())
            return self.do_open(partial(Encrypted, context=context), request)

    class NoRedirect(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    return build_opener(Http, Https, NoRedirect)


def _reason(body: bytes) -> str:
    """Return `error` and `error_description` of RFC 6749, shortened."""
    try:
        found = json.loads(body)
        words = [str(found[key]) for key in ("error", "error_description") if key in found]
    except (ValueError, TypeError, RecursionError):
        return ""
    return _printable(": ".join(words))


def _printable(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())[:_MAX_REASON_LENGTH]


def _problem(error: Exception) -> str:
    cause = getattr(error, "reason", error)
    return str(getattr(cause, "verify_message", None) or getattr(cause, "strerror", None) or cause)
