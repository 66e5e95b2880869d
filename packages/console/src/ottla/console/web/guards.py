"""Guards around all requests: the host's name, other sites' requests, and the headers of answers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

_log = logging.getLogger(__name__)

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:",
        "font-src 'self'", "connect-src 'self'", "form-action 'self'", "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)  # fmt: skip
HSTS: Final = "max-age=31536000"
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

    def __init__(
        self, app: ASGIApp, names: Iterable[str], *, base_path: str = "", https_only: bool = False
    ) -> None:
        """`names` are host names without ports, IPv6 addresses in brackets."""
        self._app = app
        self._names = frozenset(name.lower() for name in names)
        self._base_path = base_path
        self._https_only = https_only
        self._headers = _HEADERS | ({"strict-transport-security": HSTS} if https_only else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._place(scope)
        headers = Headers(scope=scope)
        send = _with_headers(send, self._headers)
        if (refused := self._why_refused(scope, headers)) is not None:
            _log.warning("a request is refused", extra={"reason": refused, "client": scope.get("client")})
            await PlainTextResponse(f"{refused}\n", status_code=403)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _place(self, scope: Scope) -> None:
        """Put a request below the base path, whether the proxy before us took that off or not."""
        base = self._base_path
        if base and scope["path"] != base and not scope["path"].startswith(f"{base}/"):
            scope["path"] = base + scope["path"]
            scope["raw_path"] = base.encode() + (scope.get("raw_path") or b"")
        scope["root_path"] = base

    def _why_refused(self, scope: Scope, headers: Headers) -> str | None:
        if self._https_only and scope["scheme"] != "https":
            return "the proxy must serve https, and say so: X-Forwarded-Proto: https"
        hosts = headers.getlist("host")
        if len(hosts) != 1 or host_name(hosts[0]) not in self._names:
            shown = ", ".join(map(repr, hosts)) or "no name"
            return f"the console is not known as {shown}: --name adds a name"
        if scope["method"] in SAFE_METHODS:
            return None
        site = headers.get("sec-fetch-site")
        if site is not None and site != "same-origin":
            return "the change comes from a page of another site"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != hosts[0].lower():
            return "the change comes from a page of another site"
        return None


def host_name(host: str) -> str:
    """Return the name of a Host header, without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


class BehindProxy:
    """Takes requests from trusted proxies only, and from these the address of the browser and its scheme."""

    def __init__(self, app: ASGIApp, proxies: Iterable[IPv4Network | IPv6Network]) -> None:
        self._proxies = tuple(proxies)
        self._app = ProxyHeadersMiddleware(app, [str(network) for network in self._proxies])  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a proxy, or refuse it."""
        if scope["type"] == "http" and not self._is_trusted(scope.get("client")):
            _log.warning("a request past the proxy is refused", extra={"client": scope.get("client")})
            await PlainTextResponse("only the proxy is answered\n", status_code=403)(scope, receive, send)
            return
        await self._app(scope, receive, send)  # type: ignore[arg-type]

    def _is_trusted(self, client: tuple[str, int] | None) -> bool:
        try:
            return client is not None and any(ip_address(client[0]) in network for network in self._proxies)
        except ValueError:
            return False


def _with_headers(send: Send, added: Mapping[str, str]) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in added.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-cache")
        await send(message)

    return send_with_headers
