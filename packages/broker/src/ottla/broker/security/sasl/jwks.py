"""The public keys that sign tokens: a JWKS document (RFC 7517) in a file or at a URL, read regularly."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    Request,
    build_opener,
)

from ottla.broker.security.sasl.broker_tokens import Backoff, retried
from ottla.broker.security.sasl.oauthbearer import ALGORITHMS, SigningKey
from ottla.client.environment import monotonic_s

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_log = logging.getLogger(__name__)

MAX_DOCUMENT_BYTES: Final = 1 << 20
FETCH_WITHIN_S: Final = 10.0
SCHEMES: Final = ("file", "http", "https")
MIN_PAUSE_S: Final = 10.0
"""The least time between two readings: tokens with unknown keys ask for one."""
_BY_TYPE: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("RSA", ""): ALGORITHMS[:6],
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}

_NO_RETRY: Final = Backoff(0, 0)

KeysById = Mapping[str | None, SigningKey]


class BadJwks(ValueError):
    """A JWKS document cannot be had or read."""


class JwksUnavailable(BadJwks):
    """A server did not give a document; it may do so later."""


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: its target, also one without TLS, would name the keys that are trusted."""

    def redirect_request(self, *_: Any) -> None:
        """Leave the answer as it is: an error."""


class _Timely(RawIOBase):
    """The bytes of a socket up to a moment: its own timeout begins again with each byte that comes."""

    def __init__(self, raw: Any, of: socket.socket, within_s: float) -> None:
        super().__init__()
        self._raw, self._socket = raw, of
        self._within_s, self._until_s = within_s, monotonic_s() + within_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        self._socket.settimeout(max(self._until_s - monotonic_s(), 0.001))
        try:
            read: int | None = self._raw.readinto(buffer)
        except TimeoutError:
            raise TimeoutError(f"it was not there within {self._within_s:g} s") from None
        if monotonic_s() > self._until_s:
            raise TimeoutError(f"it was not there within {self._within_s:g} s")
        return read

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimelyResponse(HTTPResponse):
    """An answer whose head and body are there within a time, however slowly the server sends."""

    def __init__(self, sock: socket.socket, *, within_s: float, **more: Any) -> None:
        super().__init__(sock, **more)
        self.fp = BufferedReader(_Timely(self.fp.detach(), sock, within_s))


class _TimelyHandler(HTTPSHandler, HTTPHandler):
    """Asks by HTTP and HTTPS, for answers that are there within a time."""

    def __init__(self, within_s: float, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._within_s = within_s
        self._trusting = context

    def http_open(self, request: Request) -> HTTPResponse:
        """Open a URL."""
        return self.do_open(self._connection(HTTPConnection), request)

    def https_open(self, request: Request) -> HTTPResponse:
        """Open a URL by TLS."""
        return self.do_open(self._connection(HTTPSConnection), request, context=self._trusting)

    def _connection(self, kind: type[HTTPConnection]) -> Any:
        def made(host: str, **more: Any) -> HTTPConnection:
            found: Any = kind(host, **more)
            found.response_class = partial(_TimelyResponse, within_s=self._within_s)
            return found  # type: ignore[no-any-return]

        return made


def fetch_jwks(url: str, cafile: str | None = None, within_s: float = FETCH_WITHIN_S) -> bytes:
    """Read a document; it blocks for a bounded time, and follows no redirect. Raises `BadJwks`.

    `cafile` has authorities to trust, beside those of the system.
    """
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES:
        raise BadJwks(f"the URL must begin with one of {', '.join(SCHEMES)}")
    request = Request(url, headers={"Accept": "application/json"})
    try:
        context = ssl.create_default_context()
        if cafile is not None:
            context.load_verify_locations(cafile)
        handlers = _NoRedirect(), _TimelyHandler(within_s, context)
        with build_opener(*handlers).open(request, timeout=within_s) as answer:
            document: bytes = answer.read(MAX_DOCUMENT_BYTES + 1)
    except HTTPError as error:
        with error:
            raise JwksUnavailable(f"it cannot be read: {_refusal(error)}") from None
    except (OSError, URLError, ValueError) as error:
        kind = BadJwks if scheme == "file" else JwksUnavailable
        raise kind(f"it cannot be read: {error}") from None
    if len(document) > MAX_DOCUMENT_BYTES:
        raise BadJwks(f"it has over {MAX_DOCUMENT_BYTES} bytes")
    return document


def _refusal(error: HTTPError) -> str:
    if not 300 <= error.code < 400:
        return str(error)
    target = "".join(filter(str.isprintable, str(error.headers.get("Location"))))[:200]
    return f"the server answers {error.code} and leads to {target}: name the document itself"


def keys_in(document: bytes) -> dict[str | None, SigningKey]:
    """Read the keys for signatures by key pairs; others are left out. Raises `BadJwks`.

    A document of one key has it under None, too: its tokens need no id.
    """
    try:
        listed = json.loads(document)["keys"]
        found = [(entry.get("kid"), key) for entry in listed if (key := _key_of(entry)) is not None]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadJwks(f"it is no JWKS document: {type(error).__name__}") from None
    if not found:
        raise BadJwks("it has no public key for signatures")
    keys: dict[str | None, SigningKey] = dict(found)
    return {None: found[0][1], **keys} if len(found) == 1 else keys


def _key_of(entry: Mapping[str, Any]) -> SigningKey | None:
    import jwt

    kind = entry.get("kty", "")
    possible = _BY_TYPE.get((kind, "" if kind == "RSA" else entry.get("crv", "")), ())
    algorithms = tuple(name for name in possible if entry.get("alg", name) == name)
    if not algorithms or entry.get("use", "sig") != "sig" or "d" in entry:
        return None
    try:
        return SigningKey(jwt.PyJWK(dict(entry), algorithms[0]).key, algorithms)
    except jwt.PyJWTError:
        return None


class JwksKeys:
    """The keys of one document. They are read at the start, every `refresh_s`, and when one is missing."""

    def __init__(
        self,
        url: str,
        refresh_s: float,
        fetch: Callable[[str], bytes] = fetch_jwks,
        backoff: Backoff = _NO_RETRY,
        run: Callable[[Callable[[], KeysById]], Awaitable[KeysById]] = asyncio.to_thread,
    ) -> None:
        """`backoff` says how a silent server is asked again; `run` calls `fetch` on a thread."""
        self._url = url
        self._refresh_s = refresh_s
        self._fetch = fetch
        self._backoff = backoff
        self._run = run
        self._keys: KeysById = {}
        self._is_missing = asyncio.Event()

    def find(self, key_id: str | None) -> SigningKey | None:
        """Return the key with an id; without one, have the document read again soon."""
        key = self._keys.get(key_id) if isinstance(key_id, str | None) else None
        if key is None:
            self._is_missing.set()
        return key

    async def load(self) -> None:
        """Read the document on a thread. Raises `BadJwks`; the keys of before stay."""
        loop = asyncio.get_running_loop()
        self._keys = await retried(
            lambda: self._run(lambda: keys_in(self._fetch(self._url))),
            self._backoff,
            lambda: loop.time() * 1000,
            JwksUnavailable,
        )

    async def refresh(self) -> None:
        """Read the document again and again until cancelled."""
        while True:
            await asyncio.sleep(min(MIN_PAUSE_S, self._refresh_s))
            try:
                async with asyncio.timeout(max(0.0, self._refresh_s - MIN_PAUSE_S)):
                    await self._is_missing.wait()
            except TimeoutError:
                pass
            self._is_missing.clear()
            try:
                await self.load()
            except BadJwks as error:
                _log.warning("keys of tokens not read again", extra={"url": self._url, "reason": str(error)})
