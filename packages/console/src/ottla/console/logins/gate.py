"""The gate of all pages: it finds the viewer of a request, and each route declares the right it needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from starlette.datastructures import Headers, QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ottla.console.logins.access import OWNER, Need, Needs, Viewer, decision
from ottla.console.logins.authenticator import Authenticator, Identity

_log = logging.getLogger(__name__)

LOGIN_PATH: Final = "/login"


class Page(Route):
    """A route that declares the right that it needs, and answers only viewers with that right."""

    def __init__(self, path: str, endpoint: Callable[..., Any], needs: Needs, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.needs = needs

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        need = self.needs(scope["path_params"], QueryParams(scope["query_string"]))
        viewer: Viewer | None = scope["state"]["viewer"]
        if need is not None:
            if viewer is None:
                await ask_to_log_in(scope)(scope, receive, send)
                return
            check(viewer, need)
        await super().handle(scope, receive, send)


def check(viewer: Viewer, need: Need) -> None:
    """Return if a viewer has a right. Raises HTTPException, for hidden names as for unknown ones."""
    match decision(viewer, need):
        case "hidden":
            raise HTTPException(404, _missing(need))
        case "refused":
            _log.warning("a right is missing", extra={"user": viewer.name, "need": need})
            raise HTTPException(403, _lacking(need))


def _missing(need: Need) -> str:
    if need.topic is not None:
        return f"there is no topic {need.topic!r} in cluster {need.cluster}"
    if need.group is not None:
        return f"there is no group {need.group!r} in cluster {need.cluster}"
    return (
        "there is nothing for you here" if need.cluster is None else f"there is no cluster {need.cluster!r}"
    )


def _lacking(need: Need) -> str:
    over = need.topic or need.group or ("all topics and groups" if need.is_whole else "the cluster")
    return f"this needs the role {need.role.name.lower()} over {over}: ask those who run this console for it"


def ask_to_log_in(scope: Scope) -> Response:
    """Return the way to the login for a person, and a refusal for a program."""
    headers, base = Headers(scope=scope), scope.get("root_path", "")
    if headers.get("hx-request") == "true":
        then = urlencode({"next": _path_of(headers.get("hx-current-url", ""))})
        return Response(status_code=401, headers={"hx-redirect": f"{base}{LOGIN_PATH}?{then}"})
    if scope["method"] in ("GET", "HEAD") and "text/html" in headers.get("accept", ""):
        query = scope["query_string"].decode("latin-1")
        there = quote(scope["path"]) + (f"?{query}" if query else "")
        return RedirectResponse(f"{base}{LOGIN_PATH}?{urlencode({'next': there})}", status_code=303)
    refusal = "log in first; a program sends a token: Authorization: Bearer TOKEN\n"
    return PlainTextResponse(refusal, 401, {"www-authenticate": "Bearer"})


def _path_of(url: str) -> str:
    """Return the path and the query of an address; an empty text for one that is none."""
    try:
        shown = urlsplit(url)
    except ValueError:
        return ""
    return shown.path + (f"?{shown.query}" if shown.query else "")


class Gate:
    """Finds the viewer of each request, for all routes behind it; without logins that is the owner."""

    def __init__(
        self, app: ASGIApp, authenticator: Authenticator | None, *, look_every_s: float = 5.0
    ) -> None:
        """`look_every_s` is how often a request that lasts looks whether its rights do."""
        self._app = app
        self._authenticator = authenticator
        self._look_every_s = look_every_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in the name of its viewer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        found = Identity(OWNER) if self._authenticator is None else self._authenticator.identify(scope)
        scope.setdefault("state", {}).update(viewer=found.viewer, session=found.session)
        if self._authenticator is not None and found.viewer is not None:
            receive = _while_granted(self._authenticator, scope, receive, self._look_every_s)
        await self._app(scope, receive, send)


def _while_granted(
    authenticator: Authenticator, scope: Scope, receive: Receive, look_every_s: float
) -> Receive:
    """Return a receive that ends a stream with its session or its rights, as if the browser had gone."""
    granted = authenticator.rights(scope)

    async def receive_while_granted() -> Message:
        while authenticator.rights(scope) == granted:
            with suppress(TimeoutError):
                async with asyncio.timeout(look_every_s):
                    return await receive()
        return {"type": "http.disconnect"}

    return receive_while_granted
