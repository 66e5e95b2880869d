"""Guards around all requests: the host's name, other sites' requests, and the headers of answers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger(__name__)

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:",
        "font-src 'self'", "connect-src 'self'", "form-action 'self'", "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)  # fmt: skip
_HEADERS: Final = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guards:
    """Refuses requests under a foreign host's name and changes that another site asks for.

    A browser sends a page of another site to 127.0.0.1 under that site's name (DNS rebinding), and posts
    its forms here with the user's cookies (cross-site request forgery).
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        """`names` are host names without ports, IPv6 addresses in brackets."""
        self._app = app
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if (refused := self._why_refused(scope["method"], headers)) is not None:
            _log.warning("a request is refused", extra={"reason": refused, "client": scope.get("client")})
            await PlainTextResponse(f"{refused}\n", status_code=403)(scope, receive, _with_headers(send))
            return
        await self._app(scope, receive, _with_headers(send))

    def _why_refused(self, method: str, headers: Headers) -> str | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or host_name(hosts[0]) not in self._names:
            shown = ", ".join(map(repr, hosts)) or "no name"
            return f"the console is not known as {shown}: --name adds a name"
        if method in SAFE_METHODS:
            return None
        site = headers.get("sec-fetch-site")
        if site is not None and site != "same-origin":
            return "the change comes from a page of another site"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != hosts[0].lower():
            return "the change comes from a page of another site"
        return None


def host_name(host: str) -> str:
    """Return the name of a Host header, without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-cache")
        await send(message)

    return send_with_headers
